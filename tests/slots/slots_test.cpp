// Random operations on the scopes of a worker, on its page and on the request pipe, agree with the
// model. A list that does not is shortened and printed. SLOTS_SEEDS="FIRST COUNT" runs those
// seeds in place of the usual ones; tests/slots/found keeps each list that has found a fault.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdlib>
#include <sstream>

#include "tests/slots/machine.hpp"

using namespace filetimer::slots;
using filetimer::testing::Kind;

namespace {

constexpr unsigned kSeeds = 300;  // some seconds
constexpr int kLength = 60;

constexpr std::pair kKey{0, kKeys - 1};
constexpr std::pair kThread{0, kThreads - 1};
constexpr std::pair kTimeout{1, 7};  // the last one: none
constexpr std::pair kBool{0, 1};

const std::vector<Kind> kOfPage = {
    {"acquire", 14, {kKey, kTimeout, kThread}},
    {"renew", 8, {kKey, kTimeout, kThread}},
    {"release", 12, {kKey, kTimeout, kThread}},
    {"pause", 3, {kKey, kTimeout, kThread}},
    {"resume", 3, {kKey, kTimeout, kThread}},
    {"suspend", 3, {kThread}},
    {"unsuspend", 2, {kThread}},
    {"end", 2, {kThread}},
    {"fork", 1, {kBool}},
    {"idle", 3, {{1, 4}}},
    {"unidle", 1, {}},
    {"look", 12, {}},
    {"expire", 10, {}},
    {"finish", 6, {}},
    {"revoke", 4, {}},
    {"die", 2, {}},
    {"start", 4, {kBool}},
    {"hour", 14, {}},
    {"fill", 1, {}},
    {"again", 1, {}},
};
const std::vector<Kind> kOfPipe = {
    {"acquire", 10, {kKey, kTimeout}},
    {"renew", 6, {kKey, kTimeout}},
    {"release", 12, {kKey}},
    {"look", 12, {}},
    {"expire", 10, {}},
    {"finish", 6, {}},
    {"revoke", 2, {}},
    {"start", 3, {kBool}},
    {"hour", 14, {}},
};

std::vector<std::string> run(bool is_page, unsigned variant, const Operations& operations) {
  return filetimer::testing::run_in_child([&] {
    (is_page ? page_machine : pipe_machine)(variant)->play(operations, 0);
    return std::string();
  });
}

void run_seeds(bool is_page) {
  unsigned first = 1;
  unsigned count = kSeeds;
  if (const char* const chosen = std::getenv("SLOTS_SEEDS")) {
    std::istringstream(chosen) >> first >> count;
  }
  const std::vector<Kind>& kinds = is_page ? kOfPage : kOfPipe;
  std::vector<int> weights;
  std::ranges::transform(kinds, std::back_inserter(weights), &Kind::weight);
  for (unsigned seed = first; seed < first + count; ++seed) {
    filetimer::testing::Random random(seed);
    const int keys = filetimer::testing::between(random, 1, kKeys);  // few: often in no scope
    Operations operations;
    for (int i = 0; i < kLength; ++i) {
      operations.push_back(random_operation(random, kinds, weights));
      std::vector<int>& arguments = operations.back().arguments;
      if (arguments.size() > 1) {
        arguments[0] %= keys;
        arguments[1] = arguments[1] == kTimeout.second ? kNever : arguments[1];
      }
    }
    if (run(is_page, seed, operations).empty()) {
      continue;
    }
    operations = filetimer::testing::shorten(
        operations, [&](const Operations& fewer) { return !run(is_page, seed, fewer).empty(); });
    const auto differs = run(is_page, seed, operations);
    FAIL("seed ", seed, ": ", text_of(operations), ": ",
         differs.empty() ? "it does not differ any more" : differs.front());
  }
}

}  // namespace

TEST_CASE("a worker's page agrees with the model in random sequences of both sides' steps") {
  run_seeds(true);
}

TEST_CASE("the scopes of a worker of the pipe agree with the model in random sequences") {
  run_seeds(false);
}

// A line: page or pipe, variant | operations.
TEST_CASE("the sequences that have found a fault agree with the model") {
  const auto all = filetimer::testing::read_found(FILETIMER_SOURCE_DIR "/tests/slots/found");
  CHECK(!all.empty());
  for (const auto& each : all) {
    const auto variant = static_cast<unsigned>(std::stoi(each.words));
    CHECK_MESSAGE(run(each.name == "page", variant, each.operations).empty(),
                  text_of(each.operations));
  }
}
