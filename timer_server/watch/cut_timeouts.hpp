// Scopes whose timeout --max-timeout has shortened.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

#include "common/clock.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/scopes/workers.hpp"

namespace filetimer {

// Records each name of a scope once, so that a job whose scopes all ask for too much gets one
// record and not one for each step. Used on the loop thread.
class CutTimeouts {
 public:
  // Names that are remembered; further names are not recorded.
  static constexpr std::size_t kMaxNames = 1024;

  CutTimeouts(Duration max_timeout, const Records& records, RecordLog& log)
      : max_timeout_(max_timeout), records_(records), log_(log) {}

  // Records that the worker asked for the timeout `asked`, if that is over --max-timeout and the
  // first time for this name.
  void note(const Worker& worker, std::string_view name, Duration asked) {
    if (asked > max_timeout_ && names_.size() < kMaxNames && names_.emplace(name).second) {
      log_.append(
          records_.cut_by_max_timeout(WorkerIdentity::of(worker), name, asked, max_timeout_));
    }
  }

 private:
  const Duration max_timeout_;  // kForever: no timeout is shortened
  const Records& records_;
  RecordLog& log_;
  std::unordered_set<std::string> names_;
};

}  // namespace filetimer
