// Tells a process from its forked children with one load, on every path into the library. The word
// that is loaded lies on memory that the kernel wipes in a child, so even a child of a bare
// clone(), in which no pthread_atfork handler has run, finds out before it writes anywhere.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>

namespace filetimer::fork_watch {

// What count() gives in a child that has not noticed yet that it is one.
inline constexpr unsigned kUnknown = 0;
// And while a thread of it is noticing.
inline constexpr unsigned kBusy = ~0U;

// Set once, by start(), before anybody can hold a client.
extern constinit std::atomic<unsigned>* word;

// Differs between a process and its forked children; never what an own timer carries in a child
// that has not noticed. Relaxed: only this process writes it, before it has a second thread.
inline unsigned count() {
  return word->load(std::memory_order_relaxed);
}

// For ProcessLock.
void start();
void set(unsigned count);
// True for the one thread of a child that is to notice; others wait until it has called set().
bool begin_noticing();

}  // namespace filetimer::fork_watch
