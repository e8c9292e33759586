// Workers of this host that wait for one another: a round under a name is full once each of its
// `world` ranks has joined, and fails for all that wait when the first of them has waited long
// enough. The next round under the same name may begin at once. Knows neither pipes nor clocks:
// callers say who joins, who leaves and what time it is.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/result.hpp"

namespace filetimer {

class Rendezvous {
 public:
  // Names whose rounds are counted; of more, the one that was used longest ago begins again.
  static constexpr std::size_t kMaxNames = 1024;
  static constexpr int kUnknownRank = -1;

  using Asker = std::uint64_t;
  struct Member {
    int rank = 0;
    pid_t pid = 0;  // as it knows itself
    Asker asker = 0;
  };
  struct Round {
    std::string name;
    std::uint64_t number = 0;  // from 1, of its name
    int world = 0;
    Instant begun;
    std::vector<Member> joined;  // by rank
    std::vector<int> missing;
    std::vector<int> left;  // of the missing ones, those that had joined
  };

  // `most_ranks`: of one round.
  explicit Rendezvous(std::size_t most_ranks) : most_ranks_(static_cast<int>(most_ranks)) {}

  // Its error says what is wrong with it; nobody has joined then. `until`: how long it waits.
  Status join(const std::string& name, int world, const Member& member, Instant until, Instant now);
  struct Left {
    std::string name;
    int rank = 0;
  };
  // It has withdrawn, or has ended. What it has left; nothing when it waited in none.
  std::optional<Left> leave(Asker asker);
  // Who waits under this rank, and those of the rounds that are full: look whether they still do.
  [[nodiscard]] std::optional<Asker> waiting_as(const std::string& name, int rank) const;
  [[nodiscard]] std::vector<Asker> in_full_rounds() const;
  // The rounds that are full, or that have failed by `now`. They are over with this.
  std::vector<Round> take_full();
  std::vector<Round> take_failed(Instant now);
  // When the next round fails if nobody joins; Instant::never(): none.
  [[nodiscard]] Instant next_failure() const;
  // The rounds that are on, as if they failed now.
  std::vector<Round> take_all();

 private:
  struct Waiting {
    int world = 0;
    struct Place {
      Member member;
      Instant until;
    };
    Instant begun;
    std::map<int, Place> members;  // by rank
    // The first of them has waited long enough then.
    [[nodiscard]] Instant until() const;
    [[nodiscard]] bool is_full() const { return members.size() == static_cast<std::size_t>(world); }
    std::set<int> left;
  };
  struct Count {
    std::uint64_t rounds = 0;
    Instant used;
  };
  Round end(const std::string& name, Waiting&& waiting);
  template <class Over>
  std::vector<Round> take(Over&& is_over);

  const int most_ranks_;
  std::map<std::string, Waiting> waiting_;
  std::map<std::string, Count> counts_;
};

}  // namespace filetimer
