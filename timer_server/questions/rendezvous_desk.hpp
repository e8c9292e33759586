// Answers the ranks of rendezvous and records the rounds.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/questions/askers.hpp"
#include "timer_server/questions/rendezvous.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/records.hpp"

namespace filetimer {

// Used on the loop thread. `askers`, `records` and `log` outlive it.
class RendezvousDesk {
 public:
  RendezvousDesk(std::size_t most_ranks, Askers& askers, Records& records, RecordLog& log)
      : rendezvous_(most_ranks), askers_(askers), records_(records), log_(log) {}

  struct Rank {
    std::string name;
    int rank = 0;
    int world = 0;
    pid_t pid = 0;
    Askers::Id asker = 0;
  };
  // Lets a rank join, which waits for at most `patience`. A rank of this number whose client has
  // gone leaves first: it was started again. Fails with what is wrong with the request.
  Status join(const Rank& rank, Duration patience, Instant now);
  // The client has gone, or was not told that it waits. Does nothing for another asker.
  void leave(Askers::Id asker);
  // Answers the ranks of rounds that are full or whose time is up.
  void advance(Instant now);
  // Answers all ranks that wait: their rounds are over.
  void refuse_all(std::string_view reason);
  // Returns when the next round fails; never() where none waits.
  [[nodiscard]] Instant next() const { return rendezvous_.next_failure(); }

 private:
  void answer(const Rendezvous::Round& round, const std::string& answer);

  Rendezvous rendezvous_;
  Askers& askers_;
  Records& records_;
  RecordLog& log_;
};

}  // namespace filetimer
