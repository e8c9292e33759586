// The `shutdown` requests that wait.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "common/clock.hpp"

namespace filetimer {

// Remembers the requests and when their clients get an answer. Uses neither pipes nor clocks: its
// caller says what time it is and answers the clients. Used on the loop thread.
class ShutdownRequests {
 public:
  using Client = std::uint64_t;
  static constexpr Client kNoClient = 0;
  // How often the caller checks for open scopes: a release on a page does not wake the server.
  static constexpr Duration kLookPeriod = std::chrono::milliseconds{20};
  // How often a waiting client gets a list of what is still open.
  static constexpr Duration kNewsPeriod = std::chrono::seconds{1};

  struct Request {
    Client client = kNoClient;
    Instant until;
    bool is_forced_then = false;     // at `until` the shutdown is forced
    bool waits_for_workers = false;  // waits until the workers have exited, not only their scopes
  };

  // Adds a request. The caller looks at once.
  void add(const Request& request, Instant now);
  // Removes a client that has disconnected. Its request stays in force and is merged with those of
  // other disconnected clients.
  void withdraw(Client client);
  // Removes and returns all requests.
  std::vector<Request> take_all();
  // Removes and returns the requests whose time is up.
  std::vector<Request> take_overdue(Instant now);
  // Returns whether every request waits for workers. A single request that does not ends the
  // server.
  [[nodiscard]] bool all_wait_for_workers() const;

  // Returns whether the caller should look now.
  [[nodiscard]] bool is_due(Instant now) const { return now >= next_look_; }
  // Plans the next look. Returns whether the clients are due a list of what is still open.
  bool note_look(Instant now);
  // Returns when to look again; never() if no request waits.
  [[nodiscard]] Instant next_look() const { return next_look_; }
  [[nodiscard]] const std::vector<Request>& waiting() const { return waiting_; }

 private:
  std::vector<Request> waiting_;
  Instant next_look_ = Instant::never();
  Instant next_news_;
};

}  // namespace filetimer
