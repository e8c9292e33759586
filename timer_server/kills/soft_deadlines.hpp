// Soft deadlines: from a scan's finding to a warning.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "timer_server/evidence/python_dump.hpp"
#include "timer_server/kills/warnings.hpp"
#include "timer_server/scopes/workers.hpp"
#include "timer_server/system/loop_thread.hpp"
#include "timer_server/watch/deadline_scan.hpp"
#include "timer_server/watch/scope_policy.hpp"

namespace filetimer {

// Starts warnings about scopes whose soft deadline has passed, at most WarningLimit's number for
// each worker, and about all that are to be signalled first. An iteration calls warn() last: no
// verdict waits for a warning, and a scope with a verdict gets no warning. Used on the loop thread.
// What the context refers to must outlive this object.
class SoftDeadlines {
 public:
  struct Context {
    Workers& workers;
    const ScopePolicy& policy;
    Warnings& warnings;
    bool is_dry_run;
    std::function<std::optional<PythonDump>(const Worker&)> python_dump_of;
  };
  explicit SoftDeadlines(Context context) : context_(context) {}

  // Keeps what a scan has found for warn().
  void note(std::vector<DeadlineScan::SoftDueScope> scopes) { noted_ = std::move(scopes); }
  // Starts the warnings about the noted scopes that are still open, of workers that are alive.
  void warn();

 private:
  [[nodiscard]] std::optional<Warnings::Scope> warning_of(
      const DeadlineScan::SoftDueScope& due) const;

  const Context context_;
  std::vector<DeadlineScan::SoftDueScope> noted_;
  LoopThread loop_thread_;
};

}  // namespace filetimer
