// The clients of the control socket: their connections, requests and answers.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.hpp"
#include "common/json_writer.hpp"
#include "common/posix.hpp"
#include "common/wire.hpp"
#include "timer_server/system/event_loop.hpp"

namespace filetimer {

// Begins an answer of the kind "done", "granted", "waiting", "refused", "invalid" or "timed_out".
JsonWriter begin_answer(std::string_view kind);
std::string answer_with_reason(std::string_view kind, std::string_view reason);
// Returns the first `most` numbers and how many others there are: "0, 2 and 5 more".
std::string first_of(const std::vector<std::int64_t>& numbers, std::size_t most);
// Returns why a client is refused if `others` wait for an answer.
std::string too_many_wait(std::size_t others);

// Accepts connections, each with one request, and writes the answers. Nothing blocks, so a client
// that does not read its answer delays no other client. A function that gets the id of a client
// that is gone does nothing.
//
//   clients.listen(std::move(*socket));
//   while (auto asked = clients.take()) {
//     clients.tell(asked->client, "...");     // an answer, of which more follow
//     clients.finish(asked->client, "...");   // the last answer
//   }
//
// Used on the loop thread.
class ControlClients {
 public:
  using Id = std::uint64_t;
  // How many of these are kept for short requests: ranks of a rendezvous may not use them.
  static constexpr std::size_t kReserved = 16;
  // How long a connection may take to bring its request, and a last answer that does not fit the
  // connection to be read.
  static constexpr Duration kPatience = std::chrono::seconds{10};
  // When a connection is tried again for which the process lacked a descriptor.
  static constexpr Duration kListenAgain = std::chrono::milliseconds{100};

  struct Asked {
    Id client = 0;
    ucred process{};  // as the kernel says
    std::string packet;
  };

  // Keeps at most `most` clients. Calls `on_withdrawn` when a client that waits has hung up; the
  // client is removed before.
  ControlClients(EventLoop& loop, std::size_t most, std::function<void(Id)> on_withdrawn);

  // Accepts the connections of `socket` from now on, and of no earlier socket.
  void listen(UniqueFd socket);
  // Accepts the connections that wait: as many as the kernel lets wait, because others may come
  // without a pause.
  void accept_all();
  // Removes and returns the next request that has arrived.
  std::optional<Asked> take();
  [[nodiscard]] bool has_requests() const { return !asked_.empty(); }

  // Returns whether the client is gone, even if `on_withdrawn` was not called yet.
  [[nodiscard]] bool has_left(Id id) const;
  // Answers how long the client may wait, and counts it as one that waits. Returns false if the
  // client is gone.
  bool grant(Id id, Duration wait);
  // Writes an answer of one packet that is not the last one. The answer is lost if the connection
  // has no room for it.
  void tell(Id id, const std::string& answer);
  // Writes the last answer and hangs up. Writes the rest later if the connection has no room for
  // it.
  void finish(Id id, std::string answer);
  // Writes the last answer and leaves the connection open until the process exits, so that the
  // client's end of file means the end of the server.
  void finish_at_exit(Id id, const std::string& answer);
  // Removes clients that have not asked, or not read their last answer, within kPatience. Returns
  // when it must be called again; never() if no client waits for that.
  Instant advance(Instant now);

  // Return how many clients may wait for long, and whether the one that was added last may.
  [[nodiscard]] std::size_t most_that_wait() const {
    return std::max(most_, kReserved + 1) - kReserved;
  }
  [[nodiscard]] bool has_room_to_wait() const { return count() + kReserved <= most_; }
  [[nodiscard]] std::size_t count() const { return clients_.size(); }
  // Returns the number of clients that wait for their last answer.
  [[nodiscard]] std::size_t count_waiting() const;

 private:
  struct Client {
    UniqueFd connection;
    ucred process{};
    EventSource source;
    std::string unread;  // the part of the last answer that is not written yet
    Instant until;       // when the client is removed; never() while it waits for an answer
    bool has_asked = false;
    bool is_waiting = false;
  };
  void wait_for_clients(Instant now);
  bool accept();
  void on_event(Id id);
  void receive(Id id, Client& client);

  EventLoop& loop_;
  const std::size_t most_;
  const std::function<void(Id)> on_withdrawn_;
  UniqueFd socket_;
  EventSource source_;
  Instant listen_again_ = Instant::never();
  std::unordered_map<Id, Client> clients_;
  std::deque<Asked> asked_;
  Id last_id_ = 0;
};

struct AcceptedRequest {
  ControlClients::Id client = 0;
  wire::Question question;
  pid_t pid = 0;
  Duration granted{};  // how long the client may wait
  Instant now;         // when the request was accepted
  [[nodiscard]] Instant until() const { return now + granted; }
};

}  // namespace filetimer
