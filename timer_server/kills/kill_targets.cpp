// SPDX-License-Identifier: MIT
#include "timer_server/kills/kill_targets.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <thread>
#include <utility>

#include "common/proc_files.hpp"
#include "timer_server/system/messages.hpp"
#include "timer_server/system/own_children.hpp"

namespace filetimer {

namespace {

// Reading more threads than this would delay the signal, so a process that has more may be forking.
constexpr int kMostThreadsRead = 64;
// How long such a process is waited for after SIGSTOP. A fork() takes less, unless it has to copy
// the page tables of a huge process.
constexpr Duration kForkTime = std::chrono::milliseconds{1};

bool has_many_threads(pid_t pid) {
  const auto process = read_stat(fmt::format("/proc/{}", pid));
  return process && process->threads > kMostThreadsRead;
}

// Returns whether the process has not been reaped: no other one may have its pid.
bool has_its_pid(const Process& process) {
  if (process.is_alive()) {
    return true;
  }
  const auto stat = read_stat(fmt::format("/proc/{}", process.pid));
  return stat && stat->start_time == process.start_time;
}

}  // namespace

bool may_be_forking(pid_t pid) {
  const auto is_busy = [](const Result<ProcStat>& stat) {
    return stat && (stat->state == 'R' || stat->state == 'D');
  };
  // Its state is that of the main thread.
  const auto process = read_stat(fmt::format("/proc/{}", pid));
  if (!process || process->threads == 1 || is_busy(process)) {
    return is_busy(process);
  }
  if (process->threads > kMostThreadsRead) {
    return true;
  }
  return std::ranges::any_of(threads_of(pid), [&](pid_t tid) {
    return tid != pid && is_busy(read_stat(fmt::format("/proc/{}/task/{}", pid, tid)));
  });
}

void KillTargets::find() {
  if (mode_ == KillMode::kTree) {
    std::ranges::move(descendants_of(*worker_, others_, excluded_), std::back_inserter(others_));
  }
}

std::vector<Process> alive_after(const SentSignal& sent, std::span<const pid_t> excluded) {
  std::vector<Process> alive;
  for (std::size_t i = 0; i < std::min(sent.pids.size(), sent.starts.size()); ++i) {
    auto process = retry_for_now([pid = sent.pids[i]] { return open_process(pid); });
    if (process && process->start_time == sent.starts[i] &&
        std::ranges::count(excluded, process->pid) == 0) {
      alive.push_back(std::move(*process));
    }
  }
  return alive;
}

void KillTargets::adopt(std::span<const SentSignal> signals) {
  find();
  for (const SentSignal& sent : signals) {
    for (Process& process : alive_after(sent, excluded_)) {
      if (process.pid != worker_->pid &&
          std::ranges::count(others_, process.pid, &Process::pid) == 0) {
        others_.push_back(std::move(process));
      }
    }
  }
  const auto resume_if_stopped = [](const Process& process) {
    const auto stat = read_stat(fmt::format("/proc/{}", process.pid));
    if (stat && stat->state == 'T') {
      process.send_signal(SIGCONT);
    }
  };
  std::ranges::for_each(others_, resume_if_stopped);
  resume_if_stopped(*worker_);
}

void KillTargets::begin_stop(Stop which) {
  which_ = which;
  leads_session_ = mode_ == KillMode::kTree && ::getsid(worker_->pid) == worker_->pid &&
                   ::getsid(0) != worker_->pid && has_its_pid(*worker_);
  is_only_child_ =
      mode_ == KillMode::kTree && only_child_until(worker_->pid) > 0 && worker_->is_alive();
  stopped_ = 0;
  has_looked_again_ = false;
  running_.clear();
  if (mode_ == KillMode::kTree) {
    stop(*worker_);
    stop_new();
  }
}

bool KillTargets::find_and_stop() {
  find();
  const bool found_none = stopped_ == others_.size();
  const bool is_none_running = running_.empty();
  const bool is_last = !stop_new() && (found_none || std::exchange(has_looked_again_, true));
  return (is_last && is_none_running) || stopped_ >= kMaxTreeProcesses;
}

bool KillTargets::stop_new() {
  bool is_any_stopped = false;
  for (; stopped_ < others_.size(); ++stopped_) {
    is_any_stopped |= stop(others_[stopped_]);
  }
  return is_any_stopped;
}

bool KillTargets::stop(const Process& process) {
  if (may_be_forking_(process.pid)) {
    running_.push_back(process.pid);
  } else if (which_ == Stop::kForking) {
    return false;
  }
  stopped_at_ = Instant::now();
  return process.send_signal(SIGSTOP) || errno != EPERM;
}

void KillTargets::wait_until_stopped(Instant until) {
  constexpr int kLooksWithoutPause = 5;
  for (const pid_t pid : std::exchange(running_, {})) {
    const Instant enough = has_many_threads(pid) ? std::min(until, stopped_at_ + kForkTime) : until;
    for (int look = 1; may_be_forking_(pid) && Instant::now() < enough; ++look) {
      if (look <= kLooksWithoutPause) {
        ::sched_yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds{50});
      }
    }
  }
}

SentSignal KillTargets::send(int signal) {
  SentSignal sent{signal, ClockReading::now(), {}};
  for (std::size_t i = others_.size(); i-- > 0;) {
    if (!send_to(others_[i], sent)) {
      ends_.erase(others_[i].pidfd.get());
      others_.erase(others_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  (void)send_to(*worker_, sent);
  std::ranges::reverse(sent.pids);
  std::ranges::reverse(sent.starts);
  last_signal_ = signal;
  return sent;
}

void KillTargets::send_to_orphans(SentSignal& sent, Sessions& sessions) {
  const auto send_to_each = [&](std::vector<Process> found) {
    for (Process& process : found) {
      // Once the worker has ended its pid may be that of another session.
      if (process.started() <= sent.when.mono && std::ranges::count(excluded_, process.pid) == 0 &&
          process.send_signal(sent.signal)) {
        sent.add(process);
        others_.push_back(std::move(process));
      }
    }
  };
  if (leads_session_) {
    send_to_each(session_of(*worker_, others_, sessions));
  }
  if (is_only_child_) {
    send_to_each(own_orphans());
  }
}

std::vector<Process> KillTargets::own_orphans() const {
  const auto server = open_process(::getpid());
  if (!server) {
    return {};  // no descriptors
  }
  std::vector<pid_t> known = own_children();
  std::ranges::transform(others_, std::back_inserter(known), &Process::pid);
  std::vector<Process> all = descendants_of(*server, {}, known);
  const std::uint64_t until = only_child_until(worker_->pid);
  std::vector<Process> found;
  for (Process& process : all) {
    if (process.start_time < until ||
        std::ranges::find(found, process.ppid, &Process::pid) != found.end()) {
      found.push_back(std::move(process));
    }
  }
  return found;
}

// Returns false if the server may not signal the process, for example a set-uid program.
bool KillTargets::send_to(const Process& process, SentSignal& sent) const {
  // Before the first signal every target was found alive a moment ago.
  const bool may_have_ended = last_signal_ != 0;
  if (may_have_ended && !process.is_alive()) {
    return true;
  }
  if (!process.send_signal(sent.signal)) {
    return errno != EPERM;
  }
  sent.add(process);
  return true;
}

void KillTargets::resume() const {
  if (last_signal_ == SIGKILL || last_signal_ == SIGCONT) {
    return;
  }
  for (auto process = others_.rbegin(); process != others_.rend(); ++process) {
    process->send_signal(SIGCONT);
  }
  worker_->send_signal(SIGCONT);
}

void KillTargets::watch_ends(EventLoop& loop, const std::function<void()>& on_end) {
  for (const Process& process : others_) {
    try {
      EventSource& source = ends_[process.pidfd.get()];
      if (!source) {
        // A pidfd stays readable for ever. With EPOLLET it is reported once.
        source = watch_io(loop, process.pidfd.get(), EPOLLIN | EPOLLET, kDeathsFirst, on_end);
      }
    } catch (const std::exception& error) {
      // The kill looks at all targets when its next step is due.
      messages::debug("the end of pid {} does not wake the server: {}", process.pid, error.what());
    }
  }
}

std::vector<pid_t> KillTargets::others_alive() const {
  std::vector<pid_t> pids;
  for (const Process& process : others_) {
    if (process.is_alive()) {
      pids.push_back(process.pid);
    }
  }
  return pids;
}

}  // namespace filetimer
