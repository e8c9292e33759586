// SPDX-License-Identifier: MIT
#include "timer_server/life_cycle.hpp"

#include <span>

namespace filetimer {
namespace {

using Phase = LifeCycle::Phase;
using Event = LifeCycle::Event;
using Action = LifeCycle::Action;

struct Transition {
  Phase from;
  Event event;
  Phase to;
  Action action = Action::kNone;
};

constexpr Transition kAlone[] = {
    {Phase::kServing, Event::kSignal, Phase::kStopping, Action::kFinishKills},
    {Phase::kServing, Event::kShutdown, Phase::kStopping, Action::kFinishKills},
    {Phase::kServing, Event::kForcedShutdown, Phase::kStopping, Action::kFinishKills},
};

constexpr Transition kAroundCommand[] = {
    {Phase::kServing, Event::kSignal, Phase::kSignalledToEnd, Action::kPassSignalOn},
    {Phase::kServing, Event::kShutdown, Phase::kEndingCommand, Action::kAskCommandToEnd},
    {Phase::kServing, Event::kForcedShutdown, Phase::kStopping, Action::kKillCommand},
    {Phase::kServing, Event::kCommandEnded, Phase::kCommandEnded},
    {Phase::kEndingCommand, Event::kSignal, Phase::kSignalledToEnd, Action::kPassSignalOn},
    {Phase::kEndingCommand, Event::kForcedShutdown, Phase::kStopping, Action::kKillCommand},
    {Phase::kEndingCommand, Event::kShutdownWithdrawn, Phase::kServing},
    {Phase::kEndingCommand, Event::kCommandEnded, Phase::kCommandEnded},
    {Phase::kSignalledToEnd, Event::kSignal, Phase::kStopping, Action::kKillCommand},
    {Phase::kSignalledToEnd, Event::kForcedShutdown, Phase::kStopping, Action::kKillCommand},
    {Phase::kSignalledToEnd, Event::kCommandEnded, Phase::kCommandEnded},
    {Phase::kCommandEnded, Event::kSignal, Phase::kStopping, Action::kFinishKills},
    {Phase::kCommandEnded, Event::kForcedShutdown, Phase::kStopping, Action::kFinishKills},
    {Phase::kCommandEnded, Event::kKillsDone, Phase::kFinishingHooks},
};

// How every server ends.
constexpr Transition kLast[] = {
    {Phase::kStopping, Event::kKillsDone, Phase::kFinishingHooks},
    {Phase::kFinishingHooks, Event::kSignal, Phase::kEnded},
    {Phase::kFinishingHooks, Event::kHooksDone, Phase::kEnded},
};

const Transition* find(std::span<const Transition> table, Phase from, Event event) {
  for (const Transition& transition : table) {
    if (transition.from == from && transition.event == event) {
      return &transition;
    }
  }
  return nullptr;
}

}  // namespace

LifeCycle::Action LifeCycle::handle(Event event, Instant now) {
  const std::span<const Transition> own =
      kind_ == Kind::kAlone ? std::span<const Transition>(kAlone) : kAroundCommand;
  const Transition* transition = find(own, phase_, event);
  if (transition == nullptr) {
    transition = find(kLast, phase_, event);
  }
  if (transition == nullptr) {
    return Action::kNone;
  }
  enter(transition->to, now);
  return transition->action;
}

void LifeCycle::advance(Instant now) {
  if (now < until_) {
    return;
  }
  enter(phase_ == Phase::kStopping ? Phase::kFinishingHooks : Phase::kEnded, now);
}

void LifeCycle::enter(Phase phase, Instant now) {
  phase_ = phase;
  switch (phase) {
    case Phase::kStopping:
      until_ = now + kStopLimit;
      break;
    case Phase::kFinishingHooks:
      until_ = now + kHookLimit;
      break;
    case Phase::kServing:
    case Phase::kEndingCommand:
    case Phase::kSignalledToEnd:
    case Phase::kCommandEnded:
    case Phase::kEnded:
      until_ = Instant::never();
      break;
  }
}

}  // namespace filetimer
