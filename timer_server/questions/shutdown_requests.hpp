// The control requests `shutdown` that wait, and when their clients are told something.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "common/clock.hpp"

namespace filetimer {

// Knows neither pipes nor clocks: the caller says what time it is, and answers the clients. Used on
// the loop thread.
class ShutdownRequests {
 public:
  using Client = std::uint64_t;
  static constexpr Client kNoClient = 0;
  // A release on a page wakes nobody: how often the caller looks whether scopes are still open.
  static constexpr Duration kLookPeriod = std::chrono::milliseconds{20};
  static constexpr Duration kNewsPeriod = std::chrono::seconds{1};

  struct Request {
    Client client = kNoClient;
    Instant until;
    bool is_forced_then = false;     // when its time is up
    bool waits_for_workers = false;  // to end; otherwise only for their scopes
  };

  void add(const Request& request, Instant now);
  // The client has disconnected. Its request stays in force and is merged with those of other
  // disconnected clients.
  void withdraw(Client client);
  std::vector<Request> take_all();
  // Takes the requests whose time is up.
  std::vector<Request> take_overdue(Instant now);
  // Whether every request waits for workers: one that does not is enough to end the server.
  [[nodiscard]] bool all_wait_for_workers() const;

  [[nodiscard]] bool is_due(Instant now) const { return now >= next_look_; }
  // Plans the next look. Returns whether clients are to be told what is still open.
  bool note_look(Instant now);
  // Returns when to look again; never() where no request waits.
  [[nodiscard]] Instant next_look() const { return next_look_; }
  [[nodiscard]] const std::vector<Request>& waiting() const { return waiting_; }

 private:
  std::vector<Request> waiting_;
  Instant next_look_ = Instant::never();
  Instant next_news_;
};

}  // namespace filetimer
