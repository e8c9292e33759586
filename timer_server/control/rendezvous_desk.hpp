// Answers the ranks of a rendezvous and records its rounds.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/control/rendezvous.hpp"
#include "timer_server/control/waiting_clients.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"

namespace filetimer {

// Used on the loop thread. `clients`, `records` and `log` outlive it.
class RendezvousDesk {
 public:
  RendezvousDesk(std::size_t most_ranks, WaitingClients& clients, Records& records, RecordLog& log)
      : rendezvous_(most_ranks), clients_(clients), records_(records), log_(log) {}

  struct Rank {
    std::string name;
    int rank = 0;
    int world = 0;
    pid_t pid = 0;
    WaitingClients::Id client = 0;
  };
  // Lets a rank join, which waits for at most `patience`. Removes a rank of this number first if
  // its client is gone: the worker was started again. Fails if the request is wrong.
  Status join(const Rank& rank, Duration patience, Instant now);
  // Removes the rank of a client that is gone, or that could not be answered. Does nothing for a
  // client that waits in no rendezvous.
  void leave(WaitingClients::Id client);
  // Answers the ranks of rounds that are full or whose time is up, and records these rounds.
  void advance(Instant now);
  // Ends all rounds and refuses their ranks.
  void refuse_all(std::string_view reason);
  // Returns when the next round fails; never() if there is no round.
  [[nodiscard]] Instant next() const { return rendezvous_.next_failure(); }

 private:
  void answer(const Rendezvous::Round& round, const std::string& answer);

  Rendezvous rendezvous_;
  WaitingClients& clients_;
  Records& records_;
  RecordLog& log_;
};

}  // namespace filetimer
