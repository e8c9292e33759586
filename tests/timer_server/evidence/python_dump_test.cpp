// SPDX-License-Identifier: MIT
#include "timer_server/evidence/python_dump.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <filesystem>
#include <functional>
#include <string_view>

#include "common/limits.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/files.hpp"
#include "tests/timer_server/process_of.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

using Frames = std::vector<std::string>;

int dump_fd = -1;
std::size_t hole_bytes = 0;  // written before the text
bool never_returns = false;  // the handler

void write_dump(int) {
  constexpr std::string_view kText =
      "Current thread 0x00007f00 (most recent call first):\n  File \"a.py\", line 1 in f\n";
  if (hole_bytes > 0) {
    (void)!::ftruncate(dump_fd, static_cast<off_t>(hole_bytes));
    (void)!::write(dump_fd, "\n", 1);
  }
  // faulthandler writes in many steps; this worker in two.
  (void)!::write(dump_fd, kText.data(), 30);
  (void)!::write(dump_fd, kText.data() + 30, kText.size() - 30);
  while (never_returns) {
    ::pause();
  }
}

// Makes this process write a dump on SIGUSR2, as an interpreter would.
void write_dumps_to(const std::string& path) {
  dump_fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ::signal(SIGUSR2, write_dump);
}

// ThreadSanitizer delays the handler of a signal that comes just before a blocking call until that
// call returns.
void wait_shortly() {
  ::poll(nullptr, 0, 50);
}

// A worker that writes dumps.
struct Dumper {
  explicit Dumper(std::size_t hole = 0) : hole_before(hole) {}

  std::size_t hole_before;
  testing::TempFolder folder;
  PythonDump dump{SIGUSR2, folder.path("dump")};
  Child worker{[this] {
                 hole_bytes = hole_before;
                 write_dumps_to(dump.path);
               },
               wait_shortly};
  Process process = process_of(worker);

  Evidence take(const PythonDump& how, Instant until = Instant::now() + 20s) {
    Evidence evidence;
    take_python_dump(process, how, until, evidence);
    return evidence;
  }
};

}  // namespace

TEST_CASE("The threads of a dump are read, the oldest first, or none in place of one left out") {
  const auto threads = parse_python_dump(
      "Thread 0x00007f02 (most recent call first):\n"
      "  File \"/usr/lib/python3.11/threading.py\", line 320 in wait\n"
      "  File \"train, line 3.py\", line 12 in <module>\n"
      "\n"
      "Current thread 0x00007f01 [pin [memory]] (most recent call first):\n"
      "  <no Python frame>\n");
  REQUIRE(threads.size() == 2);
  CHECK(threads[0].ident == "0x00007f01");
  CHECK(threads[0].name == "pin [memory]");
  CHECK(threads[0].is_current);
  CHECK(threads[0].frames == Frames{"<no Python frame>"});
  CHECK(threads[1].name.empty());
  CHECK_FALSE(threads[1].is_current);
  CHECK(threads[1].frames ==
        Frames{"/usr/lib/python3.11/threading.py:320 in wait", "train, line 3.py:12 in <module>"});
  const auto others = parse_python_dump(
      "Thread 0x2 (most recent call first):\n  File \"a.py\", line 1 in f\n  ...\n\n...\n");
  REQUIRE(others.size() == 2);
  CHECK(others[0].ident.empty());
  CHECK(others[0].frames.size() == 1);
  CHECK(others[1].frames == Frames{"a.py:1 in f", "..."});
}

TEST_CASE("A text that is not a dump gives no threads, and a long dump is cut") {
  CHECK(parse_python_dump("").empty());
  CHECK(parse_python_dump("\n\n").empty());
  CHECK(parse_python_dump("File \"a.py\", line 1 in f\nhello").empty());
  std::string text = "Thread 0x1 (most recent call first):\n";
  for (int i = 0; i < 1000; ++i) {
    text += "  File \"" + std::string(1000, 'a') + "\", line 1 in f\n";
  }
  const auto threads = parse_python_dump(text);
  REQUIRE(threads.size() == 1);
  CHECK(threads[0].frames.size() == kMaxStackFrames);
  CHECK(threads[0].frames[0].size() == kMaxFrameBytes);
}

TEST_CASE("The dump of a worker is read, without what lay in its file before") {
  for (const std::size_t before : {std::size_t{0}, kMaxPythonDumpBytes}) {
    Dumper dumper;
    dumper.folder.append("dump",
                         "Thread 0x9 (most recent call first):\n  File \"old.py\", line 9 in g\n" +
                             std::string(before, '\n'));
    for (int i = 0; i < 2; ++i) {
      const Evidence evidence = dumper.take(dumper.dump);
      CHECK(evidence.missing == "");
      REQUIRE(evidence.python_threads.size() == 1);
      CHECK(evidence.python_threads[0].frames == Frames{"a.py:1 in f"});
    }
    CHECK(dumper.process.is_alive());
    // What is long is not kept: the file has room in memory for as long as its worker lives.
    CHECK(std::filesystem::file_size(dumper.dump.path) < 1000);
  }
}

TEST_CASE("Of a dump that is too long the end is read, and evidence says so") {
  for (const bool is_long : {true, false}) {
    Dumper dumper(is_long ? kMaxPythonDumpBytes : kMaxPythonDumpBytes / 2);
    const Evidence evidence = dumper.take(dumper.dump);
    CHECK(evidence.missing ==
          (is_long ? "only the last 262144 bytes of the Python stacks were read" : ""));
    REQUIRE(evidence.python_threads.size() == 1);
    CHECK(evidence.python_threads[0].frames == Frames{"a.py:1 in f"});
  }
}

TEST_CASE("A signal that would end the worker, or that cannot be caught, is not sent") {
  Dumper dumper;
  const auto missing = [&](std::uint32_t signal) {
    return dumper.take({signal, dumper.dump.path}).missing;
  };
  for (const std::uint32_t signal : {9U, 19U, 0U, 65U, 4'000'000'000U, 32U, 33U}) {
    CHECK(missing(signal) ==
          fmt::format("no Python stacks: signal {} of its page cannot be caught", signal));
  }
  for (const std::uint32_t signal : {1U, 10U, 64U}) {
    CHECK(missing(signal) ==
          fmt::format("no Python stacks: the worker does not catch signal {} of its page", signal));
  }
  CHECK(dumper.process.is_alive());
}

TEST_CASE("Without a regular dump file no signal is sent, and no symlink is opened") {
  Dumper dumper;
  const auto refused = [&](const std::string& path) {
    return dumper.take({SIGUSR2, path}).missing;
  };
  const std::string missing = dumper.folder.path("missing");
  CHECK(refused(missing).find("No such file") != std::string::npos);
  const std::string link = dumper.folder.path("link");
  REQUIRE(::symlink(dumper.dump.path.c_str(), link.c_str()) == 0);
  CHECK(refused(link).find("is a symlink") != std::string::npos);
  CHECK(std::filesystem::file_size(dumper.dump.path) == 0);
}

TEST_CASE("A dump that does not end is waited for no longer than allowed, and evidence says why") {
  struct Case {
    std::string missing;
    Duration patience;
    std::function<void(const std::string& path)> worker;
    std::size_t threads = 0;
  };
  const auto ignore = [](int) {};
  for (const Case& each :
       {Case{"Python stacks are incomplete: time was up", 50ms,
             [](const std::string& path) {
               never_returns = true;
               write_dumps_to(path);
             },
             1},
        Case{"no Python stacks: the worker wrote none in time", 50ms,
             [&](const std::string&) { ::signal(SIGUSR2, ignore); }},
        Case{"no Python stacks: the signal reached no thread of the worker in time", 50ms,
             [&](const std::string&) {
               ::signal(SIGUSR2, ignore);
               const sigset_t set = signal_set({SIGUSR2});
               ::sigprocmask(SIG_BLOCK, &set, nullptr);
             }},
        Case{"no Python stacks: the process had ended", 20s,
             [](const std::string&) { ::signal(SIGUSR2, [](int) { ::_exit(0); }); }}}) {
    CAPTURE(each.missing);
    Evidence evidence;
    // On a busy machine the signal may not reach the worker so soon, nor may it write anything.
    for (Duration patience = each.patience;
         patience <= testing::kBound && evidence.missing != each.missing; patience *= 2) {
      const testing::TempFolder folder;
      folder.write("dump", "");
      const Child worker([&] { each.worker(folder.path("dump")); }, wait_shortly);
      evidence = {};
      take_python_dump(process_of(worker), {SIGUSR2, folder.path("dump")},
                       Instant::now() + patience, evidence);
    }
    CHECK(evidence.missing == each.missing);
    CHECK(evidence.python_threads.size() == each.threads);
  }
}
