// The operations of a seed. simulation.cpp carries them out.
// SPDX-License-Identifier: MIT
#include "tests/sim/simulation.hpp"

namespace filetimer::sim {
namespace {

using testing::between;

// Workers are 0 to 3, scopes 0 to 2, times in milliseconds.
constexpr std::pair kWorker{0, 3};
constexpr std::pair kScope{0, 2};
constexpr std::pair kTimeout{200, 6'000};
constexpr int kOptions = 11;  // of "set"

const std::vector<testing::Kind> kKinds = {
    {"wait", 60, {{1, 2'000}}},
    {"acq", 50, {kWorker, kScope, kTimeout, {0, 15}, {0, 3}}},
    {"renew", 15, {kWorker, kScope, kTimeout}},
    {"rel", 30, {kWorker, kScope}},
    {"pause", 8, {kWorker, kScope}},
    {"resume", 8, {kWorker, kScope}},
    {"line", 30, {kWorker, kScope, kTimeout, {0, 31}, {0, 3}}},
    {"unline", 18, {kWorker, kScope}},
    {"fork", 5, {kWorker}},
    {"exec", 3, {kWorker}},
    {"exit", 6, {kWorker}},
    {"spawn", 10, {kWorker, {0, 1}}},
    {"bystander", 2, {kWorker}},
    {"halt", 10, {kWorker, {0, 2}}},
    {"go", 14, {kWorker}},
    {"react", 8, {kWorker, {0, 3}}},
    {"starve", 6, {{100, 5'000}}},
    {"suspend", 3, {{100, 20'000}}},
    {"wall", 3, {{-5'000, 5'000}}},
    {"crash", 10, {}},
    {"start", 12, {}},
    {"term", 3, {}},
    {"signal", 3, {{0, 6}}},
    {"idle", 6, {kWorker, {200, 3'000}}},
    {"ask", 4, {{0, 7}}},
    {"remove", 3, {{0, 7}, kWorker}},
    {"fail", 6, {{0, 15}, {0, 5}}},
    {"logfail", 3, {{100, 3'000}, {0, 1}}},
    {"loghang", 2, {{50, 3'000}}},
    {"prochang", 2, {{50, 3'000}}},
};
constexpr int kCommon = 30;  // kinds of this weight are in every history

}  // namespace

Operations operations_of(std::uint64_t seed) {
  testing::Random random(seed);
  const auto one_in = [&](int count) { return between(random, 1, count) == 1; };
  Operations operations;
  for (int option = 0; option < kOptions; ++option) {
    if (one_in(4)) {
      operations.push_back({"set", 0, {option, between(random, 0, 3)}});
    }
  }
  // A history has a subset of the kinds, so that many of a rare kind come together.
  std::vector<int> weights;
  for (const testing::Kind& kind : kKinds) {
    weights.push_back(kind.weight >= kCommon || one_in(3) ? kind.weight : 0);
  }
  const int count = between(random, 5, one_in(4) ? 200 : 40);
  const bool is_interleaved = one_in(3);
  for (int i = 0; i < count; ++i) {
    Operation operation = random_operation(random, kKinds, weights);
    if (is_interleaved && operation.name != "wait" && one_in(4)) {
      operation.at_call = between(random, 1, one_in(2) ? 10 : 80);
    }
    operations.push_back(std::move(operation));
  }
  return operations;
}

}  // namespace filetimer::sim
