// The lock that the clients of a process share. It is held across a fork(), so a child of a
// multithreaded program finds no data half changed. A child of a bare clone(), in which no
// pthread_atfork handler has run, notices with its first call that it is a child.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

namespace filetimer {

// Distinguishes a process from its forked children with one load, on every path into the library.
// The kernel wipes the loaded word in a child. So even a child of a bare clone(), in which no
// pthread_atfork handler has run, notices that it is a child before it writes to any data.
namespace fork_watch {

// Set once, by the ProcessLock, before the process can have a client.
extern constinit std::atomic<unsigned>* word;

// Returns a number that differs between a process and its forked children. In a child it differs
// from the number of every timer, also before the ProcessLock knows of it. Relaxed: only this
// process writes the word, before it has a second thread.
inline unsigned count() {
  return word->load(std::memory_order_relaxed);
}

}  // namespace fork_watch

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

  // Has `call` called in every forked child, with the lock held, before any other call of the
  // library returns there.
  using ChildCall = void (*)() noexcept;
  void call_in_children(ChildCall call) { child_calls_.push_back(call); }

 private:
  ProcessLock();
  void notice_clone() noexcept;
  void become_child() noexcept;

  std::mutex mutex_;
  unsigned fork_count_ = 1;
  std::vector<ChildCall> child_calls_;
};

}  // namespace filetimer
