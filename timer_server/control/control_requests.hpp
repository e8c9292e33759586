// The control requests of clients: ping, status, dump, drain, shutdown and rendezvous
// (docs/protocol.md).
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "common/json_writer.hpp"
#include "timer_server/control/control_clients.hpp"
#include "timer_server/control/life_cycle.hpp"
#include "timer_server/control/rendezvous.hpp"
#include "timer_server/core.hpp"

namespace filetimer {

// Answers the requests that come through the control socket, at once or when their answer is
// known. Does not end the server: advance() returns a shutdown that is to be carried out, and a
// withdrawn shutdown is reported to the life cycle.
class ControlRequests {
 public:
  // What the server does for requests.
  struct Server {
    // Puts an announcement on the status page. Called before the answer that depends on it.
    std::function<void(Announcement)> publish;
    std::function<void(JsonWriter&)> write_status;  // adds the fields of the answer
  };
  ControlRequests(Core& core, LifeCycle& life, Server server);

  void listen(UniqueFd socket) { clients_.listen(std::move(socket)); }
  void accept_all() { clients_.accept_all(); }

  struct Shutdown {
    std::string why;
    bool is_forced = false;
  };
  // Carries out the requests that have arrived, and answers those whose answer is due. What clients
  // wrote to the pipe before they asked must have been read since. `has_kills`: a kill is under
  // way, for which a graceful shutdown waits. Returns a shutdown that is to be carried out now.
  std::optional<Shutdown> advance(Instant now, bool has_kills);
  // Carries out the requests that have arrived.
  void take(Instant now);
  [[nodiscard]] Instant next() const;

  // Returns the number of clients that wait for an answer.
  [[nodiscard]] std::size_t client_count() const { return clients_.count_waiting(); }

  // Returns the announcement for the status page. The server refuses new scopes unless it is kNone.
  [[nodiscard]] Announcement announcement() const;

  // Answers all clients that wait for the end of the server. Called when the server has stopped.
  void answer_stopped();

 private:
  // The evidence of workers for a client that asks for it. The only signal that a worker gets is
  // that on which it writes its Python stacks. Nothing is recorded.
  struct Dump {
    struct Asked {
      WorkerIdentity worker;
      std::vector<SlotReading> scopes;
      Instant read;         // when the scopes were
      EvidenceOrder order;  // null: delivered
      Evidence evidence;
    };
    ControlClients::Id client = 0;
    std::list<Asked> workers;
    std::size_t omitted = 0;  // further workers
  };

  // The last answer to a request; none: it follows later, or its client has gone.
  using Answer = std::optional<std::string>;
  Answer answer_to(const ControlClients::Asked& asked, Instant now);
  Answer answer_dump(const AcceptedRequest& accepted);
  Answer answer_drain(const AcceptedRequest& accepted);
  Answer answer_shutdown(const AcceptedRequest& accepted);
  Answer answer_rendezvous(const AcceptedRequest& accepted);
  void advance_shutdowns(Instant now);
  void end_overdue_shutdowns(Instant now);
  void finish_dumps();

  Core& core_;
  LifeCycle& life_;
  const Server server_;
  ControlClients clients_;
  std::list<Dump> dumps_;
  Rendezvous rendezvous_;
  // One whose client has gone stays in force.
  std::vector<AcceptedRequest> shutdowns_;
  Instant next_look_ = Instant::never();  // at what the shutdowns wait for
  Instant next_news_;                     // for their clients
  std::optional<Shutdown> shutdown_;      // to be carried out
  bool is_drain_asked_ = false;
  bool has_kills_ = false;                   // at the last advance()
  Instant unread_since_ = Instant::never();  // requests have been left unread since then
  Instant next_answer_ = Instant::never();   // when a client is removed
};

}  // namespace filetimer
