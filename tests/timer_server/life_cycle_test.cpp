// SPDX-License-Identifier: MIT
#include "timer_server/life_cycle.hpp"

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

using Phase = LifeCycle::Phase;
using Event = LifeCycle::Event;
using Action = LifeCycle::Action;
using Kind = LifeCycle::Kind;

constexpr std::array kPhases{Phase::kServing,      Phase::kEndingCommand, Phase::kSignalledToEnd,
                             Phase::kCommandEnded, Phase::kStopping,      Phase::kFinishingHooks,
                             Phase::kEnded};
constexpr std::array kEvents{
    Event::kSignal,       Event::kShutdown,  Event::kForcedShutdown, Event::kShutdownWithdrawn,
    Event::kCommandEnded, Event::kKillsDone, Event::kHooksDone};

// The events that lead to each phase of a server around COMMAND.
std::vector<Event> way_to(Phase phase) {
  switch (phase) {
    case Phase::kServing:
      return {};
    case Phase::kEndingCommand:
      return {Event::kShutdown};
    case Phase::kSignalledToEnd:
      return {Event::kSignal};
    case Phase::kCommandEnded:
      return {Event::kCommandEnded};
    case Phase::kStopping:
      return {Event::kForcedShutdown};
    case Phase::kFinishingHooks:
      return {Event::kForcedShutdown, Event::kKillsDone};
    case Phase::kEnded:
      return {Event::kForcedShutdown, Event::kKillsDone, Event::kHooksDone};
  }
  return {};
}

LifeCycle life_in(Kind kind, Phase phase) {
  LifeCycle life(kind);
  for (const Event event : way_to(phase)) {
    (void)life.handle(event, {});
  }
  REQUIRE(life.phase() == phase);
  return life;
}

}  // namespace

TEST_CASE("What each event leads to in each phase of a server around a command") {
  // Phases: Serving, Asked to end by a request, Told by a signal, Command ended, Stopping, Hooks,
  // Ended. Actions: a ask COMMAND, p pass the signal on, f finish kills, k kill COMMAND.
  constexpr std::string_view kLetters = "SATCXHE";
  constexpr std::string_view kActions = "-apfk";
  const std::array<std::string_view, 7> expected{
      // signal shutdown forced withdrawn command-ended kills-done hooks-done
      "Tp Aa Xk S- C- S- S-", "Tp A- Xk S- C- A- A-", "Xk T- Xk T- C- T- T-",
      "Xf C- Xf C- C- H- C-", "X- X- X- X- X- H- X-", "E- H- H- H- H- H- E-",
      "E- E- E- E- E- E- E-"};
  for (std::size_t phase = 0; phase < kPhases.size(); ++phase) {
    std::string row;
    for (const Event event : kEvents) {
      LifeCycle life = life_in(Kind::kAroundCommand, kPhases[phase]);
      const Action action = life.handle(event, {});
      row += row.empty() ? "" : " ";
      row += kLetters[static_cast<std::size_t>(life.phase())];
      row += kActions[static_cast<std::size_t>(action)];
    }
    CHECK(row == expected[phase]);
  }
}

TEST_CASE("A server of its own stops at the first signal or request, once") {
  for (const Event event : {Event::kSignal, Event::kShutdown, Event::kForcedShutdown}) {
    LifeCycle life(Kind::kAlone);
    CHECK(life.handle(event, {}) == Action::kFinishKills);
    CHECK(life.phase() == Phase::kStopping);
    CHECK(life.handle(Event::kSignal, {}) == Action::kNone);
    CHECK(life.handle(Event::kShutdownWithdrawn, {}) == Action::kNone);
    CHECK(life.phase() == Phase::kStopping);
    (void)life.handle(Event::kKillsDone, {});
    CHECK(life.phase() == Phase::kFinishingHooks);
    (void)life.handle(Event::kHooksDone, {});
    CHECK(life.phase() == Phase::kEnded);
  }
  LifeCycle life(Kind::kAlone);
  (void)life.handle(Event::kCommandEnded, {});
  CHECK(life.phase() == Phase::kServing);
}

TEST_CASE("A server that stops ends in bounded time, whatever hangs") {
  LifeCycle life(Kind::kAlone);
  CHECK(life.next().is_never());
  const Instant begun{1'000};
  (void)life.handle(Event::kSignal, begun);
  CHECK(life.next() == begun + LifeCycle::kStopLimit);
  life.advance(begun + (LifeCycle::kStopLimit - 1ns));
  CHECK(life.phase() == Phase::kStopping);
  const Instant stopped = begun + LifeCycle::kStopLimit;
  life.advance(stopped);
  CHECK(life.phase() == Phase::kFinishingHooks);
  CHECK(life.next() == stopped + LifeCycle::kHookLimit);
  life.advance(stopped + LifeCycle::kHookLimit);
  CHECK(life.phase() == Phase::kEnded);
  CHECK(life.next().is_never());
}

TEST_CASE("A second signal does not wait for hooks") {
  LifeCycle life = life_in(Kind::kAlone, Phase::kStopping);
  (void)life.handle(Event::kKillsDone, {});
  (void)life.handle(Event::kSignal, {});
  CHECK(life.phase() == Phase::kEnded);
}

TEST_CASE("Scopes are judged until only hooks are waited for") {
  for (const Phase phase : kPhases) {
    const LifeCycle life = life_in(Kind::kAroundCommand, phase);
    CHECK(life.judges() == (phase != Phase::kFinishingHooks && phase != Phase::kEnded));
    CHECK(life.is_asked_to_end() == (phase != Phase::kServing));
  }
}
