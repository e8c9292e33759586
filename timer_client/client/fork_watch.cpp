// SPDX-License-Identifier: MIT
#include "timer_client/client/fork_watch.hpp"

#include <sched.h>
#include <sys/mman.h>

#include <new>

namespace filetimer::fork_watch {
namespace {

// Used where the kernel has no MADV_WIPEONFORK (before Linux 4.14, and in some emulations of
// Linux). There only the pthread_atfork handler identifies a child.
constinit std::atomic<unsigned> plain_word{kUnknown};

}  // namespace

constinit std::atomic<unsigned>* word = &plain_word;

void start() {
  constexpr std::size_t kBytes = 4096;
  void* const page =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    return;
  }
  if (::madvise(page, kBytes, MADV_WIPEONFORK) != 0) {
    ::munmap(page, kBytes);
    return;
  }
  word = new (page) std::atomic<unsigned>(kUnknown);
}

void set(unsigned count) {
  word->store(count, std::memory_order_release);  // pairs with the load in begin_noticing()
}

bool begin_noticing() {
  unsigned found = kUnknown;
  if (word->compare_exchange_strong(found, kBusy, std::memory_order_acquire)) {
    return true;
  }
  while (word->load(std::memory_order_acquire) == kBusy) {
    ::sched_yield();
  }
  return false;
}

}  // namespace filetimer::fork_watch
