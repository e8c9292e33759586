// The deadline scan: which scopes are due.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "common/clock.hpp"
#include "common/due.hpp"
#include "timer_server/core.hpp"
#include "timer_server/evidence/proc_evidence.hpp"
#include "timer_server/watch/lost_time.hpp"

namespace filetimer {

// Reads all pages, gives the verdict on each scope that is due (an atomic change of its slot), and
// writes to the status page when the server looks next. Does not act on a verdict: the caller must
// carry out everything that run() returns.
//
//   if (scan.next() <= woke) {
//     DeadlineScan::Found found = scan.run(woke, next_sweep);
//   }
class DeadlineScan {
 public:
  // How long before a deadline the server makes ready for it and waits awake. On a single processor
  // a worker that is about to release its scope could not run meanwhile.
  static inline const Duration kLead{
      std::thread::hardware_concurrency() > 1 ? std::chrono::microseconds{400} : Duration::zero()};
  // How soon it looks again for a release of a scope that a kill holds up.
  static constexpr Duration kHeldUpLook = std::chrono::milliseconds{20};

  DeadlineScan(Core& core, HaltedWorkers& halted) : core_(core), halted_(halted) {}

  struct DueWorker {
    Worker* worker = nullptr;
    std::vector<PageVerdict> scopes;  // the earliest deadline first
  };
  // A scope whose soft deadline has passed, or that is to be signalled first.
  struct SoftDueScope {
    std::shared_ptr<const Process> process;
    std::shared_ptr<WorkerPage> page;
    WorkerPage::Due slot;
    bool is_to_be_signalled = false;
  };
  // A page that is no longer valid although its worker may still run.
  struct LostPage {
    Worker* worker = nullptr;
    std::shared_ptr<WorkerPage> page;
    bool is_of_another_program = false;  // otherwise the page was truncated
  };
  struct Found {
    std::vector<DueWorker> due;    // the one whose deadline came first stands first
    std::vector<Worker*> held_up;  // with scopes that are due, but a kill is under way
    std::vector<SoftDueScope> soft;
    std::vector<LostPage> lost;
    std::vector<Worker*> soon;  // with a deadline within the lead of the CPU sample
    // The open scopes of workers that got the time back in which no scan had seen one.
    std::size_t unseen_scopes = 0;
    Duration unseen_for{};       // the longest such time
    Worker* next = nullptr;      // the one that is due at next(), within kLead; null: none
    std::vector<Worker*> close;  // all that are due within kLead
  };

  // Judges every scope by the time `woke`: a scope that was released before its deadline, and
  // before `woke`, was read as released. A deadline after `woke` is judged in the next scan. The
  // status page says that the server looks at `next_sweep` at the latest.
  Found run(Instant woke, Instant next_sweep);

  // Lets the server look as often as a scope with this timeout wants, which was opened at `now`.
  void want_looks_for(Duration timeout, Instant now) {
    if (timeout < shortest_) {
      shortest_ = timeout;
      want_by(now + looks().pause);
    }
  }
  // Makes next() return at most `time`.
  void want_by(Instant time) { next_ = std::min(next_, time); }
  // Makes next() return at most `deadline` minus the longest lead that begins after `now`. Does
  // nothing if `deadline` is never().
  void want_before(Instant deadline, Instant now) {
    const Duration left = deadline - now;
    const Duration lead = left > kLead ? kLead : Duration::zero();
    const Duration longest = left > lead_ ? std::max(lead_, lead) : lead;
    want_by(deadline.is_never() ? deadline : deadline + -longest);
  }
  // Returns when run() must be called: at a deadline, for the next of the looks, or at once.
  [[nodiscard]] Instant next() const { return core_.wants_scan ? Instant{} : next_; }
  // Returns how often the server looks, by the scopes that the last scan has found.
  [[nodiscard]] Looks looks() const { return looks_for(shortest_); }

 private:
  // The next scan finds whether the scope was released meanwhile.
  void note_held_up(Worker& worker, Instant woke, Found& found) {
    found.held_up.push_back(&worker);
    want_by(woke + kHeldUpLook);
  }
  void scan_worker(Worker& worker, Instant woke, Found& found);
  void give_back_unseen_time(Worker& worker, Instant now, Found& found);
  // Returns whether another server may have got the lines of the workers.
  [[nodiscard]] bool is_pipe_taken() const {
    return core_.directory.pipe().condition() == RequestPipe::Condition::kTakenOver;
  }
  bool judge(Worker& worker, const std::shared_ptr<WorkerPage>& page, Instant woke, Found& found,
             std::vector<PageVerdict>& judged);
  void judge_idleness(Worker& worker, const WorkerPage::Activity& activity, Instant woke,
                      Found& found, std::vector<PageVerdict>& judged);

  Core& core_;
  HaltedWorkers& halted_;
  // How long before a deadline found.soon names its worker, for the CPU sample; zero: not.
  const Duration lead_ =
      core_.settings.kill.evidence == EvidenceLevel::kNone ? Duration::zero() : CpuSample::kLead;
  Instant next_;
  Instant scanned_ = Instant::never();  // when the last scan began
  Instant wakes_before_;                // what the status page says
  Duration shortest_ = kForever;        // of the timeouts of open scopes
  WorkerPage::Found on_page_;           // of the page that is judged; its memory is reused
};

}  // namespace filetimer
