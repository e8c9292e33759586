// The control requests of clients: ping, status, dump, drain, shutdown and rendezvous
// (docs/protocol.md).
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "common/json_writer.hpp"
#include "common/wire.hpp"
#include "timer_server/control/control_clients.hpp"
#include "timer_server/control/dump_requests.hpp"
#include "timer_server/control/life_cycle.hpp"
#include "timer_server/control/rendezvous.hpp"
#include "timer_server/core.hpp"

namespace filetimer {

// Answers the requests that come through the control socket, at once or when their answer is
// known. Does not end the server: advance() returns a shutdown that is to be carried out, and a
// withdrawn shutdown is reported to the life cycle.
class ControlRequests {
 public:
  // `publish` puts an announcement on the status page. It is called before the answer that depends
  // on it.
  ControlRequests(Core& core, LifeCycle& life, std::function<void(Announcement)> publish);

  void listen(UniqueFd socket) { clients_.listen(std::move(socket)); }
  void accept_all() { clients_.accept_all(); }
  // Carries out the requests that have arrived. What clients wrote to the pipe before they asked
  // must have been read since.
  void take(Instant now);

  struct Shutdown {
    std::string why;
    bool is_forced = false;
  };
  // Answers the requests whose answer is due. `has_kills`: a kill is under way, for which a
  // graceful shutdown waits. Returns a shutdown that is to be carried out now.
  std::optional<Shutdown> advance(Instant now, bool has_kills);
  // Answers all status requests. `write` adds the fields of the answer.
  void answer_status(const std::function<void(JsonWriter&)>& write);
  [[nodiscard]] Instant next() const;

  // Returns the number of clients that wait for an answer, without those that wait for a status.
  [[nodiscard]] std::size_t client_count() const {
    return clients_.count() - status_clients_.size();
  }

  // Returns the announcement for the status page. The server refuses new scopes unless it is kNone.
  [[nodiscard]] Announcement announcement() const;

  // Answers all clients that wait for the end of the server. Called when the server has stopped.
  void answer_stopped();

 private:
  struct Accepted {
    ControlClients::Id client = 0;
    const wire::Question& question;
    pid_t pid = 0;
    Duration granted{};
    Instant now;
  };
  struct WaitingShutdown {
    ControlClients::Id client = 0;
    Instant until;
    bool is_forced_then = false;     // at `until` the shutdown is forced
    bool waits_for_workers = false;  // waits until the workers have exited, not only their scopes
  };
  void accept(const ControlClients::Asked& asked, Instant now);
  void answer(const Accepted& accepted);
  void answer_ping(const Accepted& accepted);
  void keep_for_status(const Accepted& accepted);
  void answer_dump(const Accepted& accepted);
  void answer_drain(const Accepted& accepted);
  void answer_shutdown(const Accepted& accepted);
  void answer_rendezvous(const Accepted& accepted);
  bool grant(const Accepted& accepted);
  void on_withdrawn(ControlClients::Id client);
  void advance_shutdowns(Instant now, bool has_kills);
  void end_overdue_shutdowns(Instant now);

  Core& core_;
  LifeCycle& life_;
  const std::function<void(Announcement)> publish_;
  DumpRequests dumps_;
  ControlClients clients_;
  Rendezvous rendezvous_;
  // One whose client has gone stays in force.
  std::vector<WaitingShutdown> shutdowns_;
  Instant next_look_ = Instant::never();  // at what the shutdowns wait for
  Instant next_news_;                     // for their clients
  std::vector<ControlClients::Id> status_clients_;
  std::optional<Shutdown> shutdown_;  // to be carried out
  bool is_drain_asked_ = false;
  Instant next_answer_ = Instant::never();  // when a client is removed
};

}  // namespace filetimer
