// Rendezvous: workers of one host that wait until all of them are there.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/control/control_clients.hpp"
#include "timer_server/core.hpp"

namespace filetimer {

// The rounds of all rendezvous. A round of a name is full when each of its `world` ranks has
// joined. It fails for all ranks when the first of them has waited long enough. The next round of
// the name may begin at once. Answers the ranks and records the rounds.
class Rendezvous {
 public:
  // The most names whose rounds are counted. With one more all rounds are counted from 1 again.
  static constexpr std::size_t kMaxNames = 1024;

  Rendezvous(ControlClients& clients, Core& core) : clients_(clients), core_(core) {}

  // Grants a rank that it waits, and lets it join. If the rank is taken or the world differs, first
  // removes the ranks of the name whose clients are gone: the job was started again. Fails if the
  // request is wrong; the error says why.
  Status join(const AcceptedRequest& request);
  // Removes the rank of a client that is gone. A round without members is over. Does nothing for a
  // client that waits in no rendezvous.
  void leave(ControlClients::Id client);
  // Answers the ranks of rounds that are full or whose time is up, and records these rounds.
  // `may_be_joining`: a join may be among requests that are unread, so no round fails now.
  void advance(Instant now, bool may_be_joining);
  void refuse_all(std::string_view reason);
  // Returns when the next round fails if no rank joins; never() if there is no round.
  [[nodiscard]] Instant next() const;

 private:
  struct Round {
    int world = 0;
    Instant begun;
    std::map<int, AcceptedRequest> members{};  // by rank
    std::set<int> left{};                      // joined, and did not wait to the end
    [[nodiscard]] Instant until() const;
    [[nodiscard]] bool is_full() const { return members.size() == static_cast<std::size_t>(world); }
  };
  template <class IsGone>
  static void remove_members(const std::string& name, Round& round, IsGone is_gone);
  void remove_gone(const std::string& name, Round& round);
  // Answers the members of a round that is over, and records it. `why`: it failed.
  void end(const std::string& name, Round& round, std::string_view why, Instant now);
  void answer(Round& round, const std::string& answer);

  ControlClients& clients_;
  Core& core_;
  std::map<std::string, Round> rounds_;
  std::map<std::string, std::uint64_t> counts_;  // rounds that have ended, by name
};

}  // namespace filetimer
