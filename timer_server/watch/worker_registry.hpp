// The registry of workers: which processes are watched, from their first request to their end.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/result.hpp"
#include "timer_server/core.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {

// Admits processes as workers and removes those that have exited. A worker is a process of the
// server's user, neither the server nor one of its ancestors; its pid always means the process that
// has it now.
class WorkerRegistry {
 public:
  // `on_remove` is called before a worker is removed: the owner of its scopes removes them.
  WorkerRegistry(Core& core, std::function<void(Worker&)> on_remove)
      : core_(core), on_remove_(std::move(on_remove)) {}
  WorkerRegistry(const WorkerRegistry&) = delete;
  WorkerRegistry& operator=(const WorkerRegistry&) = delete;

  // Begins a batch of requests, which were written before this call.
  void begin_batch();
  // Returns the worker with the pid of a request of this batch, and admits it if it is new. Returns
  // a worker that has exited as long as no other process has its pid, because its earlier requests
  // count. Fails with ESRCH if there is no such process, and with EAGAIN if there is no room. Fails
  // for a process that started after `written`, because the request is about another process, which
  // had the pid before.
  Result<Worker*> worker_of(pid_t pid, Instant written = Instant::never());
  // Returns the worker for this process, and watches it if it is new. Removes an earlier worker
  // with the same pid.
  Result<Worker*> worker_for(Process process);

  // Removes the workers whose exit has woken the loop. Call it after all requests were read: a
  // release that a worker wrote before its exit must be read first.
  void remove_exited_workers();
  void remove(Worker& worker);

 private:
  Result<Worker*> admit(pid_t pid, Instant written);
  Result<Worker*> watch(Process process);
  void watch_exit(Worker& worker);
  void read_facts(const Worker& worker);

  Core& core_;
  const std::function<void(Worker&)> on_remove_;
  // Of the workers' environments: WorkerFacts::variables.
  const std::vector<std::string> variables_ = variables_needed_by(core_.settings.drop_ins);
  std::uint64_t batch_ = 0;
  std::unordered_map<pid_t, Error> refused_in_batch_;
  std::vector<pid_t> exited_;  // their exit has woken the loop
};

}  // namespace filetimer
