// The verdicts that earlier servers wrote into the log. A server that is killed between a verdict
// and the end of its kill leaves an `expired` record without a `killed` one; the next server
// finishes that kill.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "timer_server/records/records.hpp"

namespace filetimer {

struct PastVerdict {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  Expiry expiry;
  bool has_evidence = false;
  bool is_finished = false;  // there is a `killed` record
};

// Returns the verdicts of this boot, the oldest first, that servers of the runtime directory `dir`
// recorded. Reads the last kMaxPastBytes of the log, and of the rotated log (PATH.1) if the log is
// shorter. Skips lines that are not records. Returns nothing without a log. Throws
// std::runtime_error if a log cannot be read for now.
std::vector<PastVerdict> read_past_verdicts(const std::string& log_path, std::string_view boot_id,
                                            std::string_view dir);

inline constexpr std::size_t kMaxPastBytes = std::size_t{8} << 20;

}  // namespace filetimer
