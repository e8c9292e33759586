// The lock that the clients of a process share. It is held across a fork(), so a child of a
// multithreaded program finds no data half changed. A child of a bare clone(), in which no
// pthread_atfork handler has run, notices with its first call that it is a child.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <mutex>

#include "timer_client/client/fork_watch.hpp"

namespace filetimer {

class ProcessLock {
 public:
  // Made when the library is loaded, or by an earlier call. Never destroyed: scopes in static
  // objects and threads may outlive every other static.
  static ProcessLock& instance();

  // Takes the lock, and waits for it.
  [[nodiscard]] std::unique_lock<std::mutex> lock() {
    notice_clone();
    return std::unique_lock(mutex_);
  }
  // Takes the lock only if no thread holds it.
  [[nodiscard]] std::unique_lock<std::mutex> try_lock() {
    notice_clone();
    return {mutex_, std::try_to_lock};
  }

  // Returns a number that differs between a process and its forked children. With the lock.
  [[nodiscard]] unsigned fork_count() const { return fork_count_; }

  // Has `call` called in every forked child, with the lock held, before any other call of the
  // library returns there. At most kMaxCalls.
  using ChildCall = void (*)() noexcept;
  void call_in_children(ChildCall call);
  static constexpr std::size_t kMaxCalls = 4;

 private:
  ProcessLock();
  void notice_clone() noexcept;
  void become_child() noexcept;

  std::mutex mutex_;
  unsigned fork_count_ = 1;
  std::array<ChildCall, kMaxCalls> calls_{};
  std::size_t call_count_ = 0;
};

}  // namespace filetimer
