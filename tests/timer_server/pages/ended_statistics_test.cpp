// SPDX-License-Identifier: MIT
#include "timer_server/pages/ended_statistics.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/test_page.hpp"
#include "tests/support/files.hpp"
#include "timer_server/pages/page_guard.hpp"
#include "timer_server/pages/mapped_page.hpp"

using namespace filetimer;

namespace {

void add_entry(TestPage& page, std::string_view name, std::uint64_t count, std::int64_t longest) {
  PageHeader& header = page.header();
  SlotStatistics& entry = page.page().statistics(header.statistics);
  header.statistics = header.statistics + 1;
  write_name(entry.name, name);
  entry.count = count;
  entry.total_ns = longest;
  entry.longest_ns = longest;
  entry.last_ns = longest;
  entry.smallest_margin_ns = longest;
  entry.histogram[3] = static_cast<std::uint32_t>(count);
}

struct Sums {
  Sums() { PageGuard::install(); }
  [[nodiscard]] std::shared_ptr<MappedPage> page() const {
    return *MappedPage::open(path, "ended");
  }
  testing::TempFolder folder;
  const std::string path = folder.path("ended");
};

}  // namespace

TEST_CASE("Names add up over workers, threads and servers") {
  const Sums sums;
  TestPage first;
  add_entry(first, "forward", 2, 100);
  add_entry(first, "step", 1, 7);
  add_entry(first, "forward", 3, 50);  // another thread
  EndedStatistics(sums.path).add(first.page());
  TestPage second;
  add_entry(second, "forward", 5, 900);
  EndedStatistics(sums.path).add(second.page());  // the next server
  const auto page = sums.page();
  REQUIRE(statistics_in_use(page->layout()) == 2);
  const SlotStatistics& forward = page->layout().statistics(0);
  CHECK(read_name(forward.name) == "forward");
  CHECK(forward.count == 10);
  CHECK(forward.total_ns == 1050);
  CHECK(forward.longest_ns == 900);
  CHECK(forward.last_ns == 900);
  CHECK(forward.smallest_margin_ns == 50);
  CHECK(forward.histogram[3] == 10);
  CHECK(read_name(page->layout().statistics(1).name) == "step");
}

TEST_CASE("A page without entries makes no file") {
  const Sums sums;
  TestPage page;
  EndedStatistics(sums.path).add(page.page());
  CHECK(!MappedPage::open(sums.path, "ended"));
}

TEST_CASE("More names than fit, and numbers beyond all bounds, do no harm") {
  const Sums sums;
  EndedStatistics statistics(sums.path);
  for (int round = 0; round < 2; ++round) {
    TestPage page;
    for (int i = 0; i < 1024; ++i) {
      add_entry(page, fmt::format("{} {}", round, i), 1, std::numeric_limits<std::int64_t>::max());
    }
    page.header().statistics = 0xFFFF'FFFF;
    statistics.add(page.page());
    statistics.add(page.page());
  }
  const auto page = sums.page();
  CHECK(statistics_in_use(page->layout()) == kMaxStatistics);
  CHECK(page->layout().statistics(0).total_ns == std::numeric_limits<std::int64_t>::max());
  CHECK(page->layout().statistics(0).count == 2);
}
