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

// Actions: a ask COMMAND to end, f finish kills, k kill COMMAND.
char name_of(Action action) {
  return "-afk"[static_cast<std::size_t>(action)];
}

}  // namespace

TEST_CASE("A server makes the expected transition for each event in each state") {
  constexpr Event kEnd = Event::kCommandEnded;
  constexpr Event kAsk = Event::kShutdown;
  constexpr Event kForce = Event::kForcedShutdown;
  constexpr Event kDone = Event::kKillsDone;
  constexpr Event kSignal = Event::kSignal;
  constexpr Kind kAlone = Kind::kAlone;
  constexpr Kind kAround = Kind::kAroundCommand;
  struct State {
    Kind kind;
    std::vector<Event> way;  // the events that lead to it
    std::string name;
    std::string_view expected;  // for each event the state that follows, and the action
  };
  // signal shutdown forced withdrawn command-ended kills-done hooks-done
  for (const State& state : std::vector<State>{
           {kAround, {}, "Sn", "Ssa Sra Xrk Sn- Cn- Sn- Sn-"},
           {kAround, {kAsk}, "Sr", "Ssa Sr- Xrk Sn- Cr- Sr- Sr-"},
           {kAround, {kSignal}, "Ss", "Xsk Ss- Xsk Ss- Cs- Ss- Ss-"},
           {kAround, {kEnd}, "Cn", "Cs- Cr- Xrk Cn- Cn- Hn- Cn-"},
           {kAround, {kAsk, kEnd}, "Cr", "Cs- Cr- Xrk Cn- Cr- Hr- Cr-"},
           {kAround, {kSignal, kEnd}, "Cs", "Xsk Cs- Xsk Cs- Cs- Hs- Cs-"},
           {kAround, {kForce}, "Xr", "Xs- Xr- Xr- Xr- Xr- Hr- Xr-"},
           {kAround, {kSignal, kSignal}, "Xs", "Xs- Xs- Xs- Xs- Xs- Hs- Xs-"},
           {kAround, {kEnd, kDone}, "Hn", "Hs- Hr- Hrk Hn- Hn- Hn- En-"},
           {kAround, {kForce, kDone}, "Hr", "Es- Hr- Hrk Hr- Hr- Hr- Er-"},
           {kAround, {kSignal, kEnd, kDone}, "Hs", "Es- Hs- Hsk Hs- Hs- Hs- Es-"},
           {kAround, {kSignal, kEnd, kDone, kSignal}, "Es", "Es- Es- Es- Es- Es- Es- Es-"},
           {kAlone, {}, "Sn", "Xsf Xrf Xrf Sn- Sn- Sn- Sn-"},
           {kAlone, {kAsk}, "Xr", "Xs- Xr- Xr- Xr- Xr- Hr- Xr-"},
           {kAlone, {kSignal}, "Xs", "Xs- Xs- Xs- Xs- Xs- Hs- Xs-"},
           {kAlone, {kAsk, kDone}, "Hr", "Es- Hr- Hr- Hr- Hr- Hr- Er-"},
           {kAlone, {kSignal, kDone}, "Hs", "Es- Hs- Hs- Hs- Hs- Hs- Es-"}}) {
    std::string row;
    for (Instant now; const Event event : kEvents) {
      LifeCycle life(state.kind);
      for (const Event before : state.way) {
        (void)life.handle(before, now = now + LifeCycle::kSecondSignal);
      }
      REQUIRE(name_of(life) == state.name);
      CHECK(life.judges() == (std::string_view("SCX").find(state.name[0]) != std::string::npos));
      CHECK(life.is_stopping() ==
            (std::string_view("XHE").find(state.name[0]) != std::string::npos));
      const Action action = life.handle(event, now = now + LifeCycle::kSecondSignal);
      row += (row.empty() ? "" : " ") + name_of(life) + name_of(action);
      CHECK((event != kSignal || life.handle(kSignal, now + 24ms) == Action::kNone));
    }
    CHECK_MESSAGE(row == state.expected, state.name);
  }
}

TEST_CASE("A server that stops ends in bounded time, whatever hangs") {
  LifeCycle life(Kind::kAlone);
  CHECK(life.next().is_never());
  const Instant begun{1'000};
  (void)life.handle(Event::kSignal, begun);
  CHECK(life.next() == begun + 2s);
  life.advance(begun + (LifeCycle::kStopLimit - 1ns));
  CHECK(life.phase() == Phase::kStopping);
  const Instant stopped = begun + LifeCycle::kStopLimit;
  life.advance(stopped);
  CHECK(life.phase() == Phase::kFinishingHooks);
  CHECK(life.next() == stopped + 10s);
  life.advance(stopped + LifeCycle::kHookLimit);
  CHECK(life.phase() == Phase::kEnded);
  CHECK(life.next().is_never());
}
