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

// The times of one scope name. Zero: the time in the code applies. kForever: no deadline.
struct ReplacedTimeout {
  Duration timeout{};
  Duration first_timeout{};  // of the first scope of the name in each thread
  friend bool operator==(const ReplacedTimeout&, const ReplacedTimeout&) = default;
};

// By scope name, in the form of the page (shown_name()).
using ReplacedTimeouts = std::unordered_map<std::string, ReplacedTimeout>;

// As much as `timer_client suggest` writes.
inline constexpr std::size_t kMaxTimeoutsFileBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxDotsOfLine = 1000;

// Reads the file. An error is one line that names the file and the place, quotes what is wrong and
// says what was expected.
Result<ReplacedTimeouts> read_timeouts_file(const std::string& path);

}  // namespace filetimer
