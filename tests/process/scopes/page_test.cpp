// Scope pages, from a worker's mapping to the record, without faults.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "common/proc_files.hpp"
#include "common/wire.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/mounts.hpp"

using filetimer::Instant;
using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

std::string scopes(const Server& server, const std::string& name) {
  return server.dir() + "/scopes/" + name;
}

}  // namespace

TEST_CASE("a worker is killed at the deadline of a scope on a page, and the record names both") {
  const Server server;
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask("open 1 outer 3600000");
  const std::int64_t deadline = std::stoll(worker->ask("open 0 forward 100"));
  worker->tell("hint");
  CHECK(kill_of(server, *worker).strings("cancelled") == std::vector<std::string>{"outer"});
  const Record expired = server.wait_for("expired", worker->pid());
  CHECK(expired.text("scope") == "forward");
  CHECK(
      (expired.integer("deadline_mono_ns") == deadline || count(server.records(), "deferred") > 0));
  CHECK(expired.number("timeout_s") == doctest::Approx(0.1));
  CHECK(expired.integer("tid") == worker->pid());
  CHECK(expired.array("open_scopes").size() == 2);
  CHECK(expired.number("grace_s") == 10);
  CHECK(server.wait_for("incident").array("open_scopes").size() == 2);
  CHECK(wait_until([&] { return !exists(scopes(server, "w-1")); }));
}

TEST_CASE("a wake-up message that is lost behind a line without its newline delays no deadline") {
  Server server({"--max-interval", "1h"});
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask("wake 1 outer 3600000");
  server.barrier();
  worker->ask("open 0 forward 100");
  const std::string line = acquire_far(worker->pid(), "s");
  server.send(line.substr(0, line.size() - 1) + filetimer::wire::format_page_hint("w-1"));
  CHECK(worker->status() == killed_by(SIGKILL));
}

TEST_CASE("a scope on the page of a worker that exits is recorded, and the page is removed") {
  const Server server;
  for (const bool by_signal : {false, true}) {
    const auto worker = page_worker(server.dir(), by_signal ? "w-1" : "w-2", "rank=3");
    worker->ask("open 0 load 3600000");
    worker->ask("open 2 whole 3600000 9 0 1");
    worker->ask("wake 1 gone 3600000");
    worker->ask("release 1");
    by_signal ? worker->kill() : (void)worker->exit();
    CHECK(server.wait_for("left_open", worker->pid()).text("scope") == "load");
    CHECK(wait_until([&] { return !exists(scopes(server, by_signal ? "w-1" : "w-2")); }));
    CHECK(count(server.records(), "left_open", worker->pid()) == 1);
  }
}

TEST_CASE("a worker that starts another program leaves its scopes open, and is not killed") {
  Server server;
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask("open 0 before 3600000");
  worker->ask("statistics before 1");
  const Instant deadline{std::stoll(worker->ask("wake 1 inside 3000"))};
  server.barrier();  // it knows the page
  worker->tell("exec sleep 100");
  const auto left = [&] { return scopes_of(server.records(), "left_open", worker->pid()); };
  CHECK(wait_until([&] { return left().size() == 2; }));
  CHECK(left() == std::vector<std::string>{"before", "inside"});
  CHECK(server.wait_for("left_open").text("reason") ==
        "the worker started another program inside the scope");
  CHECK(server.wait_for("worker_ended", worker->pid()).array("scopes").size() == 1);
  REQUIRE(wait_until([&] { return Instant::now() > deadline; }));
  server.barrier();
  CHECK(worker->is_alive());
  CHECK(count(server.records(), "expired", worker->pid()) == 0);
}

TEST_CASE("a worker whose stack its server may not see leaves its scopes open by an exec") {
  FILETIMER_SKIP_IF(!can_become(kSomebodyElse), kCannotBecome);
  struct Row {
    gid_t group;  // of the server: of another one than its worker's, it sees no address of a stack
    mode_t mode;  // of the program: one that may not be read hides its process from its user
    bool is_between_servers;
  };
  for (const Row& row : {Row{kSomebodyElse, 0111, false}, Row{kSomebodyElse, 0111, true},
                         Row{kSomebodyElse - 1, 0755, false}}) {
    const TempFolder temp;
    REQUIRE(::chown(temp.path().c_str(), kSomebodyElse, kSomebodyElse) == 0);
    const std::string program = temp.path("program");
    std::filesystem::copy_file("/bin/sleep", program);
    REQUIRE(::chmod(program.c_str(), row.mode) == 0);
    const Server::Setup as_user{.user = kSomebodyElse, .group = row.group};
    auto server = std::make_unique<Server>(temp, as_user);
    const auto worker = page_worker(server->dir(), "w-1", {}, kSomebodyElse);
    worker->ask("wake 0 inside 3000");
    REQUIRE(wait_until([&] { return exists(scopes(*server, ".owners/w-1")); }));
    if (row.is_between_servers) {
      server->kill();
    }
    worker->tell("exec " + program + " 100");
    if (row.is_between_servers) {
      const std::string comm = fmt::format("/proc/{}/comm", worker->pid());
      REQUIRE(wait_until([&] { return read_file(comm) == "program\n"; }));
      server = std::make_unique<Server>(temp, as_user);
    }
    CHECK(server->wait_for("left_open", worker->pid()).text("scope") == "inside");
    CHECK(worker->is_alive());
  }
}

TEST_CASE("a program that a watched worker executes is watched through its own page") {
  Server server;
  const auto worker = page_worker(server.dir(), "first");
  worker->ask("wake 0 before 3600000");
  server.barrier();
  worker->tell("exec " + program_path("page_worker") + " again");
  REQUIRE(worker->line() == "ready");
  worker->ask("make " + server.dir() + " second");
  worker->tell("wake 0 hung 50");
  CHECK(kill_of(server, *worker).text("scope") == "hung");
  CHECK(scopes_of(server.records(), "left_open", worker->pid()) ==
        std::vector<std::string>{"before"});
}

TEST_CASE("a worker that started the server is watched through its page, and dies without it") {
  for (const auto& way : {std::pair(false, false), {true, false}, {true, true}}) {
    const bool leads_session = way.first;
    const bool has_wrapper = way.second;
    CAPTURE(leads_session);
    CAPTURE(has_wrapper);
    const TempFolder temp;
    // A shell starts the server in the background and then executes the page worker, which makes
    // the worker the server's parent, or the parent of a process that waits for the server.
    const std::string ready = temp.path("ready");
    Worker::Setup setup{.program = {"/bin/sh", "-c",
                                    fmt::format("{}{} --dir {} --log {} > {} & exec {}",
                                                has_wrapper ? "setsid --fork --wait " : "",
                                                server_path(), temp.path("run"), temp.path("log"),
                                                ready, program_path("page_worker"))}};
    if (leads_session) {
      setup.program.insert(setup.program.begin(), {"/usr/bin/setsid", "--wait"});
    }
    Worker worker(setup);
    CHECK(wait_until([&] { return read_file(ready).ends_with("\n"); }));
    const std::string line = read_file(ready);
    const HeldPid server(std::stoi(line.substr(line.find("pid=") + 4)));
    const HeldPid parent(filetimer::read_stat(fmt::format("/proc/{}", server.pid()))->ppid);
    worker.ask("make " + temp.path("run") + " w-1");
    worker.ask("wake 1 open 3600000");
    send_raw(temp.path("run/requests"), acquire_past(worker.pid(), "line"));
    CHECK(wait_until([&] { return count(read_log(temp.path("log")), "rejected") == 1; }));
    worker.tell("wake 0 forward 50");
    // setsid says with its exit status that a signal has ended the worker.
    CHECK(worker.status() == (leads_session ? exited(SIGKILL) : killed_by(SIGKILL)));
    CHECK(wait_until([&] { return count(read_log(temp.path("log")), "killed") == 1; }));
    CHECK(server.is_alive());
    CHECK(parent.is_alive() == has_wrapper);
  }
}

TEST_CASE("in a pid namespace of its own acquire, release and run refuse to send a pid") {
  const TempFolder temp;
  FILETIMER_SKIP_IF(!can_unshare(kOwnPidNamespace), kNoPidNamespace);
  Server server(temp);
  const std::string why = "another pid namespace";
  for (const char* command : {"acquire", "release"}) {
    std::vector<std::string> words{command, "--dir", server.dir(), "--scope", "s", "--pid", "2"};
    if (std::string_view(command) == "acquire") {
      words.insert(words.end(), {"--timeout", "1h", "--signal", "0"});
    }
    check_failure(run_unshared(kOwnPidNamespace, client_path(), words), 6, why);
  }
  const Finished run = run_unshared(
      kOwnPidNamespace, client_path(),
      {"run", "--dir", server.dir(), "--timeout", "1h", "--", "touch", temp.path("started")});
  check_failure(run, 125, why);
  CHECK_FALSE(exists(temp.path("started")));
  CHECK(server.stop_record().integer("requests") == 0);
}

TEST_CASE("a worker to which a container shows another boot id is watched and listed") {
  const TempFolder temp;
  const std::string other = temp.path("boot_id");
  write_file(other, "01234567-89ab-cdef-0123-456789abcdef\n");
  const std::string script =
      fmt::format("mount --bind {} /proc/sys/kernel/random/boot_id && exec \"$0\" \"$@\"", other);
  const std::vector<std::string> inside{"--mount", "/bin/sh", "-c", script};
  FILETIMER_SKIP_IF(!can_unshare(inside), kNoMounts);
  Server server(temp);
  Worker worker({.environment = {{"FILETIMER_DIR", server.dir()}},
                 .program = unshared(inside, program_path("client_worker"))});
  REQUIRE(worker.ask("connect") == "yes");
  REQUIRE(worker.ask("open forward 3600000") == "yes");
  server.barrier();
  const std::vector<std::string> list{"list", "--json", "--dir", server.dir()};
  CHECK(contains(run_client(server, list).out, "\"forward\""));
  CHECK(contains(run_unshared(inside, client_path(), list).out, "\"forward\""));
  worker.tell("open backward 1");
  CHECK(kill_of(server, worker).text("scope") == "backward");
}

TEST_CASE("a worker that ends is recorded once, with the statistics of all its pages, if any") {
  Server server;
  const auto uncounted = page_worker(server.dir(), "uncounted");
  Worker counted({.program = {program_path("page_worker")}});
  for (const char* name : {"w-1", "w-2"}) {
    REQUIRE(counted.ask(fmt::format("make {} {}", server.dir(), name)) == "ok");
    counted.ask("statistics forward 5");
    counted.ask(fmt::format("statistics {} 1", name));
    REQUIRE(counted.ask("hint") == "ok");
  }
  REQUIRE(uncounted->ask("hint") == "ok");
  server.barrier();
  for (Worker* worker : {uncounted.get(), &counted}) {
    worker->exit();
  }
  const Record ended = server.wait_for("worker_ended", counted.pid());
  CHECK(ended.text("dir") == server.dir());
  const auto scopes_told = ended.array("scopes");
  REQUIRE(scopes_told.size() == 3);
  const auto forward = scopes_told.at(0);
  CHECK(forward["scope"].get_string().value() == "forward");
  CHECK(forward["count"].get_int64().value() == 10);
  CHECK(forward["total_s"].get_double().value() * 1e6 == doctest::Approx(10));
  CHECK(forward["smallest_margin_s"].get_double().value() * 1e6 == doctest::Approx(5));
  CHECK(server.stop() == exited(0));
  CHECK(count(server.records(), "worker_ended") == 1);
}

TEST_CASE("the statistics of workers that ended are in the log, also if no server ran then") {
  Server server;
  const auto seen = page_worker(server.dir(), "seen");
  const auto unseen = page_worker(server.dir(), "unseen");
  for (Worker* worker : {seen.get(), unseen.get()}) {
    worker->ask("statistics forward 5");
    worker->ask("open 0 load 3600000");
    REQUIRE(worker->ask("hint") == "ok");
  }
  server.barrier();
  seen->exit();
  server.wait_for("worker_ended", seen->pid());
  const std::string reason = "the worker ended inside the scope";
  CHECK(server.wait_for("left_open", seen->pid()).text("reason") == reason);
  server.kill();
  unseen->exit();
  const Server next(server.temp());
  next.wait_for("worker_ended", unseen->pid());
  CHECK(next.wait_for("left_open", unseen->pid()).text("reason") ==
        reason + " while no server was running");
  CHECK(contains(run_client(next, {"suggest", "--format", "json", "--dir", next.dir()}).out,
                 R"({"scope":"forward","count":10,)"));
}
