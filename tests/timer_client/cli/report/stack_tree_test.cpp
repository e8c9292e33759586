// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/stack_tree.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/files.hpp"
#include "timer_client/cli/log/evidence_page.hpp"

namespace filetimer::cli {
namespace {

using testing::contains;

WorkerName rank(std::int64_t number) {
  return {"node", 1000 + number, number, "t"};
}

TEST_CASE("what stacks have in common is there once, and the fewest workers are on top") {
  StackTree tree;
  for (const std::int64_t number : {0, 1, 3}) {
    tree.add(rank(number), {"all_reduce", "step", "main"});
  }
  tree.add(rank(2), {"read", "forward", "step", "main"});
  const auto roots = tree.sorted();
  REQUIRE(roots.size() == 1);
  CHECK(roots[0].count == 4);
  const auto& step = roots[0].calls.at(0);
  REQUIRE(step.calls.size() == 2);
  CHECK(step.calls[0].frame == "forward");
  CHECK(step.calls[1].count == 3);
  const std::string html = html_of(tree, {});
  CHECK(contains(html, "<code>main</code><br><code>step</code> <small>4 workers</small>"));
  CHECK(contains(html, "<code>forward</code><br><code>read</code> <strong>rank 2</strong>"));
  CHECK(contains(html, "<code>all_reduce</code> <strong>ranks 0, 1, 3</strong>"));
}

TEST_CASE("odd workers are red where no others are with them") {
  StackTree tree;
  tree.add(rank(0), {"wait", "main"});
  tree.add(rank(1), {"read", "main"});
  const std::vector<WorkerName> odd{rank(1)};
  CHECK(contains(html_of(tree, odd), "<strong class=odd>rank 1</strong>"));
  CHECK(contains(html_of(tree, odd), "<strong>rank 0</strong>"));
  tree.add(rank(2), {"read", "main"});
  CHECK(contains(html_of(tree, odd), "<strong>ranks 1, 2</strong>"));
}

TEST_CASE("of very many branches there are the smallest and the largest, and the rest is counted") {
  StackTree tree;
  for (std::int64_t number = 0; number < 1000; ++number) {
    tree.add(rank(number), {"f" + std::to_string(number), "main"});
    tree.add(rank(1000 + number), {"wait", "main"});
  }
  const std::string html = html_of(tree, {});
  CHECK(contains(html, "<code>f14</code>"));
  CHECK_FALSE(contains(html, "<code>f15</code>"));
  CHECK(contains(html, "<small>985 workers in 985 other branches</small>"));
  CHECK(contains(html, "<code>wait</code> <strong>ranks 1000-1999</strong>"));
}

TEST_CASE("of very many calls the rest is counted") {
  StackTree tree;
  for (std::int64_t number = 0; number < 15; ++number) {
    tree.add(rank(number), std::vector<std::string>(250, "f" + std::to_string(number)));
  }
  const std::string html = html_of(tree, {});
  CHECK(contains(html, "<small>1 worker further in</small>"));
  CHECK(html.size() < 100'000);
}

TEST_CASE("a stack that ends inside another one keeps its worker") {
  StackTree tree;
  tree.add(rank(0), {"step", "main"});
  tree.add(rank(1), {"main"});
  const std::string html = html_of(tree, {});
  CHECK(contains(html, "<code>main</code> <strong>rank 1</strong><ul><li><code>step</code>"));
}

TEST_CASE("an empty stack is none, and of an endless one the innermost frames count") {
  StackTree tree;
  tree.add(rank(0), {});
  CHECK(tree.is_empty());
  std::vector<std::string> endless(100'000, "f");
  endless.front() = "innermost";
  tree.add(rank(0), endless);
  CHECK(contains(html_of(tree, {}), "innermost"));
  CHECK(html_of(tree, {}).size() < 10'000);
}

}  // namespace
}  // namespace filetimer::cli
