// SPDX-License-Identifier: MIT
#include "timer_server/control/control_queue.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace filetimer;

TEST_CASE("Control requests over the limit of an iteration are kept for the next one, in order") {
  using Place = ControlQueue::Place;
  ControlQueue queue;
  for (std::size_t i = 0; i < ControlQueue::kMostAtOnce; ++i) {
    CHECK(queue.add("early", {}) == Place::kNow);
  }
  CHECK(queue.add("first", {}) == Place::kLater);
  CHECK_FALSE(queue.take({}));
  queue.begin_iteration();
  CHECK(queue.add("second", {}) == Place::kLater);  // not before the first
  CHECK(queue.take({}) == "first");
  CHECK(queue.take({}) == "second");
  CHECK_FALSE(queue.take({}));
  CHECK(queue.add("third", {}) == Place::kNow);
}

TEST_CASE("The time for control requests in an iteration has a limit") {
  ControlQueue queue;
  const Instant begun{1'000};
  CHECK(queue.add("a", begun) == ControlQueue::Place::kNow);
  CHECK(queue.add("b", begun + ControlQueue::kLongestAtOnce) == ControlQueue::Place::kLater);
  queue.begin_iteration();
  const Instant next = begun + ControlQueue::kLongestAtOnce;
  CHECK(queue.take(next) == "b");
}

TEST_CASE("The number of waiting control requests has a limit") {
  ControlQueue queue;
  for (std::size_t i = 0; i < ControlQueue::kMostAtOnce + ControlQueue::kMostWaiting; ++i) {
    CHECK(queue.add("x", {}) != ControlQueue::Place::kFull);
  }
  CHECK(queue.add("x", {}) == ControlQueue::Place::kFull);
  CHECK(queue.waiting() == ControlQueue::kMostWaiting);
}
