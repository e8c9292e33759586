// SPDX-License-Identifier: MIT
#include "timer_server/watch/unsaved_pages.hpp"

#include "timer_server/system/messages.hpp"

namespace filetimer {

void UnsavedPages::note(const Worker& worker) {
  loop_thread_.check();
  if (worker.pipe && worker.pipe->needs_save()) {
    pids_.insert(worker.process->pid);
  }
}

void UnsavedPages::save(Workers& workers) {
  loop_thread_.check();
  for (const pid_t pid : pids_) {
    Worker* const worker = workers.find(pid);
    if (worker == nullptr || !worker->pipe) {
      continue;
    }
    const Status saved = worker->pipe->save(*worker->process, *worker->facts);
    if (!saved && saved.error().message != last_error_) {
      last_error_ = saved.error().message;
      messages::error("{}; its timers are watched, but the next server would not find them",
                      last_error_);
    }
  }
  pids_.clear();
}

}  // namespace filetimer
