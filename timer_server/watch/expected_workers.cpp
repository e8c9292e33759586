// SPDX-License-Identifier: MIT
#include "timer_server/watch/expected_workers.hpp"

#include <fmt/format.h>

#include <utility>

#include "common/duration_text.hpp"

namespace filetimer {

ExpectedWorkers::ExpectedWorkers(std::size_t count, std::optional<Duration> timeout,
                                 Instant started)
    : count_(count), started_(started), until_(timeout ? started + *timeout : Instant::never()) {}

void ExpectedWorkers::add(const WorkerIdentity& worker) {
  if (!until_.is_never()) {
    arrived_.push_back(worker);
  }
}

std::optional<ExpectedWorkers::Outcome> ExpectedWorkers::advance(Instant now) {
  if (until_.is_never() || (arrived_.size() < count_ && now < until_)) {
    return std::nullopt;
  }
  std::erase_if(arrived_, [](const auto& worker) { return !worker.process->is_alive(); });
  const bool have_all = arrived_.size() >= count_;
  if (!have_all && now < until_) {
    return std::nullopt;
  }
  until_ = Instant::never();
  Outcome outcome;
  RendezvousRound& round = outcome.round;
  round.name = "workers";
  round.number = 1;
  round.world = static_cast<int>(count_);
  round.begun = started_;
  std::vector<bool> has_joined(count_);
  bool knows_ranks = true;
  for (const WorkerIdentity& worker : std::exchange(arrived_, {})) {
    const auto& facts = *worker.facts;
    const int rank = facts && facts->rank ? *facts->rank : RendezvousMember::kUnknownRank;
    round.joined.push_back({rank, worker.process->pid, 0});
    if (rank >= 0 && rank < round.world) {
      has_joined[static_cast<std::size_t>(rank)] = true;
    } else {
      knows_ranks = false;
    }
  }
  if (have_all) {
    return outcome;
  }
  for (int rank = 0; knows_ranks && !round.joined.empty() && rank < round.world; ++rank) {
    if (!has_joined[static_cast<std::size_t>(rank)]) {
      round.missing.push_back(rank);
    }
  }
  outcome.failure =
      fmt::format("after {} {} of {} workers had shown up (--expect-workers){}",
                  duration_for_reading(now - started_), round.joined.size(), round.world,
                  round.missing.empty() ? "" : "; missing: rank " + ranks_text(round.missing));
  return outcome;
}

}  // namespace filetimer
