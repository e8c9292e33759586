// SPDX-License-Identifier: MIT
#include "timer_server/control/life_cycle.hpp"

#include <algorithm>
#include <iterator>

namespace filetimer {
namespace {

// The servers that a transition is for, as bits 1 << Kind.
enum For : unsigned { kAlone = 1, kAround = 2, kBoth = 3 };
// Its condition: by what the server was asked to end, as bits 1 << Asked.
enum If : unsigned { kNotAsked = 1, kNotSignalled = 3, kSignalled = 4, kAsked = 6, kAny = 7 };

struct Transition {
  For kind;
  LifeCycle::Phase from;
  If condition;
  LifeCycle::Event event;
  LifeCycle::Phase to;
  LifeCycle::Action action;
};

}  // namespace

LifeCycle::Action LifeCycle::handle(Event event, Instant now) {
  using enum Action;
  if (event == Event::kSignal && asked_ == Asked::kBySignal && now < signalled_ + kSecondSignal) {
    return kNone;
  }
  static constexpr Transition kTransitions[] = {
      {kAlone, Phase::kServing, kAny, Event::kSignal, Phase::kStopping, kFinishKills},
      {kAlone, Phase::kServing, kAny, Event::kShutdown, Phase::kStopping, kFinishKills},
      {kAlone, Phase::kServing, kAny, Event::kForcedShutdown, Phase::kStopping, kFinishKills},

      {kAround, Phase::kServing, kNotSignalled, Event::kSignal, Phase::kServing, kAskCommandToEnd},
      {kAround, Phase::kServing, kSignalled, Event::kSignal, Phase::kStopping, kKillCommand},
      {kAround, Phase::kServing, kNotAsked, Event::kShutdown, Phase::kServing, kAskCommandToEnd},
      {kAround, Phase::kServing, kAny, Event::kForcedShutdown, Phase::kStopping, kKillCommand},
      {kAround, Phase::kServing, kAny, Event::kCommandEnded, Phase::kCommandEnded, kNone},
      // Processes that COMMAND started may still run.
      {kAround, Phase::kCommandEnded, kSignalled, Event::kSignal, Phase::kStopping, kKillCommand},
      {kAround, Phase::kCommandEnded, kAny, Event::kForcedShutdown, Phase::kStopping, kKillCommand},
      {kAround, Phase::kCommandEnded, kAny, Event::kKillsDone, Phase::kFinishingHooks, kNone},
      {kAround, Phase::kFinishingHooks, kAny, Event::kForcedShutdown, Phase::kFinishingHooks,
       kKillCommand},

      {kBoth, Phase::kStopping, kAny, Event::kKillsDone, Phase::kFinishingHooks, kNone},
      {kBoth, Phase::kFinishingHooks, kAsked, Event::kSignal, Phase::kEnded, kNone},
      {kBoth, Phase::kFinishingHooks, kAny, Event::kHooksDone, Phase::kEnded, kNone},
  };
  const auto bit = [](auto value) { return 1U << static_cast<unsigned>(value); };
  const auto* const transition = std::ranges::find_if(kTransitions, [&](const Transition& each) {
    return (each.kind & bit(kind_)) != 0 && each.from == phase_ && each.event == event &&
           (each.condition & bit(asked_)) != 0;
  });
  if (event == Event::kSignal) {
    signalled_ = now;
    asked_ = Asked::kBySignal;
  } else if (event == Event::kShutdown || event == Event::kForcedShutdown) {
    asked_ = std::max(asked_, Asked::kByRequest);
  } else if (event == Event::kShutdownWithdrawn && asked_ == Asked::kByRequest && !is_stopping()) {
    asked_ = Asked::kNo;
  }
  if (transition == std::end(kTransitions)) {
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
  until_ = phase == Phase::kStopping         ? now + kStopLimit
           : phase == Phase::kFinishingHooks ? now + kHookLimit
                                             : Instant::never();
}

}  // namespace filetimer
