// What the servers before this one wrote into the log about scopes that expired or were warned
// about: a server that was killed between a verdict and the end of its kill leaves an `expired`
// record without a `killed` one, and the next server finishes what it began. What was warned about
// is not warned about again.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
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

// Soft deadlines that were warned about; each is named by what makes it the same.
class PastWarnings {
 public:
  void add(pid_t pid, std::uint64_t start_time, const ScopeView& scope, Instant soft) {
    keys_.insert(key(pid, start_time, scope, soft));
  }
  [[nodiscard]] bool contains(const Process& worker, const ScopeView& scope, Instant soft) const {
    return keys_.contains(key(worker.pid, worker.start_time, scope, soft));
  }
  [[nodiscard]] bool empty() const { return keys_.empty(); }

 private:
  static std::string key(pid_t pid, std::uint64_t start_time, const ScopeView& scope, Instant soft);
  std::unordered_set<std::string> keys_;
};

struct PastRecords {
  std::vector<PastVerdict> verdicts;  // the oldest first
  PastWarnings warnings;
};

// Those of this boot and, of verdicts, of servers in the run folder `dir`, in the last
// kMaxPastBytes of the log and, if it is younger than that, of the one before it (PATH.1). Lines
// that are none are skipped; no log: none.
PastRecords read_past_records(const std::string& log_path, std::string_view boot_id,
                              std::string_view dir);

inline constexpr std::size_t kMaxPastBytes = std::size_t{8} << 20;

}  // namespace filetimer
