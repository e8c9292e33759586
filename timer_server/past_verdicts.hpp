// What the servers before this one wrote into the log about scopes that expired: a server that was
// killed between a verdict and the end of its kill leaves an `expired` record without a `killed`
// one, and the next server finishes what it began.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "timer_server/records.hpp"

namespace filetimer {

struct PastVerdict {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  Expiry expiry;
  bool has_evidence = false;
  bool is_finished = false;  // there is a `killed` record
  std::string record;        // the line, without its newline
};

// Those of this boot and of servers in the run folder `dir`, in the last kMaxPastBytes of the log
// and, if it is younger than that, of the one before it (PATH.1), the oldest first. Lines that are
// none are skipped; no log: none.
std::vector<PastVerdict> read_past_verdicts(const std::string& log_path, std::string_view boot_id,
                                            std::string_view dir);

inline constexpr std::size_t kMaxPastBytes = std::size_t{8} << 20;

}  // namespace filetimer
