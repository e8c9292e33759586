// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <utility>

#include "tests/support/files.hpp"
#include "timer_server/system/process.hpp"

using namespace filetimer;

namespace {

// Made-up trees of /proc and of cgroups with the files of one process.
struct FakeProcess {
  static constexpr pid_t kPid = 42;
  explicit FakeProcess(char state = 'S', pid_t tracer = 0) { put_status(state, tracer); }
  void put_status(char state, pid_t tracer) const {
    put(fmt::format("proc/{}/status", kPid),
        fmt::format("Name:\ttrainer\nState:\t{} (a word)\nTracerPid:\t{}\nUid:\t0\t0\t0\t0\n"
                    "NSpid:\t42\n",
                    state, tracer));
  }
  void put(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder.path() + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    testing::write_file(path, text);
  }
  [[nodiscard]] std::string why(std::function<bool(pid_t)> is_own_helper = [](pid_t) {
    return false;
  }) const {
    return why_halted(kPid,
                      {folder.path("proc"), folder.path("cgroups"), std::move(is_own_helper)});
  }
  testing::TempFolder folder;
};

}  // namespace

TEST_CASE("A process that sleeps, runs or waits for the disk is not halted") {
  for (const char state : {'S', 'R', 'D', 'I', 'Z'}) {
    CAPTURE(state);
    CHECK(FakeProcess(state).why().empty());
  }
}

TEST_CASE("A stopped process is halted, and so is a traced one, even while it runs") {
  CHECK(FakeProcess('T').why() == "stopped (SIGSTOP or the terminal)");
  FakeProcess traced('S', 7);
  CHECK(traced.why() == "traced by pid 7");
  traced.put("proc/7/stat", "7 (gdb) S 1 7 7 0 -1 4194304 0 0 0 0 1 2 0 0 20 0 1 0 5 0 0");
  CHECK(traced.why() == "traced by pid 7 (gdb)");
  CHECK(FakeProcess('t').why() == "traced by a process outside the server's pid namespace");
  // The stacks helpers of the server do not count.
  const auto is_seven = [](pid_t pid) { return pid == 7; };
  CHECK(FakeProcess('t', 7).why(is_seven).empty());
  CHECK(FakeProcess('t', 8).why(is_seven) == "traced by pid 8");
}

TEST_CASE("A process whose main thread has ended is halted if its other threads are") {
  const FakeProcess process('Z');
  process.put("proc/42/task/42/status", "Name:\ttrainer\nState:\tZ (zombie)\nUid:\t0\t0\t0\t0\n");
  process.put("proc/42/task/43/status", "Name:\ttrainer\nState:\tT (stopped)\nUid:\t0\t0\t0\t0\n");
  CHECK(process.why() == "stopped (SIGSTOP or the terminal)");
}

TEST_CASE("A process whose tracer is gone at the second look is not halted") {
  for (const pid_t second : {0, 8}) {
    CAPTURE(second);
    const FakeProcess process('S', 7);
    const auto lets_go = [&](pid_t) {
      process.put_status('S', second);
      return false;
    };
    CHECK(process.why(lets_go).empty());
  }
}

TEST_CASE("A frozen cgroup of either version is seen, alone or side by side") {
  FakeProcess process;
  process.put("proc/42/cgroup", "6:freezer:/jobs/7\n1:cpu,cpuacct:/\n0::/unit\n");
  CHECK(process.why().empty());  // no cgroups are mounted here
  process.put("cgroups/freezer/jobs/7/freezer.state", "THAWED\n");
  process.put("cgroups/unified/unit/cgroup.events", "populated 1\nfrozen 0\n");
  CHECK(process.why().empty());
  for (const char* state : {"FREEZING\n", "FROZEN\n"}) {
    process.put("cgroups/freezer/jobs/7/freezer.state", state);
    CHECK(process.why() == "frozen by its cgroup '/jobs/7'");
  }
  process.put("cgroups/unified/unit/cgroup.events", "populated 1\nfrozen 1\n");
  CHECK(process.why() == "frozen by its cgroup '/unit'");
  FakeProcess alone;
  alone.put("proc/42/cgroup", "0::/unit\n");
  alone.put("cgroups/unit/cgroup.events", "populated 1\nfrozen 1\n");
  CHECK(alone.why() == "frozen by its cgroup '/unit'");
  FakeProcess in_root;
  in_root.put("proc/42/cgroup", "6:freezer:/\n0::/\n");
  in_root.put("cgroups/cgroup.events", "populated 1\nfrozen 1\n");
  CHECK(in_root.why().empty());
}

TEST_CASE(
    "A frozen process whose cgroup cannot be seen is known by the function that it sleeps in") {
  struct Sleep {
    char state;
    const char* in;
    bool is_frozen;
  };
  for (const Sleep& sleep :
       {Sleep{'S', "get_signal", true}, Sleep{'S', "do_freezer_trap", true},
        Sleep{'D', "__refrigerator", true}, Sleep{'D', "do_nanosleep", true},
        Sleep{'D', "futex_do_wait", true}, Sleep{'D', "futex_wait_queue", true},
        Sleep{'D', "hrtimer_nanosleep", true}, Sleep{'R', "get_signal", false},
        Sleep{'D', "do_sigtimedwait.isra.0", true}, Sleep{'D', "io_schedule", false},
        Sleep{'S', "hrtimer_nanosleep", false}, Sleep{'S', "0", false}}) {
    CAPTURE(sleep.in);
    FakeProcess process(sleep.state);
    process.put("proc/42/cgroup", "6:freezer:/../jobs\n0::/../../unit\n");
    process.put("proc/42/wchan", sleep.in);
    CHECK(process.why() == (sleep.is_frozen ? "frozen by its cgroup" : ""));
  }
}

TEST_CASE("A process that has ended, or whose files are malformed, is not halted") {
  FakeProcess process;
  process.put("proc/42/cgroup", "::::\n\nno colon\n0:");
  CHECK(process.why().empty());
  process.put("proc/42/status", "nonsense");
  CHECK(process.why().empty());
  CHECK(why_halted(0x7fffffff).empty());
}
