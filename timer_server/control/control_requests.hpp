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
#include "common/wire_parser.hpp"
#include "timer_server/control/control_queue.hpp"
#include "timer_server/control/dump_requests.hpp"
#include "timer_server/control/life_cycle.hpp"
#include "timer_server/control/rendezvous_desk.hpp"
#include "timer_server/control/reply_folder.hpp"
#include "timer_server/control/shutdown_requests.hpp"
#include "timer_server/control/waiting_clients.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/requests/rejections.hpp"
#include "timer_server/system/loop_thread.hpp"
#include "timer_server/watch/open_scopes.hpp"

namespace filetimer {

// Answers the control requests that are read from the request pipe, at once or when their answer is
// known. Does not end the server: advance() returns a shutdown that is to be carried out, and a
// withdrawn shutdown is reported to the life cycle. Used on the loop thread.
class ControlRequests {
 public:
  // Parts of the server, which must outlive this object.
  struct Context {
    const OpenScopes& scopes;
    LifeCycle& life;
    Rejections& rejections;
    Records& records;
    RecordLog& log;
    DumpRequests& dumps;
    // Puts an announcement on the status page. Is called before the answer that depends on it.
    std::function<void(Announcement)> publish;
  };

  // `max_wait` limits how long a client may wait.
  ControlRequests(EventLoop& loop, std::string dir, ReplyFolder replies, Duration max_wait,
                  const Context& context);

  void begin_iteration() { queue_.begin_iteration(); }
  // Answers a request, or keeps `line` for a later iteration.
  void take(const wire::Request& request, std::string_view line, Instant now);

  struct Shutdown {
    std::string why;
    bool is_forced = false;
  };
  // Answers requests that were kept, and those whose answer is due. `has_kills`: a kill is under
  // way, for which a graceful shutdown waits. Returns a shutdown that is to be carried out now.
  std::optional<Shutdown> advance(Instant now, bool has_kills);
  // Returns the number of status requests that answer_status() has not answered.
  [[nodiscard]] std::size_t status_requests() const { return status_clients_.size(); }
  // Answers all status requests. `write` adds the fields of the answer.
  void answer_status(const std::function<void(JsonWriter&)>& write);
  // Returns when advance() must be called at the latest.
  [[nodiscard]] Instant next() const;

  // Returns whether the next advance() will return a shutdown.
  [[nodiscard]] bool has_shutdown() const { return shutdown_.has_value(); }
  // Returns the number of clients that wait for an answer, without those that wait for a status.
  [[nodiscard]] std::size_t client_count() const {
    return clients_.count() - status_clients_.size();
  }

  // Returns the announcement for the status page. The server refuses new scopes unless it is kNone.
  [[nodiscard]] Announcement announcement() const;

  // Removes abandoned reply pipes, and makes the reply folder again if it was removed.
  void sweep();
  // Uses another reply folder from now on.
  void use(ReplyFolder replies) { replies_ = std::move(replies); }
  // Answers all clients that wait for the end of the server. Called when the server has stopped.
  void answer_stopped();

 private:
  struct Accepted {
    WaitingClients::Id client = 0;
    const wire::Question& question;
    pid_t pid = 0;
    Duration granted{};
    Instant now;
  };
  void accept(const wire::Request& request, std::string_view line, Instant now);
  void answer(const Accepted& accepted);
  void answer_ping(const Accepted& accepted);
  void keep_for_status(const Accepted& accepted);
  void answer_dump(const Accepted& accepted);
  void answer_drain(const Accepted& accepted);
  void answer_shutdown(const Accepted& accepted);
  void answer_rendezvous(const Accepted& accepted);
  bool grant(const Accepted& accepted);
  void on_withdrawn(WaitingClients::Id client);
  void advance_shutdowns(Instant now, bool has_kills);
  void end_overdue_shutdowns(Instant now);

  const std::string dir_;
  const Duration max_wait_;
  Context context_;
  ReplyFolder replies_;
  WaitingClients clients_;
  ControlQueue queue_;
  wire::Parser parser_;  // parses requests that were kept
  RendezvousDesk rendezvous_;
  ShutdownRequests shutdowns_;
  std::vector<WaitingClients::Id> status_clients_;
  std::optional<Shutdown> shutdown_;  // to be carried out
  bool is_drain_asked_ = false;
  Instant next_answer_ = Instant::never();  // when a client that does not read is removed
  Instant next_dump_ = Instant::never();
  LoopThread loop_thread_;
};

}  // namespace filetimer
