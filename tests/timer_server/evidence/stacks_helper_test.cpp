// Parses made-up answers, and runs the real helper.
// SPDX-License-Identifier: MIT
#include "timer_server/evidence/stacks_helper.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/mman.h>

#include <algorithm>
#include <csignal>
#include <ctime>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/files.hpp"
#include "tests/timer_server/process_of.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

Evidence of_threads(std::initializer_list<pid_t> tids) {
  Evidence evidence;
  for (const pid_t tid : tids) {
    evidence.threads.emplace_back().tid = tid;
  }
  return evidence;
}

// Returns what a helper says of the process.
Evidence stacks_of(const Process& process) {
  auto helper = StacksHelper::start(process.pid, process.start_time, Instant::now() + 20s);
  REQUIRE_MESSAGE(helper, helper.error().message);
  Evidence evidence = of_threads({process.pid});
  helper->collect(evidence);
  return evidence;
}

}  // namespace

TEST_CASE("The stacks of an answer are added to their threads") {
  Evidence evidence = of_threads({1, 2});
  CHECK(
      parse_stacks("stopped_us 1500\nthread 2\nframe read+0x1 (libc.so.6)\nframe main+0x2 (x)\n"
                   "cut only 128 frames are kept\nthread 7\nframe lost+0x1 (x)\nthread 1\n"
                   "frame spin(int, char)+0x3 (x)\nnote one thread is missing\nend\n",
                   evidence));
  using Frames = std::vector<std::string>;
  CHECK(evidence.threads[0].native_stack == Frames{"spin(int, char)+0x3 (x)"});
  CHECK(evidence.threads[1].native_stack ==
        Frames{"read+0x1 (libc.so.6)", "main+0x2 (x)", "... only 128 frames are kept"});
  CHECK(evidence.held_ms == 1.5);
  CHECK(evidence.missing == "one thread is missing");
}

TEST_CASE("A stack of several threads is that of the first one, and the others refer to it") {
  Evidence evidence = of_threads({1, 2, 3, 4});
  CHECK(parse_stacks("thread 2 9 4 1\nframe main+0x2 (x)\nthread 3\nframe f+0x2 (x)\nend\n",
                     evidence));
  CHECK(evidence.threads[1].native_stack.size() == 1);
  CHECK(evidence.threads[0].native_stack_of == 2);
  CHECK(evidence.threads[1].native_stack_of == 0);
  CHECK(evidence.threads[2].native_stack_of == 0);
  CHECK(evidence.threads[3].native_stack_of == 2);
  CHECK(evidence.threads[3].native_stack.empty());
}

TEST_CASE("Of an answer that breaks off or is malformed the complete lines count, up to a limit") {
  Evidence broken_off = of_threads({1});
  CHECK_FALSE(parse_stacks("thread 1\nframe read+0x1 (libc.so.6)\nframe main+0", broken_off));
  CHECK(broken_off.threads[0].native_stack.size() == 1);
  Evidence evidence = of_threads({1});
  std::string answer =
      "frame without thread\nthread\nthread x\nframe\nstopped_us soon\n\n \nthread 1\n";
  for (int i = 0; i < 1000; ++i) {
    answer += "frame " + std::string(1000, 'x') + "\n";
  }
  CHECK_FALSE(parse_stacks(answer, evidence));
  CHECK(evidence.threads[0].native_stack.size() == kMaxStackFrames);
  CHECK(evidence.threads[0].native_stack[0].size() == kMaxFrameBytes);
  CHECK(!evidence.held_ms);
}

TEST_CASE("The stack of a thread in the vdso has it, though its code is in no file") {
  const Child worker([] { std::signal(SIGSEGV, [](int) { ::pause(); }); },
                     [] {
                       // A fault of the vdso itself. The coarse clock needs no system call.
                       ::clock_gettime(CLOCK_MONOTONIC_COARSE, reinterpret_cast<timespec*>(16));
                     });
  worker.wait_until_asleep();
  const Process process = process_of(worker);
  const Evidence evidence = stacks_of(process);
  const std::vector<std::string>& stack = evidence.threads[0].native_stack;
  const auto vdso = std::ranges::find_if(
      stack, [](const std::string& frame) { return testing::contains(frame, "[vdso"); });
  CHECK(std::any_of(vdso, stack.end(),
                    [](const std::string& frame) { return frame.starts_with("main+"); }));
}

TEST_CASE("A mapped file without code is not opened for the stack") {
  const testing::TempFolder temp;
  temp.write("data", "a training set");
  const UniqueFd file(::open(temp.path("data").c_str(), O_RDONLY | O_CLOEXEC));
  void* const data = ::mmap(nullptr, 1, PROT_READ, MAP_SHARED, file.get(), 0);
  REQUIRE(data != MAP_FAILED);
  const UniqueFd opened(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  REQUIRE(::inotify_add_watch(opened.get(), temp.path("data").c_str(), IN_OPEN) >= 0);
  Child worker;  // has it mapped, too
  ::munmap(data, 1);
  const Process process = process_of(worker);
  CHECK(stacks_of(process).held_ms);
  char events[4096];
  CHECK(::read(opened.get(), events, sizeof events) == -1);
  CHECK(errno == EAGAIN);
}

TEST_CASE("The helper does not stop another process with the pid of the worker") {
  Child worker;
  Process another = process_of(worker);
  ++another.start_time;
  const Evidence evidence = stacks_of(another);
  CHECK(evidence.missing == "no native stacks: the process had ended");
  CHECK(evidence.threads[0].native_stack.empty());
}

TEST_CASE("Four idle helpers are kept, and further ones end") {
  const Child worker;
  const Process process = process_of(worker);
  IdleStacksHelpers helpers;
  const std::size_t before = own_children().size();
  for (std::size_t i = 0; i < IdleStacksHelpers::kMost + 2; ++i) {
    auto helper = StacksHelper::start(process.pid, process.start_time, Instant::now() + 20s);
    REQUIRE_MESSAGE(helper, helper.error().message);
    helpers.keep(std::move(*helper));
  }
  CHECK(own_children().size() == before + IdleStacksHelpers::kMost);
  CHECK_FALSE(is_own_helper(::getpid()));  // another tracer
  helpers.clear();
  CHECK(own_children().size() == before);
}

TEST_CASE("A helper that has answered reads the next worker, and one that has ended does not") {
  const Child first;
  const Child second;
  IdleStacksHelpers helpers;
  const std::vector<pid_t> before = own_children();
  const auto read_stack = [&](const Child& worker) {
    const Process process = process_of(worker);
    const Instant until = Instant::now() + testing::kBound;
    // On a busy machine a thread may not stop within the helper's time.
    for (bool is_idle = false; !is_idle && Instant::now() < until;) {
      auto helper = helpers.start(process.pid, process.start_time, Instant::now() + 20s);
      REQUIRE_MESSAGE(helper, helper.error().message);
      Evidence evidence = of_threads({process.pid});
      helper->collect(evidence);
      is_idle = helper->is_idle();
      if (is_idle) {
        CHECK_FALSE(evidence.threads[0].native_stack.empty());
        helpers.keep(std::move(*helper));
      }
    }
    const std::vector<pid_t> now = own_children();
    REQUIRE(now.size() == before.size() + 1);
    return now.back();
  };
  const pid_t helper = read_stack(first);
  CHECK(read_stack(second) == helper);
  CHECK(read_stack(first) == helper);
  REQUIRE(::kill(helper, SIGKILL) == 0);
  REQUIRE(wait_for_zombie(helper));
  CHECK(read_stack(second) != helper);
  helpers.clear();
  CHECK(own_children() == before);
}

TEST_CASE("A helper is killed when its time is up, and when its answer is not wanted") {
  while (::waitpid(-1, nullptr, 0) > 0) {  // helpers of earlier tests that have answered
  }
  Child worker;
  const Process process = process_of(worker);
  for (const bool is_asked : {true, false}) {
    auto helper = StacksHelper::start(process.pid, process.start_time, Instant::now());
    REQUIRE(helper);
    Evidence evidence = of_threads({process.pid});
    if (is_asked) {
      helper->collect(evidence);
      CHECK(evidence.missing == "native stacks are incomplete: time was up");
    }
  }
  // The helpers and the worker are the only children of this process. On a busy machine a helper
  // may take too long to exit; then it is reaped here.
  worker.end();
  int status = 0;
  while (::waitpid(-1, &status, 0) > 0) {
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGKILL);
  }
  CHECK(errno == ECHILD);
}
