// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "common/proc_files.hpp"
#include "timer_server/system/hardening.hpp"
#include "timer_server/system/messages.hpp"
#include "timer_server/watch/registry.hpp"

namespace filetimer {
namespace {

// Later requests of the same batch may be of the process itself.
constexpr int kYounger = ESTALE;

tl::unexpected<Error> younger_than_request(pid_t pid) {
  return failure(fmt::format("pid {} started after the request was written", pid), kYounger);
}

}  // namespace

Result<Worker*> WatchRegistry::worker_of(pid_t pid, Instant written) {
  if (Worker* const known = core_.workers.find(pid)) {
    // One check in a batch is exact, because the batch was read before it: a process that is alive
    // now had this pid when the batch was read.
    if (known->seen_alive_in == batch_ || known->process->is_alive()) {
      known->seen_alive_in = batch_;
      if (written < known->process->started()) {
        return younger_than_request(pid);
      }
      if (known->pipe) {  // else only its page says that it is a worker
        return known;
      }
    } else if (!open_process(pid)) {
      return known;
    } else {
      remove(*known);
    }
  }
  // A lookup takes a few system calls, so it is done once in a batch and not for each line of a
  // flood.
  if (const auto refused = refused_in_batch_.find(pid); refused != refused_in_batch_.end()) {
    return tl::unexpected<Error>(refused->second);
  }
  auto admitted = admit(pid, written);
  if (!admitted && admitted.error().errno_value != kYounger) {
    refused_in_batch_[pid] = admitted.error();
  }
  return admitted;
}

Result<Worker*> WatchRegistry::worker_for(Process process) {
  if (Worker* const known = core_.workers.find(process.pid)) {
    if (known->process->start_time == process.start_time && known->process->is_alive()) {
      return known;
    }
    remove(*known);
  }
  return watch(std::move(process));
}

Result<Worker*> WatchRegistry::admit(pid_t pid, Instant written) {
  if (pid <= 1) {
    return failure(fmt::format("pid is {}: expected a worker's, over 1", pid));
  }
  if (pid == ::getpid()) {
    return failure(fmt::format("pid {} is this server", pid));
  }
  const std::vector<pid_t> above = ancestors_of(::getpid());
  if (std::ranges::find(above, pid) != above.end()) {
    return failure(fmt::format("pid {} has started this server", pid));
  }
  if (Worker* const known = core_.workers.find(pid)) {
    return known;
  }
  auto process = open_process(pid);
  FILETIMER_TRY(process);
  if (process->is_kernel_thread) {
    return failure(fmt::format("pid {} is a thread of the kernel", pid));
  }
  if (process->uid != ::geteuid()) {
    return failure(fmt::format("pid {} belongs to user {}: expected a process of user {}", pid,
                               process->uid, ::geteuid()));
  }
  if (written < process->started()) {
    return younger_than_request(pid);
  }
  return watch(std::move(*process));
}

Result<Worker*> WatchRegistry::watch(Process process) {
  const pid_t pid = process.pid;
  if (!make_room()) {
    return failure(
        fmt::format("{} workers are watched: no more fit (see ulimit -n)", core_.workers.count()),
        EAGAIN);
  }
  Worker& worker = core_.workers.add(std::move(process));
  worker.seen_alive_in = batch_;
  try {
    exited_.reserve(core_.workers.count());  // so that the handler cannot fail
    worker.exit = watch_io(core_.loop, worker.process->pidfd.get(), EPOLLIN | EPOLLONESHOT,
                           kDeathsFirst, [this, pid] { exited_.push_back(pid); });
  } catch (const std::exception& error) {  // its exit would not be noticed
    core_.workers.remove(worker);
    const auto* const of_system = dynamic_cast<const std::system_error*>(&error);
    return failure(fmt::format("pid {} can't be watched: {}", pid, error.what()),
                   of_system != nullptr ? of_system->code().value() : ENOMEM);
  }
  read_facts(worker);
  messages::debug("watching pid {} ({})", pid, worker.process->comm);
  return &worker;
}

// Returns whether one more worker fits. Removes the workers without scopes if it would not.
bool WatchRegistry::make_room() {
  if (core_.workers.count() < most_workers()) {
    return true;
  }
  std::vector<Worker*> without_scopes;
  core_.workers.for_each([&](Worker& worker) {
    // A worker that is being killed stays: it may have released its last scope in time to be
    // spared.
    if (worker.has_no_scopes() && !worker.has_kill()) {
      without_scopes.push_back(&worker);
    }
  });
  for (Worker* worker : without_scopes) {
    remove(*worker);
  }
  return core_.workers.count() < most_workers();
}

// Reads the command line and the rank on a side thread, because a read in /proc may wait for the
// lock of the worker's memory.
void WatchRegistry::read_facts(const Worker& worker) {
  // Weak: a job that waits for a hung one must not hold the pidfd of a worker that has exited.
  core_.side_threads.run(
      [this, weak = std::weak_ptr(worker.process), cell = worker.facts,
       variables = variables_]() -> SideThreads::Delivery {
        const auto process = weak.lock();
        if (!process) {
          return [] {};
        }
        WorkerFacts facts = read_worker_facts(process->pid, variables);
        if (!process->is_alive()) {
          return [] {};  // the facts may be those of a later process with this pid
        }
        return [this, cell, pid = process->pid, facts = std::move(facts)] {
          const WorkerFacts claimed = std::exchange(*cell, facts);
          add_claims(*cell, claimed);
          core_.workers.note_facts(pid);
        };
      },
      SideThreads::Lane::kFacts);
  // So that the lanes of kills have a thread each: when a worker hangs, none may be to be had.
  core_.side_threads.run([]() -> SideThreads::Delivery { return {}; });
  // Reads the files of a worker that a verdict reads. The kernel makes their entries in /proc at
  // the first read, which takes several times as long as a later one.
  core_.side_threads.run(
      [weak = std::weak_ptr(worker.process)]() -> SideThreads::Delivery {
        if (const auto process = weak.lock()) {
          (void)why_halted(process->pid);
          (void)children_of(process->pid, process->pid);
        }
        return {};
      },
      SideThreads::Lane::kSlow);
}

void WatchRegistry::remove_exited_workers() {
  std::erase_if(exited_, [this](pid_t pid) {
    return messages::guard([&] {  // no deadline waits for one for which there is no memory
      // The pid may be in use again by now.
      Worker* const worker = core_.workers.find(pid);
      if (worker != nullptr && !worker->process->is_alive()) {
        remove(*worker);
      }
    });
  });
}

}  // namespace filetimer
