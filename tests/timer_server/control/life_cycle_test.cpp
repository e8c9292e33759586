// SPDX-License-Identifier: MIT
#include "timer_server/control/life_cycle.hpp"

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

using Phase = LifeCycle::Phase;
using Asked = LifeCycle::Asked;
using Event = LifeCycle::Event;
using Action = LifeCycle::Action;
using Kind = LifeCycle::Kind;

constexpr std::array kEvents{
    Event::kSignal,       Event::kShutdown,  Event::kForcedShutdown, Event::kShutdownWithdrawn,
    Event::kCommandEnded, Event::kKillsDone, Event::kHooksDone};

// Phases: Serving, Command ended, stopping (X), finishing Hooks, Ended. Asked to end: not, by a
// request, by a signal.
std::string name_of(const LifeCycle& life) {
  return {"SCXHE"[static_cast<std::size_t>(life.phase())],
          "nrs"[static_cast<std::size_t>(life.asked())]};
}

// Actions: a ask COMMAND to end, p forward the signal, f finish kills, k kill COMMAND.
char name_of(Action action) {
  return "-apfk"[static_cast<std::size_t>(action)];
}

struct State {
  std::vector<Event> way;  // the events that lead to it
  std::string name;
  std::string_view expected;  // for each event the state that follows, and the action
};

void check(Kind kind, const State& state) {
  std::string row;
  for (const Event event : kEvents) {
    LifeCycle life(kind);
    for (const Event before : state.way) {
      (void)life.handle(before, {});
    }
    REQUIRE(name_of(life) == state.name);
    const Action action = life.handle(event, {});
    row += (row.empty() ? "" : " ") + name_of(life) + name_of(action);
  }
  CAPTURE(state.name);
  CHECK(row == state.expected);
}

}  // namespace

TEST_CASE("A server around a command makes the expected transition for each event in each state") {
  constexpr Event kEnd = Event::kCommandEnded;
  constexpr Event kAsk = Event::kShutdown;
  constexpr Event kForce = Event::kForcedShutdown;
  constexpr Event kDone = Event::kKillsDone;
  constexpr Event kSignal = Event::kSignal;
  // signal shutdown forced withdrawn command-ended kills-done hooks-done
  for (const State& state :
       std::vector<State>{{{}, "Sn", "Ssp Sra Xrk Sn- Cn- Sn- Sn-"},
                          {{kAsk}, "Sr", "Ssp Sr- Xrk Sn- Cr- Sr- Sr-"},
                          {{kSignal}, "Ss", "Xsk Ss- Xsk Ss- Cs- Ss- Ss-"},
                          {{kEnd}, "Cn", "Cs- Cr- Xrk Cn- Cn- Hn- Cn-"},
                          {{kAsk, kEnd}, "Cr", "Cs- Cr- Xrk Cn- Cr- Hr- Cr-"},
                          {{kSignal, kEnd}, "Cs", "Xsk Cs- Xsk Cs- Cs- Hs- Cs-"},
                          {{kForce}, "Xr", "Xs- Xr- Xr- Xr- Xr- Hr- Xr-"},
                          {{kSignal, kSignal}, "Xs", "Xs- Xs- Xs- Xs- Xs- Hs- Xs-"},
                          {{kEnd, kDone}, "Hn", "Hs- Hr- Hrk Hn- Hn- Hn- En-"},
                          {{kForce, kDone}, "Hr", "Es- Hr- Hrk Hr- Hr- Hr- Er-"},
                          {{kSignal, kEnd, kDone}, "Hs", "Es- Hs- Hsk Hs- Hs- Hs- Es-"},
                          {{kSignal, kEnd, kDone, kSignal}, "Es", "Es- Es- Es- Es- Es- Es- Es-"}}) {
    check(Kind::kAroundCommand, state);
  }
}

TEST_CASE("A server without a command makes the expected transition for each event in each state") {
  constexpr Event kAsk = Event::kShutdown;
  constexpr Event kDone = Event::kKillsDone;
  constexpr Event kSignal = Event::kSignal;
  for (const State& state :
       std::vector<State>{{{}, "Sn", "Xsf Xrf Xrf Sn- Sn- Sn- Sn-"},
                          {{kAsk}, "Xr", "Xs- Xr- Xr- Xr- Xr- Hr- Xr-"},
                          {{kSignal}, "Xs", "Xs- Xs- Xs- Xs- Xs- Hs- Xs-"},
                          {{kAsk, kDone}, "Hr", "Es- Hr- Hr- Hr- Hr- Hr- Er-"},
                          {{kSignal, kDone}, "Hs", "Es- Hs- Hs- Hs- Hs- Hs- Es-"}}) {
    check(Kind::kAlone, state);
  }
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

TEST_CASE("Scopes are judged until the server waits for hooks only") {
  LifeCycle life(Kind::kAroundCommand);
  CHECK(life.judges());
  (void)life.handle(Event::kCommandEnded, {});
  CHECK(life.judges());
  CHECK_FALSE(life.is_stopping());
  (void)life.handle(Event::kForcedShutdown, {});
  CHECK(life.judges());
  CHECK(life.is_stopping());
  (void)life.handle(Event::kKillsDone, {});
  CHECK_FALSE(life.judges());
  CHECK(life.is_stopping());
}
