// SPDX-License-Identifier: MIT
#include "timer_server/scopes/worker_page.hpp"

#include <doctest/doctest.h>

using namespace filetimer;

TEST_CASE("the memory of names begins with a memory page of 4, 16 or 64 KB") {
  for (const std::size_t memory_page : {4096UL, 16'384UL, 65'536UL}) {
    const std::size_t begin = WorkerPage::names_begin(memory_page);
    CAPTURE(memory_page);
    CHECK(begin % memory_page == 0);
    CHECK(begin <= kNamesAt);
    CHECK(begin + memory_page > kNamesAt);
  }
}
