// Very many scopes of several processes. The log is compared with what each process knows.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <sstream>

#include "tests/process/harness.hpp"

using namespace filetimer::testing;

namespace {

std::string storm_path() {
  const std::string worker = worker_path();
  return worker.substr(0, worker.rfind('/')) + "/scope_storm";
}

}  // namespace

TEST_CASE("exactly the scopes held past their deadline are judged among a million short ones") {
  constexpr int kProcesses = 4;
  constexpr int kScopes = 250'000;
  constexpr int kHeld = 12;
  constexpr auto kManyScopes = 4 * kBound;  // they take some seconds of a CPU each
  const TempFolder temp;
  Server server(temp, {"--evidence", "none"});
  std::vector<std::unique_ptr<Child>> storms;
  for (int i = 0; i < kProcesses; ++i) {
    storms.push_back(std::make_unique<Child>(
        Launch{.argv = {storm_path(), server.dir(), server.log(), std::to_string(i),
                        std::to_string(kScopes), std::to_string(kHeld)},
               .out = temp.path(fmt::format("out-{}", i)),
               .err = temp.path(fmt::format("err-{}", i))}));
  }
  for (const auto& storm : storms) {
    REQUIRE(storm->ends_within(kManyScopes));
    CHECK(storm->status() == exited(0));
  }
  CHECK(server.stop() == exited(0));
  const Records records = server.records();
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t pid = storms[static_cast<std::size_t>(i)]->pid();
    std::istringstream said(read_file(temp.path(fmt::format("out-{}", i))));
    std::string word;
    std::size_t late = 0;
    said >> word >> late;
    REQUIRE(word == "late");
    const auto expired = scopes_of(records, "expired", pid);
    CHECK(expired.size() == kHeld + late);
    for (int n = 0; n < kHeld; ++n) {
      const std::string name = fmt::format("held-{}-{}", i, n);
      CHECK(std::count(expired.begin(), expired.end(), name) == 1);
    }
    CHECK(count(records, "left_open", pid) == 0);
  }
}
