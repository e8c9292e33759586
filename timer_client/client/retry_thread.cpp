// SPDX-License-Identifier: MIT
#include "timer_client/client/retry_thread.hpp"

#include <algorithm>
#include <chrono>
#include <new>

#include "timer_client/client/own_thread.hpp"
#include "timer_client/client/process_lock.hpp"

namespace filetimer {
namespace {

// How long the thread stays when no message waits, so that a pipe that is often full does not start
// a thread each time.
constexpr Duration kLinger = std::chrono::seconds{1};

std::chrono::steady_clock::time_point steady(Instant instant) {
  // libstdc++'s steady_clock is CLOCK_MONOTONIC.
  return std::chrono::steady_clock::time_point{Duration{instant.ns}};
}

}  // namespace

RetryThread& RetryThread::instance() {
  static RetryThread& thread = *new RetryThread;
  return thread;
}

RetryThread::RetryThread() {
  ProcessLock::instance().call_in_children([]() noexcept { instance().become_child(); });
}

void RetryThread::become_child() noexcept {
  // The child does not have the thread. A condition variable on which the thread waited can be
  // neither used nor destroyed, so a new one is constructed in its place.
  new (&wake_) std::condition_variable;
  is_running_ = false;
}

bool RetryThread::attend(Instant when) noexcept {
  if (!is_running_) {
    // If no thread can be started now, the next call tries again.
    is_running_ = start_own_thread([this] { run(); });
  } else if (when < sleeps_until_) {
    wake_.notify_one();
  }
  return is_running_;
}

void RetryThread::run() {
  auto held = ProcessLock::instance().lock();
  Instant idle_since = Instant::never();
  for (;;) {
    const Instant now = Instant::now();
    const Instant next = work_(now);
    if (!next.is_never()) {
      idle_since = Instant::never();
      sleeps_until_ = next;
      wake_.wait_until(held, steady(next));
      continue;
    }
    idle_since = std::min(idle_since, now);
    if (now - idle_since >= kLinger) {
      is_running_ = false;
      return;
    }
    sleeps_until_ = Instant::never();
    wake_.wait_until(held, steady(idle_since + kLinger));
  }
}

}  // namespace filetimer
