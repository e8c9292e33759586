// The workers that the server watches.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/result.hpp"
#include "timer_server/scopes/pipe_page.hpp"
#include "timer_server/scopes/worker_page.hpp"
#include "timer_server/system/event_loop.hpp"
#include "timer_server/system/messages.hpp"
#include "timer_server/system/process.hpp"
#include "timer_server/system/worker_facts.hpp"

namespace filetimer {

// A worker as records name it; outlives the worker's place in the table.
struct WorkerIdentity {
  std::shared_ptr<const Process> process;
  // What the pages claim, until a side thread has read them. Shared with the records that wait.
  std::shared_ptr<WorkerFacts> facts = std::make_shared<WorkerFacts>();
  [[nodiscard]] const std::string& comm() const {
    return facts->comm.empty() ? process->comm : facts->comm;
  }
};

// Limits the recorded warnings of one worker to kMaxWarningsPerWorker in a kWarningPeriod, so that
// a loop whose every step passes its soft deadline does not fill the log.
class WarningLimit {
 public:
  struct Share {
    std::size_t count = 0;    // how many of the wanted warnings may be recorded
    std::size_t omitted = 0;  // not recorded before them; for the first of their records
  };
  // Takes `wanted` warnings, of scopes that were found from `first` to `last`, from what is left of
  // the limit. Reports omitted warnings once.
  Share take(std::size_t wanted, Instant first, Instant last) {
    std::erase_if(recorded_, [first](Instant at) { return first - at >= kWarningPeriod; });
    Share share;
    share.count = std::min(wanted, kMaxWarningsPerWorker - recorded_.size());
    recorded_.insert(recorded_.end(), share.count, last);
    if (share.count > 0) {
      share.omitted = std::exchange(omitted_, 0);
    }
    omitted_ += wanted - share.count;
    return share;
  }

 private:
  std::vector<Instant> recorded_;  // in a period
  std::size_t omitted_ = 0;
};

struct CpuSample;  // evidence/proc_evidence.hpp

struct Worker : WorkerIdentity {
  // All its scopes: a page for each client library in the process, and `pipe`.
  std::vector<std::shared_ptr<WorkerPage>> pages;
  std::shared_ptr<PipePage> pipe;    // null: no request has come over the pipe
  StatisticsByName lost_statistics;  // of removed pages, not yet recorded
  EventSource exit;                  // wakes the loop when the process exits
  // The last end of a scope on the pipe, a release or a verdict, or the last look inside a scope.
  Instant left_on_pipe;
  // No release before that counts for an idle timeout: the last deadline of a scope whose line was
  // rejected, because its end is not seen; of one without a deadline, when its line was read.
  Instant unwatched_until;
  LostTime lost;  // in which it was halted, or a scope of it had not been seen
  struct Halt {
    std::string why;
    Instant from;  // the last look at all workers before it was noticed
    bool is_recorded = false;
  };
  std::optional<Halt> halt;  // none: it is not known to be halted
  Instant found_running;     // by HaltedWorkers::look_ahead()
  // Whether a kill of the worker is under way: kBegun until it ends or a signal is sent that is
  // SIGKILL or that SIGKILL follows. Scopes of a dying worker are not judged.
  enum class Kill { kNone, kBegun, kDying };
  Kill kill = Kill::kNone;
  WarningLimit warning_limit;
  std::shared_ptr<const CpuSample> cpu_sample;  // from before its next deadline; null: none
  Instant cpu_sampled;                          // when that was asked for
  bool is_due_soon = false;                     // by the last scan: another scan follows
  // The number of the reading of the pipe in which the process was last seen alive.
  std::uint64_t seen_alive_in = 0;

  // Returns whether the worker has no scope that is watched.
  [[nodiscard]] bool has_no_scopes() const {
    return pages.empty() || (pages.size() == 1 && pipe && pipe->is_empty());
  }
  [[nodiscard]] bool has_kill() const { return kill != Kill::kNone; }
  [[nodiscard]] bool is_dying() const { return kill == Kill::kDying; }
};

// The watched workers by pid.
class Workers {
 public:
  // Returns the worker, or null if the pid is not watched.
  [[nodiscard]] Worker* find(pid_t pid) {
    const auto found = workers_.find(pid);
    return found == workers_.end() ? nullptr : &found->second;
  }
  // Returns the worker that is this very process, or null if it is not watched any more.
  [[nodiscard]] Worker* find(const Process& process) {
    Worker* const worker = find(process.pid);
    return worker != nullptr && worker->process.get() == &process ? worker : nullptr;
  }
  // Adds a process whose pid is not watched.
  Worker& add(Process process) {
    auto shared = std::make_shared<const Process>(std::move(process));  // first, as it may fail
    Worker& worker = workers_[shared->pid];
    worker.process = std::move(shared);
    return worker;
  }
  // Removes and destroys the worker.
  void remove(const Worker& worker) {
    unsaved_.erase(worker.process->pid);
    workers_.erase(worker.process->pid);
  }

  [[nodiscard]] std::size_t count() const { return workers_.size(); }
  // Returns the number of open scopes without a verdict.
  [[nodiscard]] std::size_t count_open_scopes() const {
    std::size_t count = 0;
    for (const auto& [pid, worker] : workers_) {
      for (const auto& page : worker.pages) {
        count += page->watched_count();
      }
    }
    return count;
  }

  // Notes that the worker's pipe page is to be saved, if it has changed or could not be saved.
  void note_unsaved(const Worker& worker) {
    if (worker.pipe && worker.pipe->needs_save()) {
      unsaved_.insert(worker.process->pid);
    }
  }
  // Notes that the job of a worker is known, which its page records.
  void note_facts(pid_t pid) { unsaved_.insert(pid); }
  // Saves the noted pages, once an iteration and before anything is judged, so that the next server
  // finds every scope. Prints an error that differs from the last one. After an error the timers
  // are watched, but the next server does not find them unless a later call saves the page.
  void save_pages() {
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

  template <class Visit>
  void for_each(Visit&& visit) {
    for (auto& [pid, worker] : workers_) {
      visit(worker);
    }
  }

 private:
  std::unordered_map<pid_t, Worker> workers_;
  std::unordered_set<pid_t> unsaved_;
  std::string last_error_;  // of save_pages()
};

}  // namespace filetimer
