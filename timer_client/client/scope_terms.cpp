// SPDX-License-Identifier: MIT
#include "timer_client/client/scope_terms.hpp"

#include <fmt/format.h>

#include "common/duration_text.hpp"

namespace filetimer {

void check_timeout(std::string_view what, Duration timeout) {
  if (!is_timeout(timeout)) {
    throw InvalidArgument(
        fmt::format("{} is {}: expected more than 0 and at most {}, or max() for none", what,
                    duration_text(timeout), duration_text(kMaxTimeout)));
  }
}

void check_options(const ScopeOptions& options, Duration after) {
  if (!is_signal(options.signal)) {
    throw InvalidArgument(
        fmt::format("the signal is {}: expected 0 to {}", options.signal, kLastSignal));
  }
  if (!is_grace(options.grace)) {
    check_timeout("the grace", options.grace->value());
  }
  if (options.warn_after && !is_warn_after(options.warn_after->value(), after)) {
    throw InvalidArgument(why_no_warn_after(options.warn_after->value(), after));
  }
  if (options.first_timeout) {
    check_timeout("the first timeout", options.first_timeout->value());
  }
}

std::string why_no_warn_after(Duration warn_after, Duration timeout) {
  const std::string at_most = warn_after > kLongestSoft && warn_after < timeout
                                  ? "at most " + duration_text(kLongestSoft)
                                  : "less than the timeout, " + duration_text(timeout);
  return fmt::format("the warning is after {}: expected more than 0 and {}",
                     duration_text(warn_after), at_most);
}

PageTerms terms_of(Duration after, const ScopeOptions& options) {
  PageTerms terms = plain_terms_of(after, options);
  if (options.warn_after) {
    terms.soft_ms = soft_ms(options.warn_after->value());
  }
  if (options.signal_first) {
    terms.flags = slot_flag::kSignalFirst;
  }
  return terms;
}

}  // namespace filetimer
