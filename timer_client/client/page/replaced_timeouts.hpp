// The timeouts of a file that replace those in the code; see ConnectOptions::timeouts.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <unordered_map>

#include "common/clock.hpp"

namespace filetimer {

// The times of one scope name. Any thread may use it.
class ReplacedTimeout {
 public:
  // Zero: the time in the code applies. kForever: no deadline.
  ReplacedTimeout(Duration timeout, Duration first_timeout)
      : timeout_(timeout), first_timeout_(first_timeout) {}

  [[nodiscard]] Duration timeout() const { return timeout_; }
  [[nodiscard]] Duration first_timeout() const { return first_timeout_; }
  // Returns whether the times are the same.
  [[nodiscard]] bool is_equal_to(const ReplacedTimeout& other) const {
    return timeout_ == other.timeout_ && first_timeout_ == other.first_timeout_;
  }

 private:
  const Duration timeout_;
  const Duration first_timeout_;  // of the first scope of the name in each thread
};

// By scope name, in the form of the page (shown_name()).
using ReplacedTimeouts = std::unordered_map<std::string, ReplacedTimeout>;

}  // namespace filetimer
