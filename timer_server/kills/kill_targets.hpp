// The processes that a kill signals.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/settings/settings.hpp"
#include "timer_server/system/event_loop.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {

// Returns whether a thread of the process runs, or is in uninterruptible sleep. Such a thread may
// be inside fork(), which then completes in spite of a SIGSTOP. Does not look at the threads of a
// process with very many, and returns true.
bool may_be_forking(pid_t pid);
using MayBeForking = std::function<bool(pid_t)>;

// Returns the processes that an earlier server has sent the signal and that are alive, without
// those of `excluded`.
std::vector<Process> alive_after(const SentSignal& sent, std::span<const pid_t> excluded);

// The kill targets of one worker: the worker itself, and with KillMode::kTree its descendants. They
// are stopped, signalled and resumed together:
//
//   targets.begin_stop();
//   while (!targets.find_and_stop()) {
//     targets.wait_until_stopped(until);
//   }
//   SentSignal sent = targets.send(SIGTERM);
//   targets.send_to_orphans(sent, sessions);
//   targets.resume();
//
// A process that a target starts between the last look and the signal would live on as an orphan
// with the worker's memory and devices. A stopped process starts no other, so the targets are
// complete when a look at stopped processes finds no new one. A fork() that is under way still
// completes after SIGSTOP, so a target that may be inside fork() is waited for; a sleeping target
// stops before it runs again. One look is enough for a sleeping worker without children.
class KillTargets {
 public:
  KillTargets(std::shared_ptr<const Process> worker, KillMode mode, std::vector<pid_t> excluded,
              MayBeForking may_be_forking = filetimer::may_be_forking)
      : worker_(std::move(worker)),
        mode_(mode),
        excluded_(std::move(excluded)),
        may_be_forking_(std::move(may_be_forking)) {}

  // Leaves the worker the only target, as with KillMode::kProcess.
  void spare_others() {
    mode_ = KillMode::kProcess;
    ends_.clear();  // before their descriptors are closed: other files may get these numbers
    others_.clear();
  }
  // Finds the descendants of the worker that are there now. Adds the processes that an earlier
  // server has sent one of these signals: their parents may have ended since. Sends SIGCONT to all
  // that are stopped: that server may have been killed between its SIGSTOP and its SIGCONT.
  void adopt(std::span<const SentSignal> signals);
  // Which targets are stopped before a signal. A shell takes its terminal back from a job that
  // stops, so a worker that may handle the signal and go on is not stopped in its sleep.
  enum class Stop { kAll, kForking };
  // Sends SIGSTOP to the worker and to the targets that are known. With KillMode::kProcess no
  // target is stopped: the worker has no others that it could start.
  void begin_stop(Stop which = Stop::kAll);
  // Finds new targets and stops them. Returns whether the targets are complete: none is new, and
  // none may have started another. The second look that finds new targets and stops none of them is
  // the last, because targets that run may start others without end.
  bool find_and_stop();
  // Waits at most until `until` for the targets that may have been inside fork() when they were
  // stopped.
  void wait_until_stopped(Instant until);

  // Sends the signal to all targets, children before their parents and the worker last: when the
  // last parent of a process group exits, the kernel sends SIGHUP to the stopped processes of that
  // group. Forgets targets that the server may not signal.
  SentSignal send(int signal);
  // Finds descendants whose parents had ended, and sends them the same signal: the rest of the
  // session that the worker led when it was stopped, unless the server is in this session, and if
  // the worker is COMMAND the orphans of the server. Adds their pids to `sent`. They are not
  // stopped before: the next server would not find them to send SIGCONT.
  void send_to_orphans(SentSignal& sent, Sessions& sessions);
  // Sends SIGCONT, unless the last signal was one that a stopped process acts on.
  void resume() const;

  // Calls `on_end` when one of the other targets ends. The owner of the workers watches the worker:
  // a loop can watch a descriptor once.
  void watch_ends(EventLoop& loop, const std::function<void()>& on_end);
  // Returns the pids of the other targets that are alive.
  [[nodiscard]] std::vector<pid_t> others_alive() const;

 private:
  void find();
  std::vector<Process> own_orphans() const;
  // These return whether a process was stopped, or has ended.
  bool stop_new();
  bool stop(const Process& process);
  bool send_to(const Process& process, SentSignal& sent) const;

  const std::shared_ptr<const Process> worker_;
  KillMode mode_;
  const std::vector<pid_t> excluded_;
  const MayBeForking may_be_forking_;
  std::vector<Process> others_;                // without the worker
  std::unordered_map<int, EventSource> ends_;  // of others that were signalled, by pidfd
  Stop which_ = Stop::kAll;                    // are stopped
  bool leads_session_ = false;
  bool is_only_child_ = false;
  std::size_t stopped_ = 0;        // of others_, by the stop that is under way
  bool has_looked_again_ = false;  // a look of that stop has found new ones and stopped none
  std::vector<pid_t> running_;     // targets that were stopped and may have been inside fork()
  Instant stopped_at_;             // when the last one was
  int last_signal_ = 0;            // 0: none was sent
};

}  // namespace filetimer
