// Missed time is given back: a scope that was open while its worker, the server or the whole
// machine could not run has a later deadline.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "common/clock.hpp"

namespace filetimer {

// Computes deadlines from the start of a scope and the time missed since. Changes no scope, reads
// no clock. Used on the loop thread.
//
//   GivenTime given;
//   given.add({60'000'000'000}, 5s);  // the server woke at 60 s, 5 s late
//   given.deadline({.started = {50s}, .deadline = {61s}, .timeout = 30s}, {});  // 66 s
class GivenTime {
 public:
  // The most gaps that are kept. Then the two oldest are merged, so that no deadline gets earlier.
  static constexpr std::size_t kMaxGaps = 64;

  // A scope from its opening or last renewal on.
  struct Span {
    Instant started;
    Instant deadline;             // never(): none
    Duration timeout = kForever;  // as granted; kForever: none
  };

  // Records that the server could not act for `length` before `until`. `until` must be later than
  // in all calls before.
  void add(Instant until, Duration length);

  // Returns when the scope is due. If its worker was resumed after the start of the scope, the
  // scope has its full timeout from then on (`resumed`; Instant{}: never halted). The first gap
  // after the start adds its length, at most the timeout. Later gaps add nothing, so that a server
  // that is always late still acts.
  [[nodiscard]] Instant deadline(const Span& span, Instant resumed) const;

  // Returns whether no gap was recorded. Then deadline() changes only the deadlines of workers that
  // were resumed.
  [[nodiscard]] bool is_empty() const { return gaps_.empty(); }

 private:
  struct Gap {
    Instant until;
    Duration length{};
  };
  std::vector<Gap> gaps_;  // the oldest first
};

}  // namespace filetimer
