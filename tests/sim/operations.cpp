// The operations as text, and those of a seed.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <charconv>
#include <random>

#include "tests/sim/simulation.hpp"

namespace filetimer::sim {

std::string text_of(const Operations& operations) {
  std::string text;
  for (const Operation& operation : operations) {
    text += text.empty() ? operation.name : "; " + operation.name;
    text += operation.at_call > 0 ? fmt::format("@{}", operation.at_call) : "";
    for (const int argument : operation.arguments) {
      text += fmt::format(" {}", argument);
    }
  }
  return text;
}

Operations parse(std::string_view text) {
  Operations operations;
  while (!text.empty()) {
    std::string_view one = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    Operation operation;
    while (!one.empty()) {
      one.remove_prefix(std::min(one.find_first_not_of(' '), one.size()));
      std::string_view word = one.substr(0, one.find(' '));
      one.remove_prefix(word.size());
      if (word.empty()) {
        continue;
      }
      const auto number = [](std::string_view digits) {
        int value = 0;
        std::from_chars(digits.data(), digits.data() + digits.size(), value);
        return value;
      };
      if (operation.name.empty()) {
        const std::size_t at = word.find('@');
        operation.name = word.substr(0, at);
        operation.at_call = at == word.npos ? 0 : number(word.substr(at + 1));
      } else {
        operation.arguments.push_back(number(word));
      }
    }
    if (!operation.name.empty()) {
      operations.push_back(std::move(operation));
    }
  }
  return operations;
}

namespace {

// How often an operation comes, and the range of each of its arguments.
struct Kind {
  const char* name;
  int weight;
  std::vector<std::pair<int, int>> ranges;
};
// Workers are 0 to 3, scopes 0 to 2, times in milliseconds.
constexpr std::pair kWorker{0, 3};
constexpr std::pair kScope{0, 2};
constexpr std::pair kTimeout{200, 6'000};
constexpr int kUnlinkCall = 6;   // of kernel.hpp
constexpr int kSignalCall = 10;  // likewise

const std::vector<Kind> kKinds = {
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
    {"ask", 4, {{0, 7}}},
    {"remove", 3, {{0, 7}, kWorker}},
    {"fail", 6, {{0, 11}, {0, 4}}},
    {"logfail", 3, {{100, 3'000}, {0, 1}}},
    {"loghang", 2, {{50, 3'000}}},
    {"prochang", 2, {{50, 3'000}}},
};

}  // namespace

Operations operations_of(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<std::uint64_t>(to - from + 1));
  };
  Operations operations;
  for (int option = 0; option < 8; ++option) {
    if (between(0, 3) == 0) {
      operations.push_back({"set", 0, {option, between(0, 3)}});
    }
  }
  // A history has a subset of the kinds, so that many of a rare kind come together.
  std::vector<int> weights;
  int sum = 0;
  for (const Kind& kind : kKinds) {
    const bool is_common = kind.weight >= 30;
    weights.push_back(is_common || between(0, 2) == 0 ? kind.weight : 0);
    sum += weights.back();
  }
  const int count = between(5, between(0, 3) == 0 ? 200 : 40);
  const bool is_interleaved = between(0, 2) == 0;
  for (int i = 0; i < count; ++i) {
    int at = between(0, sum - 1);
    std::size_t kind = 0;
    for (; at >= weights[kind]; ++kind) {
      at -= weights[kind];
    }
    Operation operation{kKinds[kind].name, 0, {}};
    for (const auto& [from, to] : kKinds[kind].ranges) {
      operation.arguments.push_back(between(from, to));
    }
    if (operation.name == "fail" &&
        (operation.arguments[0] == kUnlinkCall || operation.arguments[0] == kSignalCall)) {
      continue;  // on a memory file system a removal does not fail, nor does a signal
    }
    if (is_interleaved && operation.name != "wait" && between(0, 3) == 0) {
      operation.at_call = between(1, between(0, 1) == 0 ? 10 : 80);
    }
    operations.push_back(std::move(operation));
  }
  return operations;
}

}  // namespace filetimer::sim
