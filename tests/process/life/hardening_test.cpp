// How the server protects itself from memory shortage, reaps orphans, and reports its abilities
// when it starts.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include <array>
#include <cstddef>
#include <sstream>

#include "common/proc_files.hpp"
#include "common/sanitizers.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// AddressSanitizer makes mlockall() do nothing, with success.
constexpr bool kCanLock = !filetimer::kIsAddressSanitized;

// Returns how much memory is locked: "0 kB".
std::string locked_memory_of(pid_t pid) {
  const std::string status = read_file(fmt::format("/proc/{}/status", pid));
  const std::string key = "VmLck:";
  const std::size_t at = status.find_first_not_of(" \t", status.find(key) + key.size());
  return status.substr(at, status.find('\n', at) - at);
}

pid_t parent_of(pid_t pid) {
  const auto stat = filetimer::read_stat(fmt::format("/proc/{}", pid));
  return stat ? stat->ppid : 0;
}

int oom_score_adj(pid_t pid) {
  return std::stoi(read_file(fmt::format("/proc/{}/oom_score_adj", pid)));
}

// Sets the limit on processes as the server's user, because root would need a capability.
void limit_threads(const Server& server, const std::string& soft) {
  Child changer({.argv = {"/usr/bin/prlimit", fmt::format("--pid={}", server.pid()),
                          fmt::format("--nproc={}:", soft)},
                 .user = kSomebodyElse});
  REQUIRE(changer.status() == exited(0));
}

constexpr int kOrphans = 3;

// COMMAND, a worker of it with children that are orphans from the start, and the server above.
struct Orphanage {
  explicit Orphanage(Server::Setup setup = {}) : server(with_command(std::move(setup))) {
    REQUIRE(wait_until([&] {
      const std::string text = server.out();
      return std::count(text.begin(), text.end(), '\n') == kOrphans + 1;
    }));
    std::istringstream words(server.out());
    for (std::string word; words >> word;) {
      const pid_t pid = std::stoi(word.substr(word.find('=') + 1));
      if (word.starts_with("orphan=")) {
        orphans.emplace_back(pid);
      } else {
        command = pid;
      }
    }
  }

  static Server::Setup with_command(Server::Setup setup) {
    setup.command = {worker_path(), "orphans", std::to_string(kOrphans)};
    return setup;
  }

  // Makes COMMAND a worker whose deadline has passed, and returns the record of its kill.
  Record kill_command() {
    server.send(acquire_past(command, "s"));
    CHECK(server.process().status() == exited(128 + SIGKILL));
    return server.wait_for("killed", command);
  }

  [[nodiscard]] bool has_all_orphans() const {
    return std::ranges::all_of(orphans, &HeldPid::is_alive);
  }

  Server server;
  pid_t command = 0;
  std::vector<HeldPid> orphans;
};

// As a shell that executes the server, with a process that reads its output.
void have_a_child() {
  if (::fork() == 0) {
    ::alarm(120);
    ::pause();
    ::_exit(0);
  }
}

// Makes one system call fail as if a policy forbade it.
void forbid(unsigned call) {
  std::array<sock_filter, 4> program{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog filter{program.size(), program.data()};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

}  // namespace

TEST_CASE("orphans of a worker below COMMAND are reparented to the server and reaped") {
  Orphanage home;
  for (const HeldPid& orphan : home.orphans) {
    CHECK(parent_of(orphan.pid()) == home.server.pid());
    orphan.signal(SIGKILL);
  }
  for (const HeldPid& orphan : home.orphans) {
    // Reaped: the process is gone, and its pidfd keeps the pid from being reused.
    CHECK(wait_until([&] { return parent_of(orphan.pid()) != home.server.pid(); }));
  }
  CHECK(home.server.process().is_alive());
  ::kill(home.command, SIGUSR1);
  CHECK(home.server.process().status() == exited(128 + SIGUSR1));  // COMMAND's status is not lost
}

TEST_CASE("orphans of a COMMAND that ends by itself are left alone") {
  Orphanage home;
  ::kill(home.command, SIGUSR1);
  CHECK(home.server.process().status() == exited(128 + SIGUSR1));
  CHECK(home.has_all_orphans());
}

TEST_CASE("a kill of COMMAND hits its orphans, and not those of a hook that ran later") {
  const TempFolder temp;
  const std::string file = temp.path("pid");
  Orphanage home({.args = {"--on-warning", "setsid sleep 1000 & echo $! > " + file}});
  let_pass(20ms);  // more than a clock tick, the unit of start times
  const std::string soft = acquire(home.command, "soft", 1h);
  home.server.send(with_own_keys(soft, R"("x_timeout_s": 3600, "x_soft_s": 0.001)"));
  const HeldPid of_hook = pid_in(file);
  REQUIRE(wait_until([&] { return parent_of(of_hook.pid()) == home.server.pid(); }));
  const std::vector<pid_t> pids = home.kill_command().pids_of_signal(0);
  CHECK(pids.size() == 2 + kOrphans);
  for (const HeldPid& orphan : home.orphans) {
    CHECK(orphan.ends_within(kBound));
    CHECK(std::ranges::find(pids, orphan.pid()) != pids.end());
  }
  CHECK(of_hook.is_alive());
}

TEST_CASE("a kill of COMMAND hits no orphan if the server had children before") {
  Orphanage home({.in_child = have_a_child});
  const HeldPid child(filetimer::children_of(home.server.pid(), home.server.pid()).at(0));
  let_pass(20ms);
  CHECK(home.kill_command().pids_of_signal(0).size() == 2);
  CHECK(home.has_all_orphans());
  CHECK(child.is_alive());
}

TEST_CASE("a second SIGTERM spares a child that the server had before COMMAND") {
  Orphanage home({.in_child = have_a_child});
  const HeldPid child(filetimer::children_of(home.server.pid(), home.server.pid()).at(0));
  REQUIRE(child.pid() != home.command);
  home.server.begin_stop();  // COMMAND ignores the first SIGTERM
  REQUIRE(home.has_all_orphans());
  CHECK(home.server.stop() == exited(128 + SIGKILL));
  CHECK(child.is_alive());
  CHECK(std::ranges::none_of(home.orphans, &HeldPid::is_alive));
}

TEST_CASE("COMMAND has a higher oom score than the server") {
  const Orphanage home;
  const int ours = oom_score_adj(::getpid());
  CHECK(oom_score_adj(home.command) == ours);
  CHECK(oom_score_adj(home.orphans[0].pid()) == ours);
  FILETIMER_SKIP_IF(oom_score_adj(home.server.pid()) == ours,
                    "the oom score may not be lowered here");
  CHECK(oom_score_adj(home.server.pid()) == -900);
}

TEST_CASE("without privileges the server serves with unlocked memory and its own oom score") {
  FILETIMER_SKIP_IF(!can_become(kSomebodyElse), kCannotBecome);
  const TempFolder temp("/tmp");  // other users may not reach $TMPDIR
  REQUIRE(::chown(temp.path().c_str(), kSomebodyElse, kSomebodyElse) == 0);
  const Server server(temp, {.args = {"--log-level", "debug"},
                             .user = kSomebodyElse,
                             .in_child = limit(RLIMIT_MEMLOCK, {0, 0})});
  CHECK(oom_score_adj(server.pid()) == oom_score_adj(::getpid()));
  CHECK(locked_memory_of(server.pid()) == "0 kB");
  server.wait_for_message("oom_score_adj stays");
  if (kCanLock) {
    server.wait_for_message("memory is not locked");
  }
  Worker worker("block", {.user = kSomebodyElse});
  expire(server, worker);
}

TEST_CASE("a halt of one of many workers is noticed though no thread could be started before") {
  if (!can_become(kSomebodyElse)) {  // no limit of processes binds root
    FILETIMER_SKIP(kCannotBecome);
  }
  const TempFolder temp("/tmp");  // other users may not reach $TMPDIR
  REQUIRE(::chown(temp.path().c_str(), kSomebodyElse, kSomebodyElse) == 0);
  const Server server(temp, {.args = {"--max-interval", "20ms"}, .user = kSomebodyElse});
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NPROC, &before) == 0);
  limit_threads(server, "1");
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < 17; ++i) {  // more than HaltedWorkers::kFewWorkers
    workers.push_back(std::make_unique<Worker>("block", Worker::Setup{.user = kSomebodyElse}));
    server.send(acquire_far(workers.back()->pid(), "s"));
  }
  let_pass(200ms);  // sweeps
  limit_threads(server,
                before.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(before.rlim_cur));
  CHECK(wait_until([&] {
    workers.front()->signal(SIGSTOP);
    let_pass(200ms);
    workers.front()->signal(SIGCONT);
    let_pass(600ms);  // HaltedWorkers::kLookPeriod
    return contains(server.err(), "is resumed");
  }));
}

TEST_CASE("evidence needs no thread that was not there when the worker was first seen") {
  FILETIMER_SKIP_IF(!can_become(kSomebodyElse), kCannotBecome);
  const TempFolder temp("/tmp");  // other users may not reach $TMPDIR
  REQUIRE(::chown(temp.path().c_str(), kSomebodyElse, kSomebodyElse) == 0);
  const Server server(
      temp, {.args = {"--evidence", "proc", "--log-level", "debug"}, .user = kSomebodyElse});
  Worker worker("block", {.user = kSomebodyElse});
  server.send(acquire_far(worker.pid(), "outer"));
  server.wait_for_message(fmt::format("watching pid {} ", worker.pid()));
  limit_threads(server, "1");
  expire(server, worker);
  CHECK_FALSE(contains(missing_in(server.wait_for("evidence")), "time was up"));
}

TEST_CASE("a server that may lock its memory does") {
  FILETIMER_SKIP_IF(!kCanLock, "the sanitizer locks no memory");
  Server server({"--log-level", "debug"});
  server.barrier();
  if (contains(server.err(), "memory is not locked")) {
    CHECK(locked_memory_of(server.pid()) == "0 kB");
    FILETIMER_SKIP("memory may not be locked here");
  }
  CHECK(locked_memory_of(server.pid()) != "0 kB");
}

TEST_CASE("may.ptrace and may.kernel_stacks match what this host allows") {
  const auto may = [](const std::function<void()>& in_child) {
    return Server({.in_child = in_child}).wait_for("server_started");
  };
  const Record free = may({});
  // The server may do to a worker what the test may do to its own child.
  const Child child({.argv = {worker_path(), "block"}});
  const bool has_stack =
      filetimer::read_small_file(fmt::format("/proc/{}/stack", child.pid())).has_value();
  CHECK(free.at("may")["kernel_stacks"].get_bool().value() == has_stack);
  const std::string yama = read_file("/proc/sys/kernel/yama/ptrace_scope");
  if (yama.empty() || yama.starts_with("0")) {
    const bool can_trace = ::ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr) == 0;
    CHECK(free.at("may")["ptrace"].get_bool().value() == can_trace);
  }
  CHECK_FALSE(may([] { forbid(SYS_ptrace); }).at("may")["ptrace"].get_bool().value());
}

TEST_CASE("a server that may start no thread says so") {
  const TempFolder temp;  // as under a version of Docker that does not know clone3()
  Child server({.argv = {server_path(), "--dir", temp.path("run")},
                .err = temp.path("err"),
                .in_child = [] { forbid(SYS_clone3); }});
  CHECK(server.status() == exited(1));
  CHECK(contains(read_file(temp.path("err")), "error: cannot start a thread: Operation not"));
}

TEST_CASE("a server that cannot kill on this host reports it when it starts") {
  const Server server({.args = {"--kill-wait", "100ms", "--evidence", "none"},
                       .in_child = [] { forbid(SYS_pidfd_send_signal); }});
  const Record started = server.wait_for("server_started");
  CHECK_FALSE(started.at("may")["signal"].get_bool().value());
  server.wait_for_message("can workers be killed here? pidfd_send_signal");
  const Worker worker("block");
  server.send(acquire_past(worker.pid(), "s"));
  const Record killed = server.wait_for("killed", worker.pid());
  CHECK(killed.text("verdict") == "unkillable");
  CHECK(killed.text("reason").starts_with("the server may not send it SIGKILL: "));
  server.wait_for_message("), the server may not send it SIGKILL: ");
}
