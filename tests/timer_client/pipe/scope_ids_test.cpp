// SPDX-License-Identifier: MIT
#include "timer_client/src/pipe/scope_ids.hpp"

#include <doctest/doctest.h>

#include "common/limits.hpp"

using filetimer::ScopeIds;

TEST_CASE("a name that is open gets the first free number") {
  ScopeIds ids;
  CHECK(ids.open(1, "step") == "step");
  CHECK(ids.open(1, "step") == "step#2");
  CHECK(ids.open(1, "step") == "step#3");
  ids.close(1);
  ids.give_back(1, "step#2");
  CHECK(ids.open(1, "step") == "step#2");
}

TEST_CASE("a name that looks like a numbered one stays a timer of its own") {
  ScopeIds ids;
  CHECK(ids.open(1, "step#2") == "step#2");
  CHECK(ids.open(1, "step") == "step");
  CHECK(ids.open(1, "step") == "step#3");
}

TEST_CASE("an id whose release is on its way is not given again") {
  ScopeIds ids;
  CHECK(ids.open(1, "step") == "step");
  ids.close(1);
  CHECK(ids.open(1, "step") == "step#2");
}

TEST_CASE("workers do not share ids, nor the limit") {
  ScopeIds ids;
  for (std::size_t i = 0; i < filetimer::kMaxScopesPerWorker; ++i) {
    REQUIRE(ids.open(1, "step"));
  }
  CHECK_FALSE(ids.open(1, "step"));
  CHECK(ids.open(2, "step") == "step");
  ids.close(1);
  CHECK(ids.open(1, "step"));
}
