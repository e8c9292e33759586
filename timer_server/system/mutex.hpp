// A mutex that clang's thread-safety analysis understands.
// SPDX-License-Identifier: MIT
#pragma once

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
class FILETIMER_THREAD_ATTRIBUTE(capability("mutex")) Mutex : std::mutex {
  friend class MutexLock;
};

// Holds a Mutex for as long as it lives.
//
//   const MutexLock lock(mutex_);
//   ++count_;  // FILETIMER_GUARDED_BY(mutex_)
//
// A std::condition_variable waits with it, in a loop that checks the condition: the analysis does
// not look into predicates.
class FILETIMER_THREAD_ATTRIBUTE(scoped_lockable) MutexLock : public std::unique_lock<std::mutex> {
 public:
  explicit MutexLock(Mutex& mutex) FILETIMER_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : unique_lock(mutex) {}
  ~MutexLock() FILETIMER_THREAD_ATTRIBUTE(release_capability()) = default;

  void unlock() FILETIMER_THREAD_ATTRIBUTE(release_capability()) { unique_lock::unlock(); }
  void lock() FILETIMER_THREAD_ATTRIBUTE(acquire_capability()) { unique_lock::lock(); }
};

}  // namespace filetimer
