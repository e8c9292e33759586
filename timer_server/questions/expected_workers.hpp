// --expect-workers: the workers that have shown up, counted once.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/questions/rendezvous.hpp"
#include "timer_server/records.hpp"

namespace filetimer {

class ExpectedWorkers {
 public:
  // Expects `count` workers from `started` on, for `timeout`; none: no worker is expected.
  ExpectedWorkers(std::size_t count, std::optional<Duration> timeout, Instant started);

  void add(const WorkerIdentity& worker);

  struct Outcome {
    Rendezvous::Round round;  // named "workers"
    std::string failure;      // empty: all have shown up
  };
  // Returns the outcome once, when all have shown up or the time is up. A worker that has ended and
  // was started again counts once.
  std::optional<Outcome> advance(Instant now);
  // Returns when the time is up; never() where no worker is expected any more.
  [[nodiscard]] Instant next() const { return until_; }

 private:
  const std::size_t count_;
  const Instant started_;
  Instant until_;
  std::vector<WorkerIdentity> arrived_;
};

}  // namespace filetimer
