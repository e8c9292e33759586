// A mutex and a condition variable that clang's thread-safety analysis understands.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define FILETIMER_THREAD_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define FILETIMER_THREAD_ATTRIBUTE(attribute)
#endif
// Of a member: is read and written with the mutex held.
#define FILETIMER_GUARDED_BY(mutex) FILETIMER_THREAD_ATTRIBUTE(guarded_by(mutex))
// Of a function: is called with the mutex held.
#define FILETIMER_REQUIRES(mutex) FILETIMER_THREAD_ATTRIBUTE(requires_capability(mutex))

namespace filetimer {

// A std::mutex for members that carry FILETIMER_GUARDED_BY. Held by a MutexLock.
class FILETIMER_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a Mutex for as long as it lives.
//
//   const MutexLock lock(mutex_);
//   ++count_;  // FILETIMER_GUARDED_BY(mutex_)
class FILETIMER_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FILETIMER_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() FILETIMER_THREAD_ATTRIBUTE(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() FILETIMER_THREAD_ATTRIBUTE(release_capability()) { lock_.unlock(); }
  void lock() FILETIMER_THREAD_ATTRIBUTE(acquire_capability()) { lock_.lock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

// A std::condition_variable for MutexLock. Callers wait in a loop that checks the condition: the
// analysis does not look into predicates.
class ConditionVariable {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }
  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  // Returns false if `until` has come.
  template <class Clock, class Duration>
  bool wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& until) {
    return condition_.wait_until(lock.lock_, until) == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace filetimer
