// Time in which a worker, the server or the whole machine could not run, and what it does to
// deadlines: a scope that was open then gets the time back.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "common/clock.hpp"

namespace filetimer {

// Computes deadlines from when a scope began and from what was missed since. Nothing is written to
// a scope. Reads no clock. Used on the loop thread.
//
//   GivenTime given;
//   given.add({60'000'000'000}, 5s);  // the server woke at 60 s, 5 s late
//   given.deadline({.started = {50s}, .deadline = {61s}, .timeout = 30s}, {});  // 66 s
class GivenTime {
 public:
  // Gaps that are remembered. Of more the two oldest are merged so that no deadline gets earlier.
  static constexpr std::size_t kMaxGaps = 64;

  // A scope from its opening or last renewal on.
  struct Span {
    Instant started;
    Instant deadline;             // never(): none
    Duration timeout = kForever;  // as granted; kForever: none
  };

  // Records that the server could not act for `length` before `until`, which is later than all
  // gaps before.
  void add(Instant until, Duration length);

  // Returns when the scope is due. A worker that was resumed behind the start of the scope has the
  // full timeout from then on (`resumed`; Instant{}: it never was halted). The first gap behind
  // the start adds its length, at most the timeout; later gaps add nothing, so that a server that
  // is always late still acts.
  [[nodiscard]] Instant deadline(const Span& span, Instant resumed) const;

  // Returns whether no gap is known: deadline() differs for resumed workers only.
  [[nodiscard]] bool is_empty() const { return gaps_.empty(); }

 private:
  struct Gap {
    Instant until;
    Duration length{};
  };
  std::vector<Gap> gaps_;  // the oldest first
};

}  // namespace filetimer
