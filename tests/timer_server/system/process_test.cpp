// SPDX-License-Identifier: MIT
#include "timer_server/system/process.hpp"

#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/timer_server/process_of.hpp"

using namespace filetimer;

namespace {

bool contains(const std::vector<Process>& found, pid_t pid) {
  return std::ranges::any_of(found, [&](const Process& process) { return process.pid == pid; });
}

}  // namespace

TEST_CASE("A process that a known target starts after its parent has ended is a new target") {
  SharedPids shared;
  Child worker([&] {
    shared.pids[0] = fork_waiting([&] {
      const auto start_one_when_told = [&] {
        if (shared.pids[2] != 0 && shared.pids[3] == 0) {
          shared.pids[3] = fork_waiting([] {});
        }
        ::usleep(1000);
      };
      shared.pids[1] = fork_waiting([] { ::prctl(PR_SET_PDEATHSIG, 0); }, start_one_when_told);
    });
  });
  const Process process = process_of(worker);
  const auto tree = descendants_of(process, {}, {});
  REQUIRE(tree.size() == 2);
  // It outlives its parent on purpose, and ends with the test.
  const std::unique_ptr<const Process, void (*)(const Process*)> orphan(
      &tree.back(), [](const Process* each) { each->send_signal(SIGKILL); });
  CHECK(descendants_of(process, tree, {}).empty());
  CHECK(tree.front().send_signal(SIGKILL));
  REQUIRE(testing::wait_until([&] { return !tree.front().is_alive(); }));
  shared.pids[2] = 1;
  REQUIRE(testing::wait_until([&] { return shared.pids[3] != 0; }));
  const auto news = descendants_of(process, tree, {});
  CHECK(news.size() == 1);
  CHECK(contains(news, shared.pids[3]));
}

TEST_CASE("A look for new targets of a deep tree costs about as much as the first look") {
  constexpr int kDepth = 100;
  const std::function<void(int)> start_chain = [&](int depth) {
    if (depth > 0) {
      fork_waiting([&] { start_chain(depth - 1); });
    }
  };
  Child worker([&] { start_chain(kDepth); });
  const Process process = process_of(worker);
  const std::clock_t begun = std::clock();
  const auto tree = descendants_of(process, {}, {});
  const std::clock_t one_look = std::clock() - begun;
  REQUIRE(tree.size() == kDepth);
  CHECK(descendants_of(process, tree, {}).empty());
  CHECK(std::clock() - begun - one_look < 5 * one_look);
}

TEST_CASE("An excluded process is left out with all of its descendants") {
  SharedPids shared;
  Child worker([&] {
    shared.pids[0] = fork_waiting([&] { shared.pids[1] = fork_waiting([] {}); });
    shared.pids[2] = fork_waiting([] {});
  });
  const std::vector<pid_t> excluded{shared.pids[0]};
  const auto tree = descendants_of(process_of(worker), {}, excluded);
  CHECK(tree.size() == 1);
  CHECK(contains(tree, shared.pids[2]));
  const auto all = descendants_of(process_of(worker), {}, {});
  // Children before their parents, because each child ends with its parent.
  for (auto process = all.rbegin(); process != all.rend(); ++process) {
    CHECK(process->send_signal(SIGKILL));
  }
}

TEST_CASE("A zombie, the id of a thread and an unused pid are refused as processes") {
  Child child;
  const Process held = process_of(child);
  ::kill(child.pid(), SIGKILL);
  REQUIRE(wait_for_zombie(child.pid()));
  CHECK(!open_process(child.pid()));
  CHECK(!held.is_alive());
  child.reap();
  CHECK(descendants_of(held, {}, {}).empty());
  CHECK(!open_process(child.pid()));
  CHECK(!open_process(4'000'000));
  std::string refused;
  std::thread([&refused] { refused = open_process(::gettid()).error().message; }).join();
  CHECK(refused.ends_with(" is not a process's own id (a thread's?)"));
}
