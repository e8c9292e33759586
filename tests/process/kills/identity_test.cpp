// The kernel reuses pids. A process with a reused pid must not be taken for the worker that had it.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "common/mapped_file.hpp"
#include "common/wire.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/test_page.hpp"

using namespace filetimer::testing;
using filetimer::wire::format_page_hint;
using namespace std::chrono_literals;

namespace {

// Returns a child of the test with this pid (0: any) that has run `begins` and now waits to be
// killed. Returns null if choosing a pid is not allowed (it takes CAP_CHECKPOINT_RESTORE), or
// another process has got this one.
std::unique_ptr<Child> child_with_pid(
    pid_t wanted, const std::function<void()>& begins = [] {}) {
  Pipe begun = make_pipe();  // until the writing end is closed
  clone_args args{};
  args.exit_signal = SIGCHLD;
  if (wanted != 0) {
    args.set_tid = reinterpret_cast<std::uintptr_t>(&wanted);
    args.set_tid_size = 1;
  }
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    begins();
    begun.write.reset();
    for (;;) {
      ::pause();
    }
  }
  if (pid < 0) {
    REQUIRE((errno == EPERM || errno == ENOSYS || errno == EEXIST));
    return nullptr;
  }
  auto child = std::make_unique<Child>(pid);
  REQUIRE((wanted == 0 || pid == wanted));
  begun.write.reset();
  REQUIRE(filetimer::is_readable_within(begun.read.get(), kBound));
  return child;
}

constexpr std::int64_t kHour = 3'600'000'000'000;

// Makes the calling process the owner of a page in the runtime directory `dir`, with one open
// scope. A client that cannot read /proc makes a page whose header has no start time.
void own_page(const std::string& dir, const std::string& name, bool has_start_time) {
  filetimer::TestPage page;
  page.header().pid = ::getpid();
  page.header().start_time = has_start_time ? filetimer::start_time_in_proc(::getpid()) : 0;
  const std::int64_t now = filetimer::Instant::now().ns;
  page.open(0, {.name = "on a page",
                .acquired = now,
                .timeout = kHour,
                .word = now + kHour,
                .started = now,
                .tid = ::getpid()});
  const std::string hidden = dir + "/scopes/." + name;
  page.write(hidden);
  static auto lock = filetimer::FileLock::take(hidden);  // until this process ends
  if (!lock || ::rename(hidden.c_str(), (dir + "/scopes/" + name).c_str()) != 0) {
    ::_exit(1);
  }
}

constexpr const char* kSkipped = "the pid could not be chosen here";

}  // namespace

// In the tests below a server is killed, a worker ends, and its pid is reused before the next
// server starts. With --max-timeout of 1 ms that server would judge an adopted scope at once.
TEST_CASE("the next server does not take a process with a recycled pid for the owner of a page") {
  for (const bool has_start_time : {true, false}) {
    CAPTURE(has_start_time);
    Server server;
    // Worker and successor are copies of the test, and differ in their start times only.
    auto worker = child_with_pid(0, [&] { own_page(server.dir(), "w-1", has_start_time); });
    FILETIMER_SKIP_IF(worker == nullptr, kSkipped);
    server.send(format_page_hint("w-1"));
    server.barrier();
    server.kill();
    const pid_t pid = worker->pid();
    worker.reset();
    const auto successor = child_with_pid(pid);
    FILETIMER_SKIP_IF(successor == nullptr, kSkipped);
    Server next(server.temp(), {"--max-timeout", "1ms"});
    next.barrier();
    CHECK(adopted_by(next) == 0);
    CHECK(successor->is_alive());
    CHECK(count(next.records(), "expired", pid) == 0);
    // A page without a start time does not show that its worker has ended.
    CHECK(count(next.records(), "left_open", pid) == (has_start_time ? 1 : 0));
  }
}

TEST_CASE("the next server does not continue a kill on a process with a recycled pid") {
  for (const bool is_successor_a_worker : {false, true}) {
    CAPTURE(is_successor_a_worker);
    auto worker = std::make_unique<Worker>("block");
    const pid_t pid = worker->pid();
    const std::uint64_t started = filetimer::start_time_in_proc(pid);
    Server server(kNeverSignals);
    server.send(acquire_past(pid, "hung"));
    server.wait_for("expired", pid);
    server.kill();
    worker.reset();
    const auto successor = child_with_pid(pid, [&] {
      if (is_successor_a_worker) {
        own_page(server.dir(), "w-1", true);
      }
    });
    FILETIMER_SKIP_IF(successor == nullptr, kSkipped);
    REQUIRE(filetimer::start_time_in_proc(pid) != started);
    Server next(server.temp());
    const Record killed = next.wait_for("killed", pid);
    CHECK(killed.text("verdict") == "already_gone");
    CHECK(static_cast<std::uint64_t>(killed.integer("start_time")) == started);
    // The successor is watched for its own scopes only.
    CHECK(status_of(next).integer("workers") == (is_successor_a_worker ? 1 : 0));
    next.barrier();
    CHECK(successor->is_alive());
    CHECK(count(next.records(), "expired", pid) == 1);
    CHECK(count(next.records(), "killed", pid) == 1);
  }
}

TEST_CASE("a worker that has changed its user is watched, also by the next server") {
  // The worker was the server user's when it was admitted; pidfd and start time identify it since.
  FILETIMER_SKIP_IF(!can_become(kSomebodyElse), kCannotBecome);
  for (const std::string via : {"page", "pipe", "kill", "one server"}) {
    CAPTURE(via);
    const TempFolder temp;
    Server server(temp, via == "kill" ? kills_wait_for_go(temp) : std::vector<std::string>{});
    const auto worker = page_worker(server.dir(), "w-1");
    if (via == "kill") {
      server.send(acquire_past(worker->pid(), "s"));
      server.wait_for("expired", worker->pid());
    } else {
      via == "page" ? (void)worker->ask("wake 0 s 3600000")
                    : server.send(acquire_far(worker->pid(), "s"));
      server.barrier();
    }
    worker->ask(fmt::format("become {}", kSomebodyElse));
    if (via == "one server") {
      expire(server, *worker);
      continue;
    }
    server.kill();
    Server next(temp, {"--max-timeout", "1ms"});
    if (via == "kill") {
      server.leave_log_unjudged("the records of the kill have different users");
      next.leave_log_unjudged("likewise");
    }
    kill_of(next, *worker);
  }
}

TEST_CASE("a process that got the pid of the process that started the server is a kill target") {
  const TempFolder temp;
  auto starter = std::make_unique<Child>(Launch{
      .argv = {server_path(), "--dir", temp.path("run"), "--log", temp.path("log"), "--detach"},
      .out = temp.path("ready")});
  REQUIRE(starter->status() == exited(0));
  const pid_t pid = starter->pid();
  const std::string ready = read_file(temp.path("ready"));
  const HeldPid server(std::stoi(ready.substr(ready.find("pid=") + 4)));
  std::unique_ptr<Child> below;
  const auto worker = child_with_pid(0, [&] {
    below = child_with_pid(pid, [] { ::close_range(STDERR_FILENO + 1, ~0U, 0); });
    write_file(temp.path("below"), below == nullptr ? "none" : "there");
  });
  FILETIMER_SKIP_IF(worker == nullptr || read_file(temp.path("below")) == "none", kSkipped);
  send_raw(temp.path("run/requests"), acquire_past(worker->pid(), "s"));
  CHECK(worker->status() == killed_by(SIGKILL));
  const auto killed = [&] { return of_event(read_log(temp.path("log")), "killed"); };
  REQUIRE(wait_until([&] { return !killed().empty(); }));
  CHECK(killed().front().is("killed", worker->pid()));
  CHECK(killed().front().pids_of_signal(0) == std::vector<pid_t>{worker->pid(), pid});
}
