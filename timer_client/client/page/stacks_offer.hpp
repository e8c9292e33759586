// The files to which this process writes its stacks, by the signal on which it does. A program may
// close such a file and open one of its own under the same number, so the handler of the signal
// checks the file before it writes.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include "common/posix.hpp"

namespace filetimer {

// Written with the ProcessLock held; read in signal handlers. While an entry is written, a handler
// may see no file, and writes no stacks.
class StacksOffers {
 public:
  void set(int signal, int file) noexcept {
    const FileIdentity identity = identity_of(file);
    Entry& entry = entries_.at(static_cast<std::size_t>(signal));
    entry.file.store(-1, std::memory_order_relaxed);
    entry.device.store(identity.device, std::memory_order_relaxed);
    entry.inode.store(identity.inode, std::memory_order_relaxed);
    // Pairs with the load in is_same().
    entry.file.store(identity == FileIdentity{} ? -1 : file, std::memory_order_release);
  }
  // Returns the descriptor; -1: none was given.
  [[nodiscard]] int file_of(int signal) const noexcept {
    return entries_.at(static_cast<std::size_t>(signal)).file.load(std::memory_order_relaxed);
  }
  // Returns whether the descriptor is still that of the file. Async-signal-safe.
  [[nodiscard]] bool is_same(int signal) const noexcept {
    const Entry& entry = entries_.at(static_cast<std::size_t>(signal));
    const int file = entry.file.load(std::memory_order_acquire);
    return file >= 0 &&
           identity_of(file) == FileIdentity{entry.device.load(std::memory_order_relaxed),
                                             entry.inode.load(std::memory_order_relaxed)};
  }

 private:
  static constexpr std::size_t kSignals = 65;
  struct Entry {
    std::atomic<int> file{-1};
    std::atomic<dev_t> device{0};
    std::atomic<ino_t> inode{0};
  };
  std::array<Entry, kSignals> entries_{};
};

inline constinit StacksOffers stacks_offers;

}  // namespace filetimer
