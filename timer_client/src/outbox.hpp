// What one client wants its server to know, and which of it the server has still to be told.
// Each timer is kept as it should be (open with its deadline, or released), not as a queue of
// messages: what could not be sent is made good later by one request for each timer, so memory is
// bounded by the timers, and a stale acquire can never follow a release.
// Requests that wait are sent oldest first, and nothing overtakes them. So no new acquire gets
// through while releases wait, and the releases that wait stay bounded too.
// Not locked and never blocking; the Keeper calls it under its lock.
// SPDX-License-Identifier: MIT
#pragma once

#include <filetimer/transport.hpp>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>

#include "common/clock.hpp"
#include "timer_client/src/scope_ids.hpp"

namespace filetimer {

class Outbox {
 public:
  using Number = unsigned long long;
  enum class Owner { kClient, kScope };  // who releases the timer
  enum class Released { kNotOpen, kInTime, kTooLate };
  enum class Sender { kCaller, kKeeper };  // only the keeper's failures lengthen its pauses

  Outbox(std::unique_ptr<Transport> transport, ScopeIds& ids)
      : transport_(std::move(transport)), ids_(ids) {}

  // Each changes what the server should know; flush() then tells it.
  // `request` comes without expiration_time; it carries an id from `ids`.
  void acquire(Number number, TimerRequest request, Instant deadline, Owner owner);
  bool renew(Number number, Duration timeout, Instant deadline);
  struct Times {
    Instant acquired;
    Instant deadline;
  };
  [[nodiscard]] std::optional<Times> times(Number number) const;  // of an open one
  Released release(Number number, Instant now) noexcept;
  void release_those_of_client(Instant now) noexcept;

  // Sends at most `budget` requests of those that wait; stops at the first that can't be sent.
  void flush(std::size_t budget, Sender sender) noexcept;
  // A forked child: nothing here is its own. Sends nothing.
  void forget_all() noexcept;

  [[nodiscard]] bool has_pending() const { return !pending_.empty(); }
  [[nodiscard]] bool is_empty() const { return pending_.empty() && told_.empty(); }
  // When the keeper should try again; only meaningful while something is pending.
  [[nodiscard]] Instant next_try() const { return next_try_; }
  [[nodiscard]] bool is_watched() const { return is_watched_; }
  void set_watched(bool watched) { is_watched_ = watched; }
  [[nodiscard]] Transport& transport() { return *transport_; }

  // The client is gone; what is pending is still delivered.
  bool abandoned = false;

 private:
  struct Timer {
    Number number = 0;
    TimerRequest request;
    Instant acquired;
    Instant deadline;
    Owner owner = Owner::kClient;
    bool may_be_known = false;  // a server may have heard of it, so it must hear of its release
    bool is_pending = true;
  };
  using Timers = std::list<Timer>;

  Timers& list_of(const Timer& timer) { return timer.is_pending ? pending_ : told_; }
  void make_pending(Timers::iterator timer) noexcept;
  void close(Timers::iterator timer) noexcept;
  void delivered() noexcept;
  void stopped(Transport::Sent why, bool some_were_sent, Sender sender) noexcept;

  std::unique_ptr<Transport> transport_;
  ScopeIds& ids_;
  // Moving between the lists and closing allocates nothing: a release can't fail.
  Timers told_;     // the server knows them as they are
  Timers pending_;  // oldest first
  std::unordered_map<Number, Timers::iterator> open_;

  bool is_watched_ = true;
  Transport::Sent last_stop_ = Transport::Sent::kYes;
  Duration pause_{};
  Instant next_try_;
};

}  // namespace filetimer
