// The clients that wait for an answer to a control request.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "timer_server/system/event_loop.hpp"

namespace filetimer {

// Keeps the reply pipe of each client and writes its answers. No write blocks, so a client that
// does not read its answer delays no other client. A function that gets the id of a client that is
// gone does nothing.
//
//   const auto id = clients.add(std::move(pipe), refusal);   // the client waits
//   clients.tell(*id, "...");                                // an answer, of which more follow
//   clients.finish(*id, "...");                              // the last answer
//
// Used on the loop thread.
class WaitingClients {
 public:
  using Id = std::uint64_t;
  // How many of these are kept for short requests: ranks of a rendezvous may not use them.
  static constexpr std::size_t kReserved = 16;
  // How long a last answer that does not fit its pipe waits to be read.
  static constexpr Duration kUnreadLimit = std::chrono::seconds{5};

  // Keeps at most `most` clients. Calls `on_withdrawn` when a client that is watched has closed its
  // pipe; the client is removed before.
  WaitingClients(EventLoop& loop, std::size_t most, std::function<void(Id)> on_withdrawn);

  // Adds a client and returns its id. Writes `refusal` to the pipe and returns nothing if there are
  // too many clients.
  std::optional<Id> add(UniqueFd pipe, std::string_view refusal);
  // Returns whether the client is gone, even if `on_withdrawn` was not called yet.
  [[nodiscard]] bool has_left(Id id) const;
  // Watches for the withdrawal of the client from now on. Throws std::system_error if there are no
  // resources for that.
  void watch(Id id);
  // Writes an answer of less than kMaxAtomicWrite bytes that is not the last one. The answer is
  // lost if the pipe has no room for it.
  void tell(Id id, const std::string& answer);
  // Writes the last answer and closes the pipe. Writes the rest later if the pipe has no room for
  // it.
  void finish(Id id, std::string answer);
  // Writes the last answer and leaves the pipe open until the process exits, so that the client's
  // end of file means the end of the server.
  void finish_at_exit(Id id, const std::string& answer);
  // Removes clients that have not read their last answer within kUnreadLimit. Returns when it must
  // be called again; never() if no answer waits.
  Instant advance(Instant now);

  // Returns whether the client that was added last may wait for long.
  [[nodiscard]] bool has_room_to_wait() const { return count() + kReserved <= most_; }
  [[nodiscard]] std::size_t count() const { return clients_.size(); }

 private:
  struct Client {
    UniqueFd pipe;
    EventSource source;
    std::string unread;                // the part of the last answer that is not written yet
    Instant until = Instant::never();  // when `unread` is dropped
  };
  void watch(Id id, Client& client, std::uint32_t events);
  void on_event(Id id);

  EventLoop& loop_;
  const std::size_t most_;
  const std::function<void(Id)> on_withdrawn_;
  std::unordered_map<Id, Client> clients_;
  Id last_id_ = 0;
};

}  // namespace filetimer
