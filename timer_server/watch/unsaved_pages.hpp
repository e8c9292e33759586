// Pipe pages that have changed since they were saved.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <unordered_set>

#include "timer_server/scopes/workers.hpp"
#include "timer_server/system/loop_thread.hpp"

namespace filetimer {

// Saves the pages that the server keeps for workers of the request pipe, once an iteration and
// before anything is judged, so that the next server finds every scope. Used on the loop thread.
class UnsavedPages {
 public:
  // Notes the worker if its pipe page has changed, or could not be saved.
  void note(const Worker& worker);
  // Notes that the job of a worker is known, which its page records.
  void note_facts(pid_t pid) { pids_.insert(pid); }
  // Forgets a worker that is removed.
  void forget(pid_t pid) { pids_.erase(pid); }
  // Saves the pages of the noted workers. Prints an error that differs from the last one. After an
  // error the timers are watched, but the next server does not find them unless a later call saves
  // the page.
  void save(Workers& workers);

 private:
  std::unordered_set<pid_t> pids_;
  std::string last_error_;
  LoopThread loop_thread_;
};

}  // namespace filetimer
