// SPDX-License-Identifier: MIT
#include "timer_server/control/life_cycle.hpp"

#include <algorithm>
#include <initializer_list>
#include <span>

namespace filetimer {
namespace {

using Phase = LifeCycle::Phase;
using Asked = LifeCycle::Asked;
using Event = LifeCycle::Event;
using Action = LifeCycle::Action;

// The condition of a transition: by what the server was asked to end, as bits 1 << Asked.
enum If : unsigned { kNotAsked = 1, kNotSignalled = 3, kSignalled = 4, kAsked = 6, kAny = 7 };

struct Transition {
  Phase from;
  If condition;
  Event event;
  Phase to;
  Action action;
};

constexpr Transition kAlone[] = {
    {Phase::kServing, If::kAny, Event::kSignal, Phase::kStopping, Action::kFinishKills},
    {Phase::kServing, If::kAny, Event::kShutdown, Phase::kStopping, Action::kFinishKills},
    {Phase::kServing, If::kAny, Event::kForcedShutdown, Phase::kStopping, Action::kFinishKills},
};

constexpr Transition kAroundCommand[] = {
    {Phase::kServing, If::kNotSignalled, Event::kSignal, Phase::kServing, Action::kPassSignalOn},
    {Phase::kServing, If::kSignalled, Event::kSignal, Phase::kStopping, Action::kKillCommand},
    {Phase::kServing, If::kNotAsked, Event::kShutdown, Phase::kServing, Action::kAskCommandToEnd},
    {Phase::kServing, If::kAny, Event::kForcedShutdown, Phase::kStopping, Action::kKillCommand},
    {Phase::kServing, If::kAny, Event::kCommandEnded, Phase::kCommandEnded, Action::kNone},
    // Processes that COMMAND started may still run.
    {Phase::kCommandEnded, If::kSignalled, Event::kSignal, Phase::kStopping, Action::kKillCommand},
    {Phase::kCommandEnded, If::kAny, Event::kForcedShutdown, Phase::kStopping,
     Action::kKillCommand},
    {Phase::kCommandEnded, If::kAny, Event::kKillsDone, Phase::kFinishingHooks, Action::kNone},
    {Phase::kFinishingHooks, If::kAny, Event::kForcedShutdown, Phase::kFinishingHooks,
     Action::kKillCommand},
};

// The last phases, of both kinds.
constexpr Transition kLast[] = {
    {Phase::kStopping, If::kAny, Event::kKillsDone, Phase::kFinishingHooks, Action::kNone},
    {Phase::kFinishingHooks, If::kAsked, Event::kSignal, Phase::kEnded, Action::kNone},
    {Phase::kFinishingHooks, If::kAny, Event::kHooksDone, Phase::kEnded, Action::kNone},
};

const Transition* find(std::initializer_list<std::span<const Transition>> tables, Phase phase,
                       Asked asked, Event event) {
  for (const std::span<const Transition> table : tables) {
    const auto found = std::ranges::find_if(table, [&](const Transition& transition) {
      return transition.from == phase && transition.event == event &&
             (transition.condition >> static_cast<unsigned>(asked) & 1U) != 0;
    });
    if (found != table.end()) {
      return &*found;
    }
  }
  return nullptr;
}

Asked asked_after(Asked asked, Event event, Phase phase) {
  switch (event) {
    case Event::kSignal:
      return Asked::kBySignal;
    case Event::kShutdown:
    case Event::kForcedShutdown:
      return std::max(asked, Asked::kByRequest);
    case Event::kShutdownWithdrawn:
      return asked == Asked::kByRequest && phase < Phase::kStopping ? Asked::kNo : asked;
    case Event::kCommandEnded:
    case Event::kKillsDone:
    case Event::kHooksDone:
      break;
  }
  return asked;
}

}  // namespace

LifeCycle::Action LifeCycle::handle(Event event, Instant now) {
  const std::span<const Transition> own =
      kind_ == Kind::kAlone ? std::span<const Transition>(kAlone) : kAroundCommand;
  const Transition* const transition = find({own, kLast}, phase_, asked_, event);
  asked_ = asked_after(asked_, event, phase_);
  if (transition == nullptr) {
    return Action::kNone;
  }
  if (transition->to != phase_) {
    enter(transition->to, now);
  }
  return transition->action;
}

void LifeCycle::advance(Instant now) {
  if (now >= until_) {
    enter(phase_ == Phase::kStopping ? Phase::kFinishingHooks : Phase::kEnded, now);
  }
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
    case Phase::kCommandEnded:
    case Phase::kEnded:
      until_ = Instant::never();
      break;
  }
}

}  // namespace filetimer
