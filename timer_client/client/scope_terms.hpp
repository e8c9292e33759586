// What a scope may ask for, and how a slot of the page holds it. What opening a scope needs each
// time is inline.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filetimer/timer_client.hpp>
#include <optional>
#include <string_view>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/scope_page.hpp"
#include "timer_client/client/page/page_scope.hpp"

namespace filetimer {

inline constexpr int kLastSignal = 64;

inline bool is_timeout(Duration timeout) {
  return (timeout > Duration::zero() && timeout <= kMaxTimeout) || timeout == kNoDeadline;
}

inline bool is_signal(int signal) {
  return signal >= 0 && signal <= kLastSignal;
}

inline bool is_grace(std::optional<Timeout> grace) {
  return !grace || grace->value() == Duration::zero() || is_timeout(grace->value());
}

// Without what terms_of() and timeout_for() look at beyond plain_terms_of().
inline bool is_common(const ScopeOptions& options) {
  return !options.warn_after && !options.first_timeout && !options.spare_if_left;
}

// As a slot holds it: in whole milliseconds, rounded up.
inline std::uint32_t grace_ms(Duration grace) {
  if (grace == kNoDeadline) {
    return kNoSigkill;
  }
  const auto whole = std::chrono::ceil<std::chrono::milliseconds>(grace).count();
  return static_cast<std::uint32_t>(std::min<std::int64_t>(whole, kLongestGraceMs));
}

// Without what is not so common.
inline PageTerms plain_terms_of(Duration after, const ScopeOptions& options, std::uint64_t client) {
  return {.timeout = after.count(),
          .grace_ms = options.grace ? grace_ms(options.grace->value()) : kServersGrace,
          .signal = static_cast<std::uint16_t>(options.signal),
          .client = client};
}

PageTerms terms_of(Duration after, const ScopeOptions& options, std::uint64_t client);

// These throw InvalidArgument, with what was wrong. `what`: for the message.
void check_timeout(std::string_view what, Duration timeout);
void check_options(const ScopeOptions& options, Duration after);

}  // namespace filetimer
