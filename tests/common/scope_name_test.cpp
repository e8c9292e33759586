// SPDX-License-Identifier: MIT
#include "common/scope_name.hpp"

#include <doctest/doctest.h>

#include <string>

#include "common/limits.hpp"
#include "common/text.hpp"

using filetimer::bounded_scope_name;
using filetimer::kMaxScopeNameBytes;

TEST_CASE("a scope name within the limit is not changed") {
  for (const std::string& name :
       {std::string(), std::string("forward"), std::string(kMaxScopeNameBytes, 'x')}) {
    CHECK(bounded_scope_name(name) == name);
  }
}

TEST_CASE("long scope names that differ only at their end stay two scopes") {
  const std::string common(1000, 'x');
  const std::string one = bounded_scope_name(common + "1");
  const std::string two = bounded_scope_name(common + "2");
  CHECK(one != two);
  CHECK(one.size() == kMaxScopeNameBytes);
  CHECK(one.starts_with("xxxxxxxxxx"));
  CHECK(one == bounded_scope_name(common + "1"));
}

TEST_CASE("the mark of a cut scope name is the same on every host and in every build") {
  const std::string name = bounded_scope_name(std::string(kMaxScopeNameBytes + 1, 'a'));
  CHECK(name.substr(0, 235) == std::string(235, 'a'));
  CHECK(name.substr(235) == "...~fd2916200943d825");
}

TEST_CASE("a scope name is cut between characters") {
  for (int lead = 0; lead < 4; ++lead) {
    std::string name(static_cast<std::size_t>(lead), 'x');
    for (int i = 0; i < 200; ++i) {
      name += "🙂";
    }
    const std::string bounded = bounded_scope_name(name);
    CHECK(bounded.size() <= kMaxScopeNameBytes);
    CHECK(filetimer::valid_utf8(bounded) == bounded);
  }
}
