// The registry: which processes are watched, from their first request to their end, and which files
// in `scopes` are read for them.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/page_reader.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/core.hpp"
#include "timer_server/scopes/worker_page.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {

// Admits processes as workers and removes those that have exited. A worker is a process of the
// server's user, neither the server nor one of its ancestors; its pid always means the process that
// has it now.
//
// Registers the pages that workers make, and removes them when their worker exits. The owner of a
// page is the process that holds its lock; the folder keeps the owner's identity, so that a worker
// that loses the lock keeps its page over a restart of the server. A page whose owner has exited is
// orphaned: its open scopes are recorded as left open, and its file is removed.
class WatchRegistry : NotCopied {
 public:
  // `on_remove` is called before a worker is removed: the owner of its scopes removes them. `flush`
  // is called before a worker's scopes are recorded as left open, with the reason: it writes the
  // records that stand before these.
  WatchRegistry(Core& core, std::function<void(Worker&)> on_remove,
                std::function<void(const Worker&, std::string_view)> flush)
      : core_(core), on_remove_(std::move(on_remove)), flush_(std::move(flush)) {}

  // --- workers ---

  // Begins a batch of requests, which were written before this call.
  void begin_batch() {
    ++batch_;
    refused_in_batch_.clear();
    refused_names_in_batch_.clear();
  }
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
  // release that a worker wrote before its exit must be read first. One for which there is no
  // memory is removed by a later call.
  void remove_exited_workers();
  // Returns whether it left one.
  [[nodiscard]] bool has_exited_workers() const { return !exited_.empty(); }
  void remove(Worker& worker) {
    on_remove_(worker);
    core_.workers.remove(worker);
  }

  // --- pages ---

  // Returns whether a kill of an earlier server has ended a scope of that process: the scope was
  // judged, or the kill cancels it.
  using HasEnded = std::function<bool(pid_t, std::uint64_t start_time, const SlotReading&)>;
  // Registers the pages that an earlier server has left. Believes the folder where a page has no
  // owner. Called once, before the first iteration.
  void adopt(const HasEnded& has_ended);
  // Records the scopes of a process that exited while no server was running, except those that
  // `has_ended` knows.
  void record_orphaned_scopes(const PageClaims& claims, pid_t pid,
                              const std::vector<SlotReading>& scopes, std::string_view reason,
                              const HasEnded& has_ended);
  [[nodiscard]] std::size_t orphaned_scopes() const { return orphaned_scopes_; }
  // Lets the records of as many orphaned scopes be written again. Called by sweeps.
  void forget_orphaned_scopes() { orphaned_scopes_ = 0; }

  // Takes a wake-up message, which names a page: registers the page if it is new.
  void on_wake_up_message(std::string_view name);
  // Registers pages for which no wake-up message has come, some at a time. Called by sweeps.
  // Returns whether it has looked at all of them.
  bool look_for_pages();
  // Registers all pages. A full pipe may have had room for no wake-up message.
  void look_after_full_pipe();

  // Removes a page of a worker that still runs: the worker has executed another program or
  // truncated the page. `reason` is for the records of its open scopes; empty: they are not
  // recorded.
  void remove_page(Worker& worker, const WorkerPage& page, std::string_view reason) {
    take_out(worker, page, reason);
    append_statistics(worker);
  }
  // Removes all pages of a worker that has exited, the pipe page included, and records its
  // statistics.
  void remove_pages(Worker& worker, std::string_view reason) {
    while (!worker.pages.empty()) {
      take_out(worker, *worker.pages.back(), reason);
    }
    append_statistics(worker);
  }
  // Records the statistics of all workers that are alive. Called when a server ends whose runtime
  // directory is removed: no other server will record them.
  void record_statistics_of_living_workers() const;
  [[nodiscard]] bool has(const WorkerPage& page) const { return pages_.contains(page.name()); }

  // Reasons, for records.
  static constexpr std::string_view kAnotherBoot = "the machine was restarted";
  static constexpr std::string_view kStartedAnother =
      "the worker started another program inside the scope";

 private:
  Result<Worker*> admit(pid_t pid, Instant written);
  Result<Worker*> watch(Process process);
  bool make_room();
  void read_facts(const Worker& worker);
  void look_at(const std::string& name);
  void refuse(const std::string& name, const Error& reason);
  void skip(const std::string& name, bool may_end);
  void find_owner(const std::shared_ptr<MappedPage>& page, const Error& why_none);
  void add(Worker& worker, const std::shared_ptr<MappedPage>& page);
  Result<Worker*> owner_of(MappedPage& page);
  // Returns the owner that an earlier server confirmed; nothing unless this server starts.
  [[nodiscard]] std::optional<PageFolder::Owner> confirmed_owner(const MappedPage& page) const {
    return has_ended_ ? core_.directory.pages().confirmed_owner(page.name()) : std::nullopt;
  }
  Result<Process> open_owner(MappedPage& page) const;
  bool make_room_to_wait();
  void wait_for_exit(const std::string& name, Process process);
  void remove_orphan(MappedPage& page, std::string_view reason);
  bool remove_lost_page(Worker& worker);
  void take_out(Worker& worker, const WorkerPage& page, std::string_view reason);
  // Writes one record for all pages of a worker; none if the worker has counted no scope.
  void append_statistics(const WorkerIdentity& worker, const StatisticsByName& statistics) const {
    if (!statistics.empty()) {
      core_.log->append_detail(core_.records.worker_ended(worker, statistics));
    }
  }
  // Writes that of the pages that have been taken out.
  void append_statistics(Worker& worker) const {
    append_statistics(worker, worker.lost_statistics);
    worker.lost_statistics.clear();  // not before: for want of memory the caller tries again
  }

  Core& core_;
  const std::function<void(Worker&)> on_remove_;
  const std::function<void(const Worker&, std::string_view)> flush_;
  // Of the workers' environments: WorkerFacts::variables.
  const std::vector<std::string> variables_ = variables_needed_by(core_.settings.drop_ins);
  std::uint64_t batch_ = 0;
  std::unordered_map<pid_t, Error> refused_in_batch_;
  std::vector<pid_t> exited_;              // their exit has woken the loop
  std::unordered_set<std::string> pages_;  // the names of those that are registered
  // Names that look_for_pages() skips, and whether the reason may end: then it skips the name until
  // it has looked at all others.
  std::unordered_map<std::string, bool> refused_;
  bool has_looked_at_all_ = false;  // since pages that were refused for now were looked at again
  std::unordered_set<std::string> refused_names_in_batch_;  // messages do not look at them again
  HasEnded has_ended_;                                      // set while adopt() runs
  std::size_t orphaned_scopes_ = 0;
  // Pages without an owner whose process is alive: it may be exiting, or have started another
  // program.
  struct Free {
    Process process;
    EventSource exit;
    bool is_refused = false;  // there is a record of it
  };
  std::unordered_map<std::string, Free> free_;  // by name
};

// Returns whether the process runs another program than the one that made the page. The kernel puts
// the stack of each new program somewhere else. Returns false where that cannot be seen.
bool runs_another_program(const Process& process, const WorkerPage& page);

}  // namespace filetimer
