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

  // In this order, but for kEndingCommand, which a shutdown that is withdrawn ends.
  enum class Phase {
    kServing,
    kEndingCommand,   // COMMAND was asked to end by a control request
    kSignalledToEnd,  // COMMAND was asked to end by a signal, which cannot be withdrawn
    kCommandEnded,    // COMMAND has ended; kills that are under way take their time
    kStopping,        // kills that are under way are finished without grace, within kStopLimit
    kFinishingHooks,  // no scope is judged any more; hooks have kHookLimit
    kEnded,
  };

  enum class Event {
    kSignal,             // SIGTERM or SIGINT
    kShutdown,           // a control request is carried out
    kForcedShutdown,     // likewise, with --force
    kShutdownWithdrawn,  // the last client that waited for it has given up
    kCommandEnded,
    kKillsDone,  // no kill is under way, and of a COMMAND that is killed nothing is left
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

  // Returns what the server has to do now. An event that means nothing in this phase changes
  // nothing.
  [[nodiscard]] Action handle(Event event, Instant now);
  // Leaves a phase whose time is up. Nothing has to be done for that.
  void advance(Instant now);
  // Returns when advance() has something to do; never() in a phase without a limit.
  [[nodiscard]] Instant next() const { return until_; }

  [[nodiscard]] Phase phase() const { return phase_; }
  // Whether scopes are judged: what is open later is left to the next server.
  [[nodiscard]] bool judges() const { return phase_ < Phase::kFinishingHooks; }
  // Whether the server, or COMMAND with it, was asked to end.
  [[nodiscard]] bool is_asked_to_end() const { return phase_ != Phase::kServing; }
  // Whether the end can no longer be withdrawn.
  [[nodiscard]] bool is_ending() const { return phase_ >= Phase::kCommandEnded; }

 private:
  void enter(Phase phase, Instant now);

  const Kind kind_;
  Phase phase_ = Phase::kServing;
  Instant until_ = Instant::never();
};

}  // namespace filetimer
