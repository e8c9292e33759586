// Hostile and broken pages. The server survives them, does not stall, kills no process for them and
// records them. A worker beside them is still killed in time.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "common/scope_page.hpp"
#include "common/wire.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using filetimer::wire::format_page_hint;
using namespace std::chrono_literals;

namespace {

// Checks that the server still kills a worker in time.
void check_well(Server& server) {
  const auto honest = page_worker(server.dir(), fmt::format("honest-{}", ::getpid()));
  honest->tell("wake 0 honest 20");
  kill_of(server, *honest);
  check_prompt(server, honest->pid());
  server.barrier();
}

void check_refused(Server& server, const std::string& name, std::string_view reason) {
  CAPTURE(name);
  server.send(format_page_hint(name));
  const Record rejected = server.wait_for_rejection(reason);
  CHECK(rejected.text("line") == name);
  check_well(server);
}

// Sets what bad_disk.cpp does at the server's last look at a worker.
void at_last_look(const TempFolder& temp, const std::string& what) {
  temp.write("next-fault", what);
  std::filesystem::rename(temp.path("next-fault"), temp.path("fault"));
}

}  // namespace

TEST_CASE("a file that is not a page is refused with its reason") {
  Server server;
  const std::string folder = server.dir() + "/scopes/";
  REQUIRE(::mkfifo((folder + "fifo").c_str(), 0600) == 0);
  check_refused(server, "fifo", "not a regular file");
  REQUIRE(::mkdir((folder + "folder").c_str(), 0700) == 0);
  check_refused(server, "folder", "Is a directory");
  REQUIRE(::symlink("/etc/passwd", (folder + "symlink").c_str()) == 0);
  check_refused(server, "symlink", "symlink");
  write_file(folder + "short", "short");
  check_refused(server, "short", "5 bytes");
  write_file(folder + "huge", "");
  REQUIRE(::truncate((folder + "huge").c_str(), 1 << 30) == 0);
  check_refused(server, "huge", "1073741824 bytes");
  write_file(folder + "empty", "");
  REQUIRE(::truncate((folder + "empty").c_str(), filetimer::kPageBytes) == 0);
  check_refused(server, "empty", "expected the mark of a scope page");
  check_refused(server, "../requests", "not a page name");
  write_file(folder + "foreign", "");
  FILETIMER_SKIP_IF(::chown((folder + "foreign").c_str(), kSomebodyElse, kSomebodyElse) != 0,
                    "giving a file away is not allowed here");
  check_refused(server, "foreign", fmt::format("belongs to user {}", kSomebodyElse));
}

TEST_CASE("a page whose claims the kernel contradicts is refused, and no worker is killed for it") {
  Server server;
  Worker bystander("block");
  const auto check_claim = [&](const std::string& name, const std::string& claim,
                               std::string_view reason) {
    const auto worker = page_worker(server.dir(), name, claim);
    worker->ask("open 0 forged 1");
    check_refused(server, name, reason);
    CHECK(worker->is_alive());
  };
  check_claim("pid", fmt::format("pid={}", bystander.pid()),
              fmt::format("says pid {}", bystander.pid()));
  check_claim("start", "start_time=12345", "started at 12345");
  check_claim("version", "version=99", "version 99");
  check_claim("magic", "magic=1", "expected the mark");
  CHECK(bystander.is_alive());
  CHECK(count(server.records(), "expired", bystander.pid()) == 0);
}

TEST_CASE("a worker in another time namespace is refused") {
  Server server;
  const std::vector<std::string> namespaces{"--time", "--monotonic", "100000", "--fork",
                                            "--kill-child"};
  FILETIMER_SKIP_IF(!can_unshare(namespaces), "unshare(1) makes no time namespace here");
  Worker worker({.program = unshared(namespaces, program_path("page_worker"))});
  REQUIRE(worker.ask("make " + server.dir() + " shifted") == "ok");
  check_refused(server, "shifted", "is in another time namespace");
  CHECK(worker.is_alive());
}

TEST_CASE("an unlocked page is refused while its worker lives, and watched once if locked again") {
  Server server({"--max-interval", "50ms"});
  Worker worker({.program = {program_path("page_worker")}});
  {
    const Stopped stopped(server);  // no sweep may see the page before it is unlocked
    REQUIRE(worker.ask("make " + server.dir() + " w-1") == "ok");
    worker.ask("open 0 forward 1");
    REQUIRE(worker.ask("unlock") == "ok");
  }
  check_refused(server, "w-1", "no process holds its lock");
  CHECK(worker.is_alive());
  REQUIRE(worker.ask("release 0") == "in-time");
  worker.ask("open 0 forward 3600000");
  REQUIRE(worker.ask("lock") == "ok");
  const std::string owners = server.dir() + "/scopes/.owners/";
  REQUIRE(wait_until([&] { return exists(owners + "w-1"); }));
  const auto other = page_worker(server.dir(), "w-2");
  REQUIRE(wait_until([&] { return exists(owners + "w-2"); }));  // by a later sweep
  worker.kill();
  server.wait_for("left_open", worker.pid());
  CHECK(server.stop() == exited(0));
  CHECK(count(server.records(), "left_open", worker.pid()) == 1);
}

TEST_CASE("a page that is named twice in one write is looked at once") {
  Server server;
  write_file(server.dir() + "/scopes/short", "short");
  server.send(format_page_hint("short") + format_page_hint("short"));
  server.barrier();
  CHECK(server.stop_record().integer("rejected") == 1);
}

TEST_CASE("a page that is removed before its unlocked worker ends leaves the server asleep") {
  Server server;
  const auto worker = page_worker(server.dir(), "unlocked");
  REQUIRE(worker->ask("unlock") == "ok");
  worker->ask("wake 0 forward 3600000");
  server.barrier();
  REQUIRE(std::filesystem::remove(server.dir() + "/scopes/unlocked"));
  worker->kill();
  server.barrier();
  const auto used = cpu_time_of(server.pid());
  let_pass(1s);
  CHECK(cpu_time_of(server.pid()) - used < 150ms);
  CHECK(server.stop() == exited(0));
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("an iteration that fails leaves every other worker watched") {
  const TempFolder temp;
  Server server(temp, on_bad_disk(temp, "BAD_DISK_NO_WATCH", {"--max-interval", "100ms"}));
  WorkerInScope worker(server, "s", 3s);
  server.barrier();
  temp.write("fault", "");
  const auto unlocked = page_worker(server.dir(), "unlocked");
  REQUIRE(unlocked->ask("unlock") == "ok");
  server.wait_for_message("the server continues");
  REQUIRE(std::filesystem::remove(temp.path("fault")));
  kill_of(server, worker);
}

TEST_CASE("a page that is truncated while it is watched is removed and recorded") {
  Server server({"--max-interval", "50ms"});
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask("wake 0 forward 3600000");
  server.barrier();
  std::filesystem::resize_file(server.dir() + "/scopes/w-1", 0);
  const Record rejected = server.wait_for_rejection("truncated");
  CHECK(rejected.integer("pid") == worker->pid());
  check_well(server);
  CHECK(worker->is_alive());
}

TEST_CASE("a page that is truncated, or whose worker ends, as it is judged has no expiry") {
  for (const bool is_truncated : {true, false}) {
    CAPTURE(is_truncated);
    const TempFolder temp;
    Server server(temp, on_bad_disk(temp, "BAD_DISK_AT_LOOK"));
    const auto worker = page_worker(server.dir(), "w-1");
    const std::int64_t deadline = std::stoll(worker->ask("wake 0 forward 4000"));
    const std::string folder = server.dir() + "/scopes/";
    REQUIRE(wait_until([&] { return exists(folder + ".owners/w-1"); }));
    server.barrier();  // the server reads the stat of a new worker, too
    at_last_look(
        temp, fmt::format("{} {} {}", worker->pid(), deadline, is_truncated ? folder + "w-1" : ""));
    if (is_truncated) {
      CHECK(server.wait_for_rejection("truncated").integer("mono_ns") >= deadline);
      CHECK(worker->is_alive());
    } else {
      CHECK(worker->status() == killed_by(SIGKILL));
      CHECK(server.wait_for("left_open", worker->pid()).text("scope") == "forward");
    }
    CHECK_FALSE(exists(temp.path("fault")));
    CHECK(count(server.records(), "expired", worker->pid()) == 0);
    check_well(server);
  }
}

TEST_CASE("a page that is filled with noise again and again leads to no kill of another worker") {
  Server server({"--max-interval", "20ms", "--evidence", "none"});
  server.leave_log_unjudged("the times of its scopes are noise");
  Worker bystander("block");
  const auto worker = page_worker(server.dir(), "noise");
  worker->ask("wake 0 forward 3600000");
  server.barrier();
  // The worker may be killed, because the deadlines on its page may be past.
  std::mt19937_64 random;
  std::vector<std::uint64_t> noise(filetimer::kPageBytes / sizeof(std::uint64_t));
  for (int i = 0; i < 20 && !worker->ends_within(20ms); ++i) {
    std::ranges::generate(noise, random);
    std::ofstream(server.dir() + "/scopes/noise", std::ios::in)  // in place
        .write(reinterpret_cast<const char*>(noise.data()), filetimer::kPageBytes);
  }
  check_well(server);
  CHECK(bystander.is_alive());
  for (const Record& killed : of_event(server.records(), "killed")) {
    CHECK((killed.text("verdict") != "dead" || killed.text("scope") == "honest" ||
           killed.integer("pid") == worker->pid()));
  }
}

TEST_CASE("a worker may have eight pages") {
  Server server;
  const std::string dir = server.dir();
  // Each page is a file with a lock of its own, and one process holds them all.
  Worker worker({.program = {program_path("page_worker")}});
  server.send(acquire_far(worker.pid(), "on the pipe"));
  for (int i = 0; i < 9; ++i) {
    REQUIRE(worker.ask(fmt::format("make {} many-{}", dir, i)) == "ok");
    REQUIRE(worker.ask("hint") == "ok");
  }
  const Record rejected = server.wait_for_rejection("has 8 pages already");
  CHECK(rejected.text("line") == "many-8");
  CHECK(rejected.integer("count") == 1);
  check_well(server);
}

TEST_CASE("a worker whose pages were removed again and again is watched through its next one") {
  Server server;
  Worker worker({.program = {program_path("page_worker")}});
  for (int i = 0; i < 10; ++i) {
    const std::string name = fmt::format("removed-{}", i);
    REQUIRE(worker.ask("make " + server.dir() + " " + name) == "ok");
    worker.ask("statistics forward 5");
    REQUIRE(worker.ask("hint") == "ok");
    server.barrier();
    REQUIRE(std::filesystem::remove(server.dir() + "/scopes/" + name));
  }
  REQUIRE(worker.ask(fmt::format("make {} last", server.dir())) == "ok");
  worker.tell("wake 0 hung 20");
  CHECK(worker.status() == killed_by(SIGKILL));
  const Record ended = server.wait_for("worker_ended", worker.pid());
  CHECK(ended.array("scopes").at(0)["count"].get_int64().value() == 50);
}

TEST_CASE("a page of another boot is recorded once and removed") {
  Server server;
  const auto worker = page_worker(server.dir(), "old", "boot=7");
  REQUIRE(worker->ask("unlock") == "ok");  // a lock that is held is of this boot
  worker->ask("open 0 forward 1");
  {
    const Stopped stopped(server);  // both are read together
    REQUIRE(worker->ask("hint") == "ok");
    REQUIRE(worker->ask("hint") == "ok");
  }
  const Record left = server.wait_for("left_open");
  CHECK(left.text("reason") == "the machine was restarted");
  CHECK_FALSE(left.has("elapsed_s"));  // the times of its page are of another clock
  CHECK(wait_until([&] { return !exists(server.dir() + "/scopes/old"); }));
  server.barrier();
  CHECK(worker->is_alive());
  CHECK(count(server.records(), "left_open") == 1);
}
