// The life cycle: the phases of a server, and the events that lead from one to the next.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include "common/clock.hpp"

namespace filetimer {

// Decides in which phase the server is. The server reports events and carries out the action that
// handle() returns. Uses no clock, process or file. Used on the loop thread.
//
//   LifeCycle life(LifeCycle::Kind::kAroundCommand);
//   life.handle(LifeCycle::Event::kSignal, now);    // kAskCommandToEnd
//   life.handle(LifeCycle::Event::kSignal, later);  // kKillCommand
class LifeCycle {
 public:
  enum class Kind { kAlone, kAroundCommand };

  // In this order.
  enum class Phase {
    kServing,
    kCommandEnded,    // COMMAND has ended; the kills under way keep their grace periods
    kStopping,        // the kills under way are finished without grace periods, within kStopLimit
    kFinishingHooks,  // no scope is judged any more; hooks have kHookLimit
    kEnded,
  };

  // Whether the server, or COMMAND with it, was asked to end, and by what.
  enum class Asked {
    kNo,
    kByRequest,  // by a control request, which can be withdrawn until the server stops
    kBySignal,   // by a signal: a second one kills COMMAND, or ends the wait for hooks
  };

  enum class Event {
    kSignal,             // SIGTERM or SIGINT
    kShutdown,           // a control request is carried out
    kForcedShutdown,     // likewise, with --force
    kShutdownWithdrawn,  // the shutdown was withdrawn
    kCommandEnded,
    kKillsDone,  // no kill is under way, and a COMMAND that is killed has no process left
    kHooksDone,  // no hook runs
  };

  enum class Action {
    kNone,
    kAskCommandToEnd,  // by the signal that the server has got, or by SIGTERM
    kFinishKills,      // without grace periods
    kKillCommand,      // and all its descendants; finish kills without grace periods
  };

  // A signal that comes sooner after another one is the same request: a process manager may signal
  // the process and its group.
  static constexpr Duration kSecondSignal = std::chrono::milliseconds{25};
  static constexpr Duration kStopLimit = std::chrono::seconds{2};
  static constexpr Duration kHookLimit = std::chrono::seconds{10};

  explicit LifeCycle(Kind kind) : kind_(kind) {}

  // Returns what the server must do. An event without a transition in this phase changes nothing.
  [[nodiscard]] Action handle(Event event, Instant now);
  // Enters the next phase when the time limit of this one has passed.
  void advance(Instant now);
  // Returns when advance() has something to do; never() in a phase without a limit.
  [[nodiscard]] Instant next() const { return until_; }

  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] Asked asked() const { return asked_; }
  [[nodiscard]] bool is_asked_to_end() const { return asked_ != Asked::kNo; }
  // Returns whether scopes are judged in this phase. Later, open scopes are left to the next
  // server.
  [[nodiscard]] bool judges() const { return phase_ < Phase::kFinishingHooks; }
  // Returns whether the end can no longer be withdrawn.
  [[nodiscard]] bool is_stopping() const { return phase_ >= Phase::kStopping; }

 private:
  void enter(Phase phase, Instant now);

  const Kind kind_;
  Phase phase_ = Phase::kServing;
  Asked asked_ = Asked::kNo;
  Instant signalled_;  // when the last signal came that was not too soon
  Instant until_ = Instant::never();
};

}  // namespace filetimer
