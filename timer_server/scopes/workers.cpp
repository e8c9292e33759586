// SPDX-License-Identifier: MIT
#include "timer_server/scopes/workers.hpp"

#include <fmt/format.h>

#include <utility>

#include "common/limits.hpp"

namespace filetimer {

Worker* Workers::find(pid_t pid) {
  if (last_found_ != nullptr && last_found_->process->pid == pid) {
    return last_found_;
  }
  const auto found = workers_.find(pid);
  if (found == workers_.end()) {
    return nullptr;
  }
  last_found_ = &found->second;
  return last_found_;
}

Result<Worker*> Workers::add(Process process) {
  if (workers_.size() >= kMaxWorkers) {
    return failure(fmt::format("{} workers are watched: no more fit", kMaxWorkers));
  }
  const pid_t pid = process.pid;
  auto shared = std::make_shared<const Process>(std::move(process));  // before a worker without one
  Worker& worker = workers_[pid];
  worker.process = std::move(shared);
  return &worker;
}

void Workers::remove(const Worker& worker) {
  if (last_found_ == &worker) {
    last_found_ = nullptr;
  }
  workers_.erase(worker.process->pid);
}

}  // namespace filetimer
