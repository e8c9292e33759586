// The timeouts of a file that replace those in the code; see ConnectOptions::timeouts.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "common/clock.hpp"
#include "timer_client/client/fork_watch.hpp"

namespace filetimer {

// What the file says of one scope name. Any thread may use it.
class ReplacedTimeout {
 public:
  // Zero: the time in the code counts. kForever: no deadline.
  ReplacedTimeout(Duration timeout, Duration first_timeout)
      : timeout_(timeout), first_timeout_(first_timeout) {}

  [[nodiscard]] Duration timeout() const { return timeout_; }
  [[nodiscard]] Duration first_timeout() const { return first_timeout_; }
  // Returns whether the times are the same.
  [[nodiscard]] bool is_equal_to(const ReplacedTimeout& other) const {
    return timeout_ == other.timeout_ && first_timeout_ == other.first_timeout_;
  }
  // Notes that a scope of the name is opened. Returns whether it is the first of this process.
  [[nodiscard]] bool note_opening() const {
    const unsigned process = fork_watch::count();
    // Relaxed: of several threads that open their first scopes at once, one has the first.
    return begun_in_.load(std::memory_order_relaxed) != process &&
           begun_in_.exchange(process, std::memory_order_relaxed) != process;
  }

 private:
  const Duration timeout_;
  const Duration first_timeout_;
  // What fork_watch::count() was at the last first scope.
  mutable std::atomic<unsigned> begun_in_{fork_watch::kBusy};
};

// By scope name, as the page has the names (shown_name()).
using ReplacedTimeouts = std::unordered_map<std::string, ReplacedTimeout>;

}  // namespace filetimer
