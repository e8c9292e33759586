// Recovery: takes over the scopes and kills of an earlier server.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "timer_server/core.hpp"
#include "timer_server/kills/kills.hpp"
#include "timer_server/watch/registry.hpp"

namespace filetimer {

// Adopts scopes, and finishes kills that an earlier server has begun. No scope is judged twice and
// no verdict is lost, at whatever moment the earlier server was killed:
//
//   kill file                    what Recovery does
//   none, no verdict             nothing: the scope is judged when it is due
//   none, verdict on the page    opens the scope again; it is judged at once
//   of a kill under way          continues the kill under the same id, where it was
//   of a kill that has ended     writes the records that the log may lack; ends the verdict
//
// Made before the first iteration, used once, and destroyed.
class Recovery {
 public:
  Recovery(Core& core, WatchRegistry& registry, Kills& kills)
      : core_(core), registry_(registry), kills_(kills) {}

  // Returns the number of adopted scopes.
  std::size_t adopt();
  // Continues the kills. Called after adopt().
  void resume_kills() {
    for (KillState& past : past_) {
      resume_kill(past);
    }
  }

 private:
  struct PastVerdict {
    KillState* kill = nullptr;  // null: none
    Expiry* expiry = nullptr;
  };
  PastVerdict past_verdict(pid_t pid, std::uint64_t start_time, const SlotReading& scope);
  [[nodiscard]] bool is_cancelled(const KillState& past, const SlotReading& scope) const;
  WatchRegistry::HasEnded has_ended(bool is_on_pipe = false);
  void adopt_pipe_page(pid_t pid);
  Worker* worker_of(PipePage& page, pid_t pid);
  void settle_judged_slots(const Worker& worker, const std::shared_ptr<WorkerPage>& page);
  void resume_kill(KillState& past);
  [[nodiscard]] bool has_targets(const KillState& order) const;
  void finish_kill(const KillState& order, const Worker* worker);
  Result<Worker*> find_or_watch(const KillState& past);

  Core& core_;
  WatchRegistry& registry_;
  Kills& kills_;
  std::vector<KillState> past_ = core_.kill_files.read();
};

}  // namespace filetimer
