// --expect-workers: waits once for the workers of a job.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/records/rendezvous_round.hpp"

namespace filetimer {

// Counts the workers that the server has seen. Used on the loop thread.
class ExpectedWorkers {
 public:
  // Expects `count` workers between `started` and `timeout` later. Without a timeout no worker is
  // expected.
  ExpectedWorkers(std::size_t count, std::optional<Duration> timeout, Instant started);

  // Counts a worker that the server sees for the first time.
  void add(const WorkerIdentity& worker);

  struct Outcome {
    RendezvousRound round;  // named "workers"
    std::string failure;    // the reason; empty: all workers have shown up
  };
  // Returns the outcome once, when all workers have shown up or the time is up. Workers that have
  // ended do not count, so a worker that was started again counts once.
  std::optional<Outcome> advance(Instant now);
  // Returns when the time is up; never() if no worker is expected any more.
  [[nodiscard]] Instant next() const { return until_; }

 private:
  const std::size_t count_;
  const Instant started_;
  Instant until_;
  std::vector<WorkerIdentity> arrived_;
};

}  // namespace filetimer
