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
#include "timer_client/src/pipe/scope_ids.hpp"

namespace filetimer {

class Outbox {
 public:
  using Number = unsigned long long;
  enum class Owner { kClient, kScope, kIdleWatch };  // who releases the timer
  enum class Pauser { kCaller, kRegion };
  enum class Released { kNotOpen, kInTime, kTooLate };
  enum class Sender { kCaller, kKeeper };  // only the keeper's failures lengthen its pauses

  Outbox(std::unique_ptr<Transport> transport, ScopeIds& ids)
      : transport_(std::move(transport)), ids_(ids) {}

  // Each changes what the server should know; flush() then tells it.
  // `request` comes without expiration_time; it carries an id from `ids`.
  void acquire(Number number, TimerRequest request, Instant deadline, Owner owner);
  bool renew(Number number, Duration timeout, Instant deadline);
  // Between these an open timer has no deadline; then it has what was left of its time. It goes on
  // when neither of the two pauses it. False: it is not open.
  bool pause(Number number, Pauser by, Instant now);
  bool resume(Number number, Pauser by, Instant now);
  // Likewise for all that the thread has open or opens.
  void suspend_thread(pid_t tid, Instant now);
  void end_suspension(pid_t tid, Instant now);
  struct Times {
    Instant acquired;
    Instant deadline;
    std::optional<Duration> left;  // while it is paused
  };
  [[nodiscard]] std::optional<Times> times(Number number) const;  // of an open one
  Released release(Number number, Instant now) noexcept;
  void release_those_of_client(Instant now) noexcept;

  // An idle timeout: `request` is open while the process is in no scope after its first one.
  void watch_idleness(Number number, TimerRequest request);
  [[nodiscard]] bool is_inside() const { return inside_ > 0; }  // a scope of this process
  // True: there is something to send.
  bool note_activity(bool is_inside) noexcept;

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
    bool is_paused = false;  // by the caller
    bool is_suspended = false;
    Duration left{};            // of one that is either
    Duration timeout{};         // likewise: what it had
    Duration warn_after{};      // what was asked for
    bool may_be_known = false;  // a server may have heard of it, so it must hear of its release
    bool is_pending = true;
  };
  using Timers = std::list<Timer>;

  Timers& list_of(const Timer& timer) { return timer.is_pending ? pending_ : told_; }
  // Another process's scopes carry no thread.
  static bool is_scope_of_ours(const Timer& timer) {
    return timer.owner != Owner::kIdleWatch && timer.request.tid != 0;
  }
  static Times times_of(const Timer& timer) {
    const bool is_held = timer.is_paused || timer.is_suspended;
    return {timer.acquired, timer.deadline, is_held ? std::optional(timer.left) : std::nullopt};
  }
  static void hold(Timer& timer, Instant now) noexcept;
  void make_pending(Timers::iterator timer) noexcept;
  void close(Timers::iterator timer) noexcept;
  void delivered() noexcept;
  void found_watched(bool watched) noexcept;
  void stopped(Transport::Sent why, bool some_were_sent, Sender sender) noexcept;

  std::unique_ptr<Transport> transport_;
  ScopeIds& ids_;
  // Moving between the lists and closing allocates nothing: a release can't fail.
  Timers told_;     // the server knows them as they are
  Timers pending_;  // oldest first
  std::unordered_map<Number, Timers::iterator> open_;
  std::size_t inside_ = 0;                           // of them, scopes of this process
  std::unordered_map<pid_t, unsigned> suspensions_;  // by thread
  struct IdleWatch {
    Number number = 0;
    TimerRequest request;
    bool is_open = false;
  };
  std::optional<IdleWatch> idle_;

  bool is_watched_ = true;
  Transport::Sent last_stop_ = Transport::Sent::kYes;
  Duration pause_{};
  Instant next_try_;
};

}  // namespace filetimer
