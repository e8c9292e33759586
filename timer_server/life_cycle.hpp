// The phases of a server's life, and what leads from one to the next.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include "common/clock.hpp"

namespace filetimer {

// Decides in which phase the server is. Knows no clock, process or file: the server reports events
// and carries out the action that handle() returns. Used on the loop thread.
//
//   LifeCycle life(LifeCycle::Kind::kAroundCommand);
//   life.handle(LifeCycle::Event::kSignal, now);    // kPassSignalOn: to COMMAND
//   life.handle(LifeCycle::Event::kSignal, now);    // kKillCommand
class LifeCycle {
 public:
  enum class Kind { kAlone, kAroundCommand };

  // In this order.
  enum class Phase {
    kServing,
    kCommandEnded,    // COMMAND has ended; kills that are under way take their time
    kStopping,        // kills that are under way are finished without grace, within kStopLimit
    kFinishingHooks,  // no scope is judged any more; hooks have kHookLimit
    kEnded,
  };

  // Whether the server, or COMMAND with it, was asked to end, and by what.
  enum class Asked {
    kNo,
    kByRequest,  // a control request, which can be withdrawn until the server stops
    kBySignal,   // the next signal ends COMMAND, or the wait for hooks, at once
  };

  enum class Event {
    kSignal,             // SIGTERM or SIGINT
    kShutdown,           // a control request is carried out
    kForcedShutdown,     // likewise, with --force
    kShutdownWithdrawn,  // the last client that waited for it has given up
    kCommandEnded,
    kKillsDone,  // no kill is under way, and no process is left of a COMMAND that is killed
    kHooksDone,  // no hook runs
  };

  enum class Action {
    kNone,
    kAskCommandToEnd,  // SIGTERM to COMMAND
    kPassSignalOn,     // the signal that came, to COMMAND
    kFinishKills,      // without grace
    kKillCommand,      // and all that it started; kills are finished without grace
  };

  static constexpr Duration kStopLimit = std::chrono::seconds{2};
  static constexpr Duration kHookLimit = std::chrono::seconds{10};

  explicit LifeCycle(Kind kind) : kind_(kind) {}

  // Returns what the server has to do now. An event without a meaning in this phase changes
  // nothing.
  [[nodiscard]] Action handle(Event event, Instant now);
  // Enters the next phase when the time limit of this one has passed.
  void advance(Instant now);
  // Returns when advance() has something to do; never() in a phase without a limit.
  [[nodiscard]] Instant next() const { return until_; }

  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] Asked asked() const { return asked_; }
  [[nodiscard]] bool is_asked_to_end() const { return asked_ != Asked::kNo; }
  // Whether scopes are judged. Those that are open later are left to the next server.
  [[nodiscard]] bool judges() const { return phase_ < Phase::kFinishingHooks; }
  // Whether the end can no longer be withdrawn.
  [[nodiscard]] bool is_stopping() const { return phase_ >= Phase::kStopping; }

 private:
  void enter(Phase phase, Instant now);

  const Kind kind_;
  Phase phase_ = Phase::kServing;
  Asked asked_ = Asked::kNo;
  Instant until_ = Instant::never();
};

}  // namespace filetimer
