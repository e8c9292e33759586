// SPDX-License-Identifier: MIT
#include "timer_server/scopes/given_time.hpp"

#include <doctest/doctest.h>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

Instant instant_at(Duration time) {
  return Instant{} + time;
}

// A scope of 10 s that began at 100 s.
constexpr GivenTime::Span kScope{
    .started = {100'000'000'000}, .deadline = {110'000'000'000}, .timeout = 10s};

}  // namespace

TEST_CASE("A deadline is unchanged if no time was missed") {
  const GivenTime missed;
  CHECK(missed.is_empty());
  CHECK(missed.deadline(kScope, {}) == instant_at(110s));
}

TEST_CASE("A scope that was open in a gap gets the length of the gap, at most its timeout") {
  GivenTime missed;
  missed.add(instant_at(105s), 3s);
  CHECK(missed.deadline(kScope, {}) == instant_at(113s));
  GivenTime long_gap;
  long_gap.add(instant_at(500s), 400s);
  CHECK(long_gap.deadline(kScope, {}) == instant_at(510s));
}

TEST_CASE("A scope that began after a gap gets nothing for it") {
  GivenTime missed;
  missed.add(instant_at(100s), 3s);
  CHECK(missed.deadline(kScope, {}) == instant_at(110s));
}

TEST_CASE("Only the first of several gaps counts until the scope is renewed") {
  GivenTime missed;
  missed.add(instant_at(105s), 3s);
  missed.add(instant_at(109s), 2s);
  missed.add(instant_at(112s), 4s);
  CHECK(missed.deadline(kScope, {}) == instant_at(113s));
  const GivenTime::Span renewed{
      .started = instant_at(108s), .deadline = instant_at(118s), .timeout = 10s};
  CHECK(missed.deadline(renewed, {}) == instant_at(120s));
}

TEST_CASE("A worker that is resumed has the full timeout from then on") {
  GivenTime missed;
  CHECK(missed.deadline(kScope, instant_at(107s)) == instant_at(117s));
  CHECK(missed.deadline(kScope, instant_at(100s)) ==
        instant_at(110s));  // resumed before the scope began
  missed.add(instant_at(105s), 3s);
  CHECK(missed.deadline(kScope, instant_at(107s)) == instant_at(117s));
  missed.add(instant_at(115s), 2s);
  CHECK(missed.deadline(kScope, instant_at(107s)) == instant_at(119s));
}

TEST_CASE("A resume makes no deadline earlier") {
  const GivenTime missed;
  const GivenTime::Span longer{
      .started = instant_at(100s), .deadline = instant_at(200s), .timeout = 10s};
  CHECK(missed.deadline(longer, instant_at(101s)) == instant_at(200s));
}

TEST_CASE("A scope without a deadline gets none from missed time") {
  GivenTime missed;
  missed.add(instant_at(105s), 3s);
  const GivenTime::Span endless{.started = instant_at(100s), .deadline = Instant::never()};
  CHECK(missed.deadline(endless, instant_at(104s)).is_never());
}

TEST_CASE("A scope with a deadline and no timeout gets a whole gap, and nothing for a resume") {
  GivenTime missed;
  const GivenTime::Span paused{.started = instant_at(100s), .deadline = instant_at(110s)};
  CHECK(missed.deadline(paused, instant_at(104s)) == instant_at(110s));
  missed.add(instant_at(500s), 400s);
  CHECK(missed.deadline(paused, {}) == instant_at(900s));
}

TEST_CASE("One more gap makes no deadline earlier, however many there are") {
  GivenTime missed;
  Instant before = kScope.deadline;
  for (std::size_t i = 0; i < 3 * GivenTime::kMaxGaps; ++i) {
    const auto second = static_cast<int>(i);
    missed.add(instant_at(101s + second * 1s), 10s - second % 7 * 1s);
    const Instant now = missed.deadline(kScope, {});
    CHECK(now >= before);
    before = now;
  }
}
