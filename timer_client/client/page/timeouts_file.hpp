// The timeouts of a file that replace those in the code, see ConnectOptions::timeouts: TOML, with
// an entry for each scope name.
//
//   forward = "2.5s"           # a time with a unit (us, ms, s, m, h or d), or "inf"
//   backward = 4               # seconds
//   ["train.py:12"]            # a name with other characters than letters, digits, _ and -
//   timeout = "30s"
//   first_timeout = "10m"      # of the first scope of this name
//
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "common/clock.hpp"
#include "common/result.hpp"

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

inline constexpr std::size_t kMaxTimeoutsFileBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxDotsOfLine = 1000;

// Reads the file. An error is one line that names the file and the place, quotes what is wrong and
// says what was expected.
Result<ReplacedTimeouts> read_timeouts_file(const std::string& path);

}  // namespace filetimer
