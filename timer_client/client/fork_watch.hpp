// Distinguishes a process from its forked children with one load, on every path into the library.
// The kernel wipes the loaded word in a child. So even a child of a bare clone(), in which no
// pthread_atfork handler has run, notices that it is a child before it writes to any data.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>

namespace filetimer::fork_watch {

// The value of count() in a child before begin_noticing().
inline constexpr unsigned kUnknown = 0;
// The value of count() while a thread of the child is between begin_noticing() and set().
inline constexpr unsigned kBusy = ~0U;

// Set once, by start(), before the process can have a client.
extern constinit std::atomic<unsigned>* word;

// Returns a number that differs between a process and its forked children. In a child it differs
// from the number of every timer, also before begin_noticing(). Relaxed: only this process writes
// the word, before it has a second thread.
inline unsigned count() {
  return word->load(std::memory_order_relaxed);
}

// For ProcessLock.
void start();
void set(unsigned count);
// Returns true in the one thread of a child that must call set(); other threads wait until it has.
bool begin_noticing();

}  // namespace filetimer::fork_watch
