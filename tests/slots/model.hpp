// What a worker with a few scopes and its server must do, in whole hours: the timeouts of the slot
// machine are hours, and its clock moves by hours.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace filetimer::slots {

constexpr int kThreads = 3;
constexpr int kKeys = 5;                // scopes that operations name
constexpr int kAll = kKeys + kThreads;  // and those of paused regions, one of each thread
constexpr int kIdle = kAll;             // the key of an idle timeout in a kill
constexpr int kNever = 1'000'000;       // no deadline
enum class State { kOut, kOpen, kJudged, kOver };  // kOver: the kill is over, the worker still in

struct ModelScope {
  State state = State::kOut;
  int due = 0;
  int timeout = 0;
  int left = 0;               // of a paused scope
  bool was_overdue = false;   // at a pause: it has got more time than its timeout
  bool is_resumed = false;    // since its opening or last renewal
  bool is_held = false;       // paused by its caller
  bool is_suspended = false;  // paused with its thread
  int page = 0;               // the number of the runtime directory
  int thread = 0;             // the number of the thread that opened it
  bool has_lost_thread = false;
  int version = 0;  // changes with the word of the slot
  [[nodiscard]] bool is_paused() const { return is_held || is_suspended; }
};

struct Model {
  bool is_pipe = false;
  int longest = kNever;  // --max-timeout
  int now = 0;
  std::array<ModelScope, kAll> scopes;
  struct Kill {
    int key;
    bool is_released;
  };
  std::vector<Kill> kills;  // under way
  int page = 0;             // on which scopes are opened
  bool is_made_again = false;
  bool must_look = true;                      // the client checks the directory with the next scope
  std::array<int, kThreads> thread{0, 1, 2};  // the numbers of the threads that live
  std::array<int, kThreads> region{-1, -1, -1};  // by key: the thread that is in it; -1: none
  struct Idle {
    bool is_on = false;
    bool is_judged = false;
    int timeout = 0;
    int since = -1;  // the last release; negative: none since it was set, judged or moved
  } idle;

  [[nodiscard]] int granted(int timeout) const { return std::min(timeout, longest); }
  [[nodiscard]] int later(int time) const { return time >= kNever ? kNever : now + time; }
  [[nodiscard]] bool is_suspended(int number) const {
    return std::ranges::find(region, number) != region.end();
  }
  [[nodiscard]] bool is_here(const ModelScope& scope) const {
    return scope.state != State::kOut && scope.page == page;
  }
  [[nodiscard]] bool is_inside() const {
    return std::ranges::any_of(scopes, [&](const auto& scope) { return is_here(scope); });
  }
  [[nodiscard]] bool is_idle() const {
    return idle.is_on && !idle.is_judged && !is_inside() && idle.since >= 0 &&
           idle.since + idle.timeout <= now;
  }

  // The client checks whether the directory was made again, and may continue on a new page.
  void look() {
    const bool may_move =
        std::ranges::none_of(thread, [&](int each) { return is_suspended(each); });
    if (std::exchange(must_look, false) && is_made_again && may_move) {
      is_made_again = false;
      must_look = true;
      ++page;
      idle.is_on = idle.is_on && !idle.is_judged;
      idle.is_judged = false;
      idle.since = -1;
    }
  }
  void open(int key, int number, int timeout) {
    ModelScope& scope = scopes[static_cast<std::size_t>(key)];
    scope = {.state = State::kOpen,
             .due = later(granted(timeout)),
             .timeout = timeout,
             .page = page,
             .thread = number,
             .version = scope.version + 1};
    if (is_suspended(number)) {
      pause(scope, scope.is_suspended);
    }
  }
  void pause(ModelScope& scope, bool& by) const {
    if (!scope.is_paused()) {
      scope.was_overdue = scope.due <= now;
      scope.is_resumed = false;
      scope.left = scope.due >= kNever ? kNever : std::max(scope.due - now, 0);
      scope.due = later(longest);
      ++scope.version;
    }
    by = true;
  }
  void resume(ModelScope& scope, bool& by) const {
    const bool was_paused = scope.is_paused();
    by = false;
    if (was_paused && !scope.is_paused()) {
      scope.due = later(scope.left);
      scope.is_resumed = true;
      ++scope.version;
    }
  }
  // Returns whether the scope was open.
  bool renew(int key, int number, int timeout, bool follows) {
    ModelScope& scope = scopes[static_cast<std::size_t>(key)];
    if (is_pipe) {
      release(key);
      open(key, number, timeout);
      return true;
    }
    if (scope.state != State::kOpen) {
      release(key);
      return false;
    }
    ++scope.version;
    scope.timeout = timeout;
    scope.was_overdue = scope.is_resumed = false;
    if (scope.is_paused()) {
      scope.left = granted(timeout);
      scope.due = later(longest);
      return true;
    }
    scope.due = later(granted(timeout));
    if (follows) {
      look();
      if (scope.page != page) {
        open(key, number, timeout);
      }
    }
    return true;
  }
  // Returns the state that the worker has left.
  State release(int key) {
    ModelScope& scope = scopes[static_cast<std::size_t>(key)];
    const State before = std::exchange(scope.state, State::kOut);
    ++scope.version;
    if (const auto kill = kill_of(key); before == State::kJudged && kill != kills.end()) {
      kill->is_released = true;
    }
    if (before != State::kOut && scope.page == page) {
      idle.since = now;
    }
    return before;
  }
  // The kill that is under way for the scope that is open now.
  std::vector<Kill>::iterator kill_of(int key) {
    return std::ranges::find_if(
        kills, [&](const Kill& kill) { return kill.key == key && !kill.is_released; });
  }
  void judge(int key) {
    kills.push_back({key, false});
    if (key == kIdle) {
      idle.is_judged = true;
      idle.since = -2 - idle.since;  // for a verdict that is revoked
    } else {
      scopes[static_cast<std::size_t>(key)].state = State::kJudged;
    }
  }
  // Ends the kill, or revokes its verdict.
  void settle(std::size_t number, bool is_revoked) {
    const Kill kill = kills[number];
    kills.erase(kills.begin() + static_cast<std::ptrdiff_t>(number));
    if (kill.is_released) {
      return;
    }
    if (kill.key == kIdle) {
      idle.is_judged = false;
      idle.since = idle.since >= -1 ? idle.since : is_revoked ? -2 - idle.since : -1;
      return;
    }
    ModelScope& scope = scopes[static_cast<std::size_t>(kill.key)];
    scope.state = is_revoked ? State::kOpen : is_pipe ? State::kOut : State::kOver;
  }
  void end_thread(int index) {
    const int number = thread[static_cast<std::size_t>(index)];
    for (ModelScope& scope : scopes) {
      if (scope.state != State::kOut && scope.thread == number) {
        scope.has_lost_thread = true;
        if (scope.state == State::kOpen && scope.is_suspended) {
          resume(scope, scope.is_suspended);
        }
      }
    }
    std::ranges::replace(region, number, -1);
    thread[static_cast<std::size_t>(index)] = number + kThreads;
  }
  void end_idle() {
    if (const auto kill = kill_of(kIdle); idle.is_judged && kill != kills.end()) {
      kill->is_released = true;
    }
    idle = {};
  }
  // Of a thread, with a scope of its own.
  void begin_region(int index) {
    const int number = thread[static_cast<std::size_t>(index)];
    open(kKeys + index, number, kNever);
    region[static_cast<std::size_t>(index)] = number;
    for (ModelScope& scope : scopes) {
      if (scope.state == State::kOpen && scope.thread == number) {
        pause(scope, scope.is_suspended);
      }
    }
  }
  void end_region(int key) {
    const int number = std::exchange(region[static_cast<std::size_t>(key)], -1);
    for (ModelScope& scope : scopes) {
      if (number >= 0 && scope.state == State::kOpen && scope.thread == number &&
          scope.is_suspended) {
        resume(scope, scope.is_suspended);
      }
    }
    release(kKeys + key);
  }
};

}  // namespace filetimer::slots
