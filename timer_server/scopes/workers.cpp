// SPDX-License-Identifier: MIT
#include "timer_server/scopes/workers.hpp"

#include <utility>

#include "timer_server/system/messages.hpp"

namespace filetimer {

Worker* Workers::find(pid_t pid) {
  const auto found = workers_.find(pid);
  return found == workers_.end() ? nullptr : &found->second;
}

Worker* Workers::find(const Process& process) {
  Worker* const worker = find(process.pid);
  return worker != nullptr && worker->process.get() == &process ? worker : nullptr;
}

Worker& Workers::add(Process process) {
  const pid_t pid = process.pid;
  auto shared = std::make_shared<const Process>(std::move(process));  // before a worker without one
  Worker& worker = workers_[pid];
  worker.process = std::move(shared);
  return worker;
}

void Workers::remove(const Worker& worker) {
  unsaved_.erase(worker.process->pid);
  workers_.erase(worker.process->pid);
}

std::size_t Workers::count_open_scopes() const {
  std::size_t count = 0;
  for (const auto& [pid, worker] : workers_) {
    for (const auto& page : worker.pages) {
      count += page->watched_count();
    }
  }
  return count;
}

void Workers::note_unsaved(const Worker& worker) {
  if (worker.pipe && worker.pipe->needs_save()) {
    unsaved_.insert(worker.process->pid);
  }
}

void Workers::save_pages() {
  for (const pid_t pid : unsaved_) {
    Worker* const worker = find(pid);
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
  unsaved_.clear();
}

}  // namespace filetimer
