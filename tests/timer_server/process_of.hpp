// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <utility>

#include "tests/support/children.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {

// Returns a child of the test as the Process of a worker.
inline Process process_of(const HeldChild& child) {
  return std::move(*open_process(child.pid()));
}

// Memory in which children report their pids to the test.
struct SharedPids {
  std::atomic<pid_t>* pids = static_cast<std::atomic<pid_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ~SharedPids() { ::munmap(pids, 4096); }
};

}  // namespace filetimer
