// Keeps a process alive if a page, or the status page, is cut short. Another process of the user
// can truncate the file at any moment, and an access to the missing part of a mapping raises
// SIGBUS.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/limits.hpp"

namespace filetimer {

// While a BusGuard lives, the first SIGBUS in its memory replaces the file by zeroes permanently,
// and the instruction runs again. is_broken() is true from then on: the other side does not see
// this memory any more, and what was read since the fault must not be used.
//
// The first guard of the process installs the handler of SIGBUS. The handler passes a fault
// elsewhere to the handler that was installed before. A handler that is installed later replaces
// this one, and then handles faults in guarded memory, too.
//
// A BusGuard may be made and destroyed in any thread, but not in two at a time. is_broken() may be
// called in any thread. The memory must stay mapped as long as the guard lives.
class BusGuard {
 public:
  // Guards nothing, and is not armed, if kMaxGuards are alive or there is no memory: a fault then
  // ends the process, as without a guard.
  BusGuard(void* begin, std::size_t bytes);
  BusGuard(const BusGuard&) = delete;
  BusGuard& operator=(const BusGuard&) = delete;
  ~BusGuard();

  [[nodiscard]] bool is_armed() const { return range_ != nullptr; }
  [[nodiscard]] bool is_broken() const;

  // A worker has two for each runtime directory that it has used, and for each that was made again;
  // a server has one for each page, of which it reads eight of a worker.
  static constexpr std::size_t kMaxGuards = 8 * kMaxWorkers + 1024;

  struct Range;  // an entry of the handler's list

 private:
  Range* range_;  // null: no entry was free
};

}  // namespace filetimer
