// A pid is a number that the kernel gives out again. What was watched under it must not be taken
// for what has it now.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/skip.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// A child of the test with just this pid, that does nothing until it is killed. Null where that is
// not allowed (it takes CAP_CHECKPOINT_RESTORE).
std::unique_ptr<Child> child_with_pid(pid_t wanted) {
  clone_args args{};
  args.exit_signal = SIGCHLD;
  args.set_tid = reinterpret_cast<std::uintptr_t>(&wanted);
  args.set_tid_size = 1;
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
      ::pause();
    }
  }
  if (pid < 0) {
    REQUIRE((errno == EPERM || errno == ENOSYS));
    return nullptr;
  }
  REQUIRE(pid == wanted);
  return std::make_unique<Child>(pid);
}

// A server that is stopped, so that it sees what happens meanwhile all at once; goes on at the end.
class Stopped {
 public:
  explicit Stopped(Server& server) : server_(server) {
    server_.process().signal(SIGSTOP);
    server_.process().wait_until_stopped();
  }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  ~Stopped() { server_.process().signal(SIGCONT); }

 private:
  Server& server_;
};

constexpr uid_t kSomebodyElse = 65533;
constexpr const char* kSkipped = "choosing a pid is not allowed here";

}  // namespace

TEST_CASE("a pid that was recycled before the deadline is never hit") {
  const TempFolder temp;
  Server server(temp);
  auto worker = std::make_unique<Worker>("block");
  const pid_t pid = worker->pid();
  std::unique_ptr<Child> stranger;
  server.send(acquire(pid, "s", 1500ms));
  server.barrier();
  {
    // The server sees the death, the stranger and the deadline together.
    const Stopped stopped(server);
    worker.reset();
    stranger = child_with_pid(pid);
    if (stranger == nullptr) {
      FILETIMER_SKIP(kSkipped);
    }
    CHECK_FALSE(stranger->ends_within(1600ms));  // the deadline passes while nobody looks
  }
  server.barrier();
  CHECK(stranger->is_alive());
  CHECK(count(server.records(), "killed", pid) == 0);
  CHECK(count(server.records(), "left_open", pid) == 1);
}

TEST_CASE("a process that got the pid of a worker is watched as itself") {
  const TempFolder temp;
  Server server(temp);
  auto worker = std::make_unique<Worker>("block");
  const pid_t pid = worker->pid();
  server.send(acquire_far(pid, "old") + acquire_far(pid, "old too"));
  server.barrier();
  worker.reset();
  const auto stranger = child_with_pid(pid);
  if (stranger == nullptr) {
    FILETIMER_SKIP(kSkipped);
  }
  server.wait_for("left_open", pid);
  server.send(acquire_past(pid, "new"));
  CHECK(stranger->status() == killed_by(SIGKILL));
  const Record killed = server.wait_for("killed", pid);
  CHECK(killed.text("scope") == "new");
  CHECK(killed.strings("cancelled").empty());
  const Records records = server.records();
  CHECK(count(records, "left_open", pid) == 2);
  for (const Record& record : records) {
    if (record.is("left_open", pid)) {
      CHECK(record.integer("start_time") <= killed.integer("start_time"));
    }
  }
}

TEST_CASE(
    "a process that got the pid of a worker while the server was stopped is watched as itself") {
  const TempFolder temp;
  Server server(temp);
  auto worker = std::make_unique<Worker>("block");
  const pid_t pid = worker->pid();
  server.send(acquire_far(pid, "old"));
  server.barrier();
  server.process().signal(SIGSTOP);
  server.process().wait_until_stopped();
  worker.reset();
  const auto stranger = child_with_pid(pid);
  if (stranger != nullptr) {
    server.send(acquire_past(pid, "new"));
  }
  server.process().signal(SIGCONT);
  if (stranger == nullptr) {
    FILETIMER_SKIP(kSkipped);
  }
  CHECK(stranger->status() == killed_by(SIGKILL));
  CHECK(server.wait_for("killed", pid).text("scope") == "new");
  CHECK(server.wait_for("left_open", pid).text("scope") == "old");
}

TEST_CASE("a release from a process with a recycled pid touches nothing of the old one") {
  const TempFolder temp;
  Server server(temp);
  auto worker = std::make_unique<Worker>("block");
  const pid_t pid = worker->pid();
  server.send(acquire_far(pid, "s"));
  server.barrier();
  std::unique_ptr<Child> stranger;
  {
    const Stopped stopped(server);
    worker.reset();
    stranger = child_with_pid(pid);
    if (stranger == nullptr) {
      FILETIMER_SKIP(kSkipped);
    }
    server.send(release(pid, "s"));
  }
  server.barrier();
  CHECK(stranger->is_alive());
  CHECK(count(server.records(), "killed", pid) == 0);
}

TEST_CASE("a worker that becomes another user's after its acquire is still held to its deadline") {
  // It was ours when it was first seen; pidfd and start time say that it is the same process.
  if (::geteuid() != 0) {
    FILETIMER_SKIP("only root can change users");
  }
  const TempFolder temp;
  Server server(temp);
  Worker worker("become", {.args = {std::to_string(kSomebodyElse)}});
  server.send(acquire(worker.pid(), "s", 2s));
  server.barrier();
  worker.let_go();
  CHECK(worker.line() == "changed");
  CHECK(worker.status() == killed_by(SIGKILL));
}

TEST_CASE("a worker that executes another program is the same worker") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("exec-block");
  server.send(acquire(worker.pid(), "s", 2s));
  server.barrier();
  worker.let_go();
  CHECK(worker.line() == "ready");
  CHECK(worker.status() == killed_by(SIGKILL));
  CHECK(server.wait_for("killed", worker.pid()).text("verdict") == "dead");
}

TEST_CASE("a worker that is a zombie has ended and is not killed") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("on-eof", {.args = {"0"}});
  worker.let_go();
  REQUIRE(worker.ends_within(kBound));  // and is not reaped before the end of the test
  server.send(acquire_past(worker.pid(), "s"));
  server.barrier();
  CHECK(count(server.records(), "expired", worker.pid()) == 0);
  CHECK(count(server.records(), "killed", worker.pid()) == 0);
  CHECK(worker.status() == exited(0));
}
