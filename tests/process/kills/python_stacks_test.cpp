// Python stacks: a worker whose page names a signal for faulthandler gets that signal after its
// verdict, however it hangs, and is never harmed by it.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "common/scope_page.hpp"
#include "common/wire.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using filetimer::wire::format_page_hint;

namespace {

constexpr const char* kPython = "/usr/bin/python3";

// A worker that hangs in WAY (python_worker.py) as soon as it has opened a scope.
std::unique_ptr<Worker> python_worker(const Server& server, const std::string& way,
                                      const std::string& page = "py-1") {
  return std::make_unique<Worker>(
      Worker::Setup{.program = {kPython, FILETIMER_PYTHON_WORKER, server.dir(), page, way}});
}

// A worker that hangs in WAY in a scope whose deadline is near.
std::unique_ptr<Worker> hung_worker(const Server& server, const std::string& way,
                                    const std::string& page = "py-1") {
  auto worker = python_worker(server, way, page);
  worker->tell("open 100");
  return worker;
}

// Returns whether a frame of the Python stacks is in that function of the worker's file.
bool has_python_frame(const Record& evidence, std::string_view function) {
  const std::string form = fmt::format("python_worker\\.py:[^\"]* in {}\"", function);
  return !match_of(evidence.line(), form).empty();
}

// Returns the evidence of a worker, which must have been killed.
Record evidence_of(const Server& server, Worker& worker) {
  kill_of(server, worker);
  return server.wait_for("evidence", worker.pid());
}

// The same of a worker that hangs in WAY. On a busy machine it may not get there, or not dump its
// stacks within the server's second; then another worker is tried.
Record evidence_of(const Server& server, const std::string& way) {
  constexpr int kTries = 10;
  for (int tries = 1;; ++tries) {
    const auto worker = hung_worker(server, way, fmt::format("py-{}", tries));
    Record evidence = evidence_of(server, *worker);
    const bool is_whole =
        contains(evidence.line(), " in " + way) && !contains(evidence.line(), "it did not stop");
    if (is_whole || tries == kTries) {
      return evidence;
    }
  }
}

}  // namespace

TEST_CASE("a hung Python worker is recorded with its Python stacks, however it hangs") {
  for (const std::string way :
       {"hang_sleeping", "hang_spinning", "hang_in_lock", "hang_holding_gil"}) {
    CAPTURE(way);
    const Server server({"--evidence-timeout", "20s"});
    const Record evidence = evidence_of(server, way);
    CAPTURE(evidence.line());
    CHECK(missing_in(evidence) == "");
    const auto stacks = evidence.array("python_threads");
    REQUIRE(stacks.size() == 1);
    CHECK(stacks.at(0)["current"].error() == simdjson::SUCCESS);
    CHECK(has_python_frame(evidence, way));
    CHECK(has_python_frame(evidence, "main"));
    // And the native frames of the interpreter.
    CHECK(evidence.array("threads").at(0)["native_stack"].get_array().size() > 2);
  }
}

TEST_CASE("a helper for native stacks that hangs leaves time for the Python stacks") {
  const TempFolder temp;
  const std::string script = "/usr/bin/env > " + temp.path("env") + "\nexec /bin/sleep 100";
  const Server server(temp, {.args = {"--evidence-timeout", "4s"},
                             .environment = {{"LD_LIBRARY_PATH", "/of/libdw"}, {"HOME", "/"}},
                             .helper = script});
  const Record evidence = evidence_of(server, "hang_sleeping");
  CAPTURE(evidence.line());
  CHECK(evidence.has("missing"));
  CHECK(evidence.array("python_threads").size() == 1);
  const std::string environment = read_file(temp.path("env"));
  CHECK(contains(environment, "LD_LIBRARY_PATH=/of/libdw\n"));
  CHECK_FALSE(contains(environment, "HOME="));
}

TEST_CASE("the next server reads the stacks of a worker that an earlier one was about to kill") {
  const auto are_read = [] {
    Server server(
        Server::Setup{.args = {"--evidence-timeout", "1h"}, .helper = "exec /bin/sleep 100"});
    const auto worker = hung_worker(server, "hang_sleeping");
    server.wait_for("expired", worker->pid());
    server.kill();
    const Server next(server.temp());
    return evidence_of(next, *worker).has("python_threads");
  };
  CHECK((are_read() || are_read() || are_read()));  // a worker has a second to dump them
}

TEST_CASE("the dump file is private, in a directory of the server, and removed with its page") {
  const Server server;
  const std::string folder = server.dir() + "/scopes/.stacks";
  CHECK(std::filesystem::status(folder).permissions() == std::filesystem::perms(0700));
  const auto worker = python_worker(server, "hang_sleeping");
  REQUIRE(exists(folder + "/py-1"));
  worker->tell("open 100");
  evidence_of(server, *worker);
  CHECK(wait_until(
      [&] { return !exists(folder + "/py-1") && !exists(server.dir() + "/scopes/py-1"); }));
}

TEST_CASE("a dump has the Python stacks of a hung worker and does not kill it") {
  Server server;
  const auto worker = python_worker(server, "hang_with_threads");
  worker->tell("open 3600000");
  // The worker reports nothing more, so it is dumped until it hangs.
  std::string dumped;
  const auto shows_hang = [&] {
    dumped = unwrapped(run_client(server, {"dump"}).out);
    return contains(dumped, " in hang_in_lock") && contains(dumped, " in wait_in_thread");
  };
  const bool has_shown = wait_until(shows_hang);
  CAPTURE(dumped);
  CHECK(has_shown);
  CHECK(contains(dumped, "Python stacks (the most recent call first)"));
  server.barrier();
  CHECK(worker->is_alive());
}

TEST_CASE("a worker that has started another program gets no dump signal") {
  Server server;
  const auto worker = page_worker(server.dir(), "w-1", fmt::format("dump_signal={}", SIGUSR2));
  write_file(server.dir() + "/scopes/.stacks/w-1", "");
  REQUIRE(worker->ask("hint") == "ok");
  server.barrier();
  const std::string script = server.temp().path("script");
  write_file(script, fmt::format("import pathlib, signal\n"
                                 "signal.signal(signal.SIGUSR2, lambda *_: exit(1))\n"
                                 "pathlib.Path('{}').touch()\n"
                                 "while True: signal.pause()\n",
                                 server.temp().path("begun")));
  worker->tell(fmt::format("exec {} {}", kPython, script));
  REQUIRE(wait_until([&] { return exists(server.temp().path("begun")); }));
  const Finished dumped =
      run_client(server, {"dump", "--json", "--pid", std::to_string(worker->pid())});
  CHECK(contains(dumped.out, "the worker has started another program"));
  CHECK(worker->is_alive());
}

TEST_CASE("a stopped worker that is killed gets no dump signal, and its evidence says why") {
  const Server server({"--stopped", "kill", "--evidence-timeout", "20s"});
  const auto worker = page_worker(server.dir(), "w-1", fmt::format("dump_signal={}", SIGUSR2));
  write_file(server.dir() + "/scopes/.stacks/w-1", "");
  // A signal that ends no process, and comes first.
  worker->ask(
      fmt::format("open 0 forward 1 {} 3600000 {}", SIGWINCH, filetimer::slot_flag::kSignalFirst));
  worker->halt();
  server.send(format_page_hint("w-1"));
  const std::string why = "no Python stacks: the worker is stopped";
  CHECK(contains(missing_in(server.wait_for("warned", worker->pid())), why));
  expire(server, *worker);
  const Record evidence = server.wait_for("evidence", worker->pid());
  CAPTURE(evidence.line());
  CHECK(contains(missing_in(evidence), why));
}

TEST_CASE("a dry run sends no dump signal") {
  const Server server({"--dry-run"});
  const auto worker = hung_worker(server, "hang_until_asked");
  CHECK(server.wait_for("killed", worker->pid()).text("verdict") == "spared");
  CHECK(worker->is_alive());
  CHECK_FALSE(server.wait_for("evidence", worker->pid()).has("python_threads"));
}
