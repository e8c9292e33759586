// Rendezvous: workers of one host that wait until all of them are there.
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
#include "timer_server/records/rendezvous_round.hpp"

namespace filetimer {

// The rounds of all rendezvous. A round of a name is full when each of its `world` ranks has
// joined. It fails for all ranks when the first of them has waited long enough. The next round of
// the name may begin at once. The class uses neither pipes nor clocks: its caller says which rank
// joins or leaves, and what time it is. Used on the loop thread.
class Rendezvous {
 public:
  // The most names whose rounds are counted. The name that was used longest ago gives way to a new
  // one, and its rounds are counted from 1 again.
  static constexpr std::size_t kMaxNames = 1024;

  using Client = std::uint64_t;
  using Member = RendezvousMember;
  using Round = RendezvousRound;

  // A round has at most `most_ranks` ranks.
  explicit Rendezvous(std::size_t most_ranks) : most_ranks_(static_cast<int>(most_ranks)) {}

  // Lets a rank join, which waits until `until`. Fails without effect if the request is wrong; the
  // error says why.
  Status join(const std::string& name, int world, const Member& member, Instant until, Instant now);
  struct Left {
    std::string name;
    int rank = 0;
  };
  // Removes a rank whose client has withdrawn or exited. Returns which round it has left; nothing
  // if the client waited in none.
  std::optional<Left> leave(Client client);
  // Returns the client that waits as this rank. Before a round ends or a rank is replaced, the
  // caller checks whether the clients still wait.
  [[nodiscard]] std::optional<Client> waiting_as(const std::string& name, int rank) const;
  // Returns the clients of all rounds that are full.
  [[nodiscard]] std::vector<Client> in_full_rounds() const;
  // Ends and returns the rounds that are full.
  std::vector<Round> take_full();
  // Ends and returns the rounds whose time is up at `now`.
  std::vector<Round> take_failed(Instant now);
  // Returns when the next round fails if no rank joins; never() if there is no round.
  [[nodiscard]] Instant next_failure() const;
  // Ends and returns all rounds, as if their time were up.
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
    // Returns when the first member has waited long enough.
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
