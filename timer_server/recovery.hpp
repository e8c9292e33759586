// Recovery: takes over the scopes and kills of an earlier server.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "timer_server/kills/verdicts.hpp"
#include "timer_server/records/past_verdicts.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/scopes/page_folder.hpp"
#include "timer_server/scopes/workers.hpp"
#include "timer_server/watch/page_registry.hpp"
#include "timer_server/watch/scope_policy.hpp"
#include "timer_server/watch/unsaved_pages.hpp"
#include "timer_server/watch/worker_registry.hpp"

namespace filetimer {

// Adopts scopes, and finishes kills that an earlier server has begun. No scope is judged twice and
// no verdict is lost, at whatever moment the earlier server was killed:
//
//   state of the log and the page         what Recovery does
//   no verdict                            nothing: the scope is judged when it is due
//   verdict on the page, no record        opens the scope again; it is judged at once
//   record of the verdict, none of its end    continues the kill under the same id
//   record of the end, verdict on the page    ends the verdict on the page
//
// Made before the first iteration, run once, and destroyed. Used on the loop thread.
class Recovery {
 public:
  struct Context {
    Workers& workers;
    WorkerRegistry& registry;
    PageRegistry& pages;
    const PageFolder& folder;
    const ScopePolicy& policy;
    UnsavedPages& unsaved;
    const Records& records;
    RecordLog& log;
    Verdicts& verdicts;
  };
  // `past`: the verdicts of earlier servers, see read_past_verdicts().
  Recovery(Context context, std::vector<PastVerdict> past)
      : context_(context), past_(std::move(past)) {}

  // Returns the number of adopted scopes.
  std::size_t run();

 private:
  PastVerdict* past_verdict(pid_t pid, std::uint64_t start_time, const SlotReading& scope);
  PageRegistry::WasJudged was_judged();
  void adopt_pipe_page(pid_t pid);
  Worker* worker_of(PipePage& page, pid_t pid);
  void restore_scopes(Worker& worker, PipePage& page);
  void settle_judged_slots(const Worker& worker, const std::shared_ptr<WorkerPage>& page);
  void restore_idleness(const PastVerdict& verdict);
  void resume_kills();
  void resume_kill(pid_t pid, std::uint64_t start_time, const std::vector<PastVerdict*>& verdicts);
  Worker* find_or_watch(pid_t pid, std::uint64_t start_time);
  void record_exited(KillOrder order, pid_t pid, std::uint64_t start_time,
                     const std::vector<PastVerdict*>& verdicts);

  const Context context_;
  std::vector<PastVerdict> past_;
  std::size_t adopted_scopes_ = 0;
};

}  // namespace filetimer
