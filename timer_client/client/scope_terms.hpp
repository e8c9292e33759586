// The values that the options of a scope may have, and their form in a slot of the page. The
// functions that every opening of a scope needs are inline.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filetimer/timer_client.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/due.hpp"
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

// Returns whether the options need no more than plain_terms_of().
inline bool is_common(const ScopeOptions& options) {
  return !options.warn_after && !options.first_timeout && !options.signal_first;
}

// Returns whether a scope with this timeout may have this soft deadline. kForever: the scope has no
// deadline, which is later than every warning.
inline bool is_warn_after(std::optional<Duration> warn_after, Duration timeout) {
  return !warn_after ||
         (*warn_after > Duration::zero() && *warn_after < timeout && *warn_after <= kLongestSoft);
}
// Returns one line about a soft deadline that is not allowed.
std::string why_no_warn_after(Duration warn_after, Duration timeout);

// Returns the terms of a scope whose options are is_common().
inline PageTerms plain_terms_of(Duration after, const ScopeOptions& options) {
  return {.timeout = after.count(),
          .grace_ms = options.grace ? grace_ms_of(options.grace->value()) : kServersGrace,
          .signal = static_cast<std::uint16_t>(options.signal)};
}

// Returns the terms of a scope with any options.
PageTerms terms_of(Duration after, const ScopeOptions& options);

// Throw InvalidArgument, with a message about what is wrong. `what` names the timeout in it.
void check_timeout(std::string_view what, Duration timeout);
void check_options(const ScopeOptions& options, Duration after);

}  // namespace filetimer
