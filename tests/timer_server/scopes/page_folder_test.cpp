// SPDX-License-Identifier: MIT
#include "timer_server/scopes/page_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/support/files.hpp"

using namespace filetimer;

TEST_CASE("A folder of pages has changed between any two times of its files") {
  const testing::TempFolder temp;
  auto folder = PageFolder::make(temp.path());
  REQUIRE(folder);
  // 2^55 s are a multiple of 2^64 ns.
  for (const std::int64_t seconds : {std::int64_t{1}, (std::int64_t{1} << 55) + 1}) {
    const timespec time{seconds, 0};
    const timespec times[2]{time, time};
    REQUIRE(::utimensat(AT_FDCWD, temp.path("scopes").c_str(), times, 0) == 0);
    CHECK(folder->has_changed());
    CHECK_FALSE(folder->has_changed());
  }
}
