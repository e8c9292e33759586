// The durations of scopes on the page.
// SPDX-License-Identifier: MIT
#include "timer_client/client/page/page_statistics.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filetimer/timer_client.hpp>
#include <map>
#include <memory>
#include <numeric>
#include <thread>

#include "common/sanitizers.hpp"
#include "tests/support/moved_clock.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::Connected;

namespace {

std::multimap<std::string, const SlotStatistics*> statistics_of(const PageLayout& page) {
  std::multimap<std::string, const SlotStatistics*> found;
  for (std::size_t i = 0; i < statistics_in_use(page); ++i) {
    found.emplace(read_name(page.statistics(i).name), &page.statistics(i));
  }
  return found;
}

const SlotStatistics& of(const PageLayout& page, std::string_view name) {
  const auto all = statistics_of(page);
  const std::string key(name);
  REQUIRE(all.count(key) == 1);
  return *all.find(key)->second;
}

}  // namespace

TEST_CASE("a scope is counted with its time, its bucket, its timeout and its margin") {
  const auto entry = std::make_unique<SlotStatistics>();
  entry->smallest_margin_ns = kNoMargin;
  count_scope(*entry, {5000, 6000, 1500, 500});
  count_scope(*entry, {6000, 7024, Duration::max().count(), kNoMargin});
  count_scope(*entry, {8000, 10'047, 2044, -3});
  CHECK(entry->count == 3);
  CHECK(entry->total_ns == 4071);
  CHECK(entry->first_ns == 1000);
  CHECK(entry->last_ns == 2047);
  CHECK(entry->longest_ns == 2047);
  CHECK(entry->timeout_ns == 2044);
  CHECK(entry->smallest_margin_ns == -3);
  CHECK(entry->histogram[bucket_of(1000)] == 1);
  CHECK(entry->histogram[bucket_of(1024)] == 1);
  CHECK(entry->histogram[bucket_of(2047)] == 1);
  count_scope(*entry, {1, 1, 0, 0});
  count_scope(*entry, {1, 2, 0, 0});
  CHECK(entry->histogram[0] == 2);
  constexpr std::int64_t kVeryLong = std::int64_t{1} << 60;
  count_scope(*entry, {0, kVeryLong, 0, 0});
  CHECK(entry->histogram[kHistogramBuckets - 1] == 1);
  CHECK(entry->longest_ns == kVeryLong);
  entry->histogram[0] = 0xFFFF'FFFE;
  for (int i = 0; i < 3; ++i) {
    count_scope(*entry, {1, 2, 0, 0});
    CHECK(entry->histogram[0] == 0xFFFF'FFFF);
  }
}

TEST_CASE("an entry returns the scopes that ended last, without the one being written") {
  const auto entry = std::make_unique<SlotStatistics>();
  std::vector<EndedReading> ended;
  read_ended_scopes(*entry, ended);
  CHECK(ended.empty());
  // Of 40 scopes it has the 15 last ones.
  for (const auto& [count, first] : {std::pair(5, 0), std::pair(40, 25)}) {
    for (auto n = static_cast<std::int64_t>(entry->count); n < count; ++n) {
      count_scope(*entry, {100 * n, 100 * n + n, 0, 0});
    }
    ended.clear();
    read_ended_scopes(*entry, ended);
    REQUIRE(std::ssize(ended) == count - first);
    CHECK(ended.front().took == Duration{first});
    CHECK(ended.front().ended == Instant{101 * first});
    CHECK(ended.back().took == Duration{count - 1});
    CHECK(ended.back().ended == Instant{101 * (count - 1)});
  }
}

TEST_CASE("the times of ended scopes are consistent and in order while further scopes end") {
  const auto entry = std::make_unique<SlotStatistics>();
  std::jthread worker([&](const std::stop_token& end) {
    for (std::int64_t n = 1; !end.stop_requested(); ++n) {
      count_scope(*entry, {n, 3 * n, 0, 0});
    }
  });
  std::size_t read = 0;
  std::size_t mixed = 0;
  std::size_t newer_first = 0;  // the worker has overwritten the older one
  std::vector<EndedReading> ended;
  const int readings = kIsSanitized ? 100'000 : 1'500'000;
  for (int i = 0; i < readings || read == 0; ++i) {
    ended.clear();
    read_ended_scopes(*entry, ended);
    for (const EndedReading& scope : ended) {
      mixed += scope.ended.ns * 2 == scope.took.count() * 3 ? 0U : 1U;
    }
    newer_first += std::ranges::is_sorted(ended, {}, &EndedReading::ended) ? 0U : 1U;
    read += ended.size();
  }
  worker.request_stop();
  worker.join();
  CHECK(mixed == 0);
  CHECK(newer_first == 0);
}

TEST_CASE_FIXTURE(
    Connected, "each name has an entry with its scopes, their timeout and their smallest margin") {
  const PageLayout page = server.page();
  for (int i = 0; i < 10; ++i) {
    auto scope = client.expires(1h, "short");
  }
  CHECK(client.expires(2h, "short").release());
  { auto scope = client.expires(kNoDeadline, "endless"); }
  auto late = client.expires(1ns, "late");
  CHECK(server.expire("late"));
  CHECK_FALSE(late.release());
  const auto& brief = of(page, "short");
  CHECK(brief.count == 11);
  CHECK(std::accumulate(std::begin(brief.histogram), std::end(brief.histogram), 0U) == 11);
  CHECK(brief.first_ns > 0);
  CHECK(brief.longest_ns >= brief.last_ns);
  CHECK(brief.total_ns >= brief.longest_ns);
  CHECK(brief.timeout_ns == Duration{2h}.count());
  CHECK(brief.smallest_margin_ns > Duration{59min}.count());
  CHECK(brief.smallest_margin_ns < Duration{1h}.count());
  CHECK(of(page, "endless").smallest_margin_ns == kNoMargin);
  CHECK(of(page, "late").smallest_margin_ns < 0);
}

TEST_CASE_FIXTURE(Connected, "the time of a scope is counted without its pauses") {
  auto resumed = client.expires(1h, "resumed");
  testing::move_clock(1min);
  CHECK(resumed.pause());
  testing::move_clock(10min);
  CHECK(resumed.resume());
  testing::move_clock(1min);
  CHECK(resumed.release());
  auto paused = client.expires(1h, "paused");
  testing::move_clock(2min);
  CHECK(paused.pause());
  testing::move_clock(10min);
  CHECK(paused.release());
  for (const char* name : {"resumed", "paused"}) {
    CHECK(of(server.page(), name).longest_ns >= Duration{2min}.count());
    CHECK(of(server.page(), name).longest_ns < Duration{3min}.count());
  }
}

TEST_CASE_FIXTURE(Connected,
                  "names beyond the last entry are not counted, those that have one are") {
  const PageLayout page = server.page();
  for (std::size_t i = 0; i < kMaxStatistics + 10; ++i) {
    auto scope = client.expires(1h, "name " + std::to_string(i));
  }
  CHECK(statistics_in_use(page) == kMaxStatistics);
  { auto scope = client.expires(1h, "name 7"); }
  CHECK(of(page, "name 7").count == 2);
  CHECK(statistics_of(page).count("name 1030") == 0);
  testing::in_thread([&] {
    auto scope = client.expires(1h, "name 8");  // no entry is left for it
    CHECK(scope.release());
  });
  CHECK(of(page, "name 8").count == 1);
}

TEST_CASE_FIXTURE(Connected,
                  "a thread continues the entry of one that has ended, and threads share none") {
  const auto use = [&] { CHECK(client.expires(1h, "step").release()); };
  testing::in_thread(use);
  testing::in_thread(use);
  CHECK(of(server.page(), "step").count == 2);
  use();
  testing::in_thread(use);
  CHECK(statistics_in_use(server.page()) == 2);
  CHECK(server.page().statistics(0).count == 3);
  CHECK(server.page().statistics(1).count == 1);
}
