// The control requests of clients: ping, status, drain, shutdown and rendezvous (docs/protocol.md).
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "common/json_writer.hpp"
#include "common/wire.hpp"
#include "timer_server/life_cycle.hpp"
#include "timer_server/questions/askers.hpp"
#include "timer_server/questions/question_queue.hpp"
#include "timer_server/questions/rendezvous_desk.hpp"
#include "timer_server/questions/reply_folder.hpp"
#include "timer_server/questions/shutdown_requests.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/records.hpp"
#include "timer_server/requests/rejections.hpp"

namespace filetimer {

// Takes questions as they are read from the pipe, answers them, and remembers those whose answer
// has to wait. Does not end the server: it returns a shutdown that is to be carried out, and
// reports one that is withdrawn to the life cycle. Used on the loop thread.
class Questions {
 public:
  // What answers say of the server. Implemented by the server.
  class Host {
   public:
    virtual ~Host() = default;
    // Adds the fields of the answer to `status` that follow the server's pid and version.
    virtual void write_status(JsonWriter& json, Instant now) = 0;
    // Adds the number of open scopes, a list of some of them and, `with_workers`, of workers, until
    // the answer has `room` bytes.
    virtual void write_open_scopes(JsonWriter& json, bool with_workers, std::size_t room) = 0;
    virtual std::size_t open_scope_count() = 0;
    [[nodiscard]] virtual bool has_workers() const = 0;
    // Whether a kill is under way.
    [[nodiscard]] virtual bool has_kills() const = 0;
    // Shows announcement() to clients, before the answer that caused it is sent.
    virtual void announce() = 0;
  };

  // What questions use and do not own; all of it outlives them.
  struct Context {
    Host& host;
    LifeCycle& life;
    Rejections& rejections;
    Records& records;
    RecordLog& log;
  };

  // `max_wait` limits how long a client may wait.
  Questions(sd_event* loop, std::string dir, ReplyFolder replies, Duration max_wait,
            const Context& context);

  void begin_iteration() { queue_.begin_iteration(); }
  // Answers a question, or keeps it for a later iteration.
  void take(const wire::Request& request, std::string_view line, Instant now);

  struct Shutdown {
    std::string why;
    bool is_forced = false;
  };
  // Takes up questions that wait, and answers those that are due. Returns a shutdown that is to be
  // carried out now.
  std::optional<Shutdown> advance(Instant now);
  // Returns when advance() has something to do.
  [[nodiscard]] Instant next() const;

  // Whether advance() is going to return a shutdown.
  [[nodiscard]] bool has_shutdown() const { return shutdown_.has_value(); }
  // Returns the number of clients that wait for an answer.
  [[nodiscard]] std::size_t client_count() const { return askers_.count(); }

  // Returns the announcement for the status page. New scopes are refused unless it is kNone.
  [[nodiscard]] Announcement announcement() const;

  // Removes reply pipes that were left behind, and makes their folder again if it was removed.
  void sweep();
  void use(ReplyFolder replies) { replies_ = std::move(replies); }
  // The server has stopped: answers all clients that wait for that.
  void answer_stopped();

 private:
  struct Asked {
    Askers::Id asker = 0;
    const wire::Question& question;
    pid_t pid = 0;
    Duration granted{};
    Instant now;
  };
  void consider(const wire::Request& request, std::string_view line, Instant now);
  void answer(const Asked& asked);
  void answer_ping(const Asked& asked);
  void answer_status(const Asked& asked);
  void answer_drain(const Asked& asked);
  void answer_shutdown(const Asked& asked);
  void answer_rendezvous(const Asked& asked);
  bool grant(const Asked& asked);
  void on_withdrawn(Askers::Id asker);
  void look_at_shutdowns(Instant now);

  const std::string dir_;
  const Duration max_wait_;
  Context context_;
  ReplyFolder replies_;
  Askers askers_;
  QuestionQueue queue_;
  wire::Parser parser_;  // of the questions that wait
  RendezvousDesk rendezvous_;
  ShutdownRequests shutdowns_;
  std::optional<Shutdown> shutdown_;  // to be carried out
  bool is_drain_asked_ = false;
  Instant next_answer_ = Instant::never();  // when to give up on clients that do not read
};

}  // namespace filetimer
