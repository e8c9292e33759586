// Control requests to a real server over its socket: what the server does for them. Which answer
// follows which request is tested in tests/timer_server/control.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/proc_files.hpp"
#include "common/wire.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/control_connection.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;
using filetimer::UniqueFd;
using filetimer::wire::Question;

namespace {

// A client with a connection of its own.
class Asker : public ControlConnection {
 public:
  Asker(const Server& server, const Question& question) : ControlConnection(server.dir()) {
    send(filetimer::wire::format_question(question));
  }

  // Returns the next answer. Fails the test if it is not of this kind.
  JsonLine next(std::string_view answer) {
    const std::string line = ControlConnection::line();
    CAPTURE(line);
    REQUIRE(!line.empty());
    JsonLine record(line);
    CHECK(record.text("answer") == answer);
    return record;
  }
  // Returns the last answer, and skips earlier ones.
  JsonLine last() {
    for (;;) {
      JsonLine record(line());
      if (const std::string answer = record.text("answer");
          answer != "granted" && answer != "waiting") {
        return record;
      }
    }
  }
};

Question question(const std::string& request, double wait_s = 60) {
  return {.request = request, .wait_s = wait_s};
}

Question shutdown(const std::string& graceful, bool force = false, double wait_s = 60) {
  return {.request = "shutdown", .wait_s = wait_s, .graceful = graceful, .force = force};
}

Question join(int rank, int world, double wait_s = 60, const std::string& name = "start") {
  return {.request = "rendezvous", .wait_s = wait_s, .name = name, .rank = rank, .world = world};
}

filetimer::Announcement announced(const Server& server) {
  return static_cast<filetimer::Announcement>(status_page(server.dir())->announcement.load());
}

bool is_open_on(const Server& server, const std::string& scope) {
  return std::ranges::any_of(
      Asker(server, question("shutdown")).last().array("open_scopes"),
      [&](simdjson::dom::element open) { return open["scope"].get_string().value() == scope; });
}

}  // namespace

TEST_CASE("status shows the watched workers and what the server may do here") {
  Server server({"--grace", "3s"});
  const Worker worker("block");
  server.send(acquire_far(worker.pid(), "load") + acquire_far(worker.pid(), "step") + "rubbish\n");
  const JsonLine answer = Asker(server, question("status")).next("done");
  CHECK(answer.integer("server_pid") == server.pid());
  CHECK(answer.text("dir") == server.dir());
  CHECK(answer.text("log") == server.log());
  CHECK(answer.integer("workers") == 1);
  CHECK(answer.integer("open_scopes") == 2);
  CHECK(answer.integer("rejected") == 1);
  CHECK(answer.text("announcement") == "none");
  CHECK(answer.integer("descriptors") > 5);
  const Record started = server.wait_for("server_started");
  for (const char* key : {"may", "limits", "settings"}) {
    CHECK(simdjson::minify(answer.at(key)) == simdjson::minify(started.at(key)));
  }
  CHECK(answer.at("may")["signal"].get_bool().value());
}

TEST_CASE("a graceful shutdown waits for a scope on a page and refuses new scopes") {
  Server server;
  const auto page = page_worker(server.dir(), "w-1");
  const WorkerInScope other(server, "held");  // so that no question of is_open_on() is granted
  server.barrier();
  page->ask("wake 0 forward 3600000");
  REQUIRE(wait_until([&] { return is_open_on(server, "forward"); }));
  server.send(release(other.pid(), "held"));
  server.barrier();
  Asker asker(server, shutdown("scopes"));
  CHECK(asker.next("granted").number("wait_s") == 60);
  CHECK(asker.next("waiting").integer("open_scope_count") == 1);
  CHECK(announced(server) == filetimer::Announcement::kShutdown);
  server.send(acquire_far(other.pid(), "late"));
  CHECK(server.wait_for("rejected").text("reason") == "the server is draining: no new scopes");
  CHECK(page->ask("release 0") == "in-time");
  CHECK(asker.last().text("answer") == "done");
  CHECK(server.process().status() == exited(0));
  CHECK(server.records().back().text("reason") == "shutdown: graceful");
  CHECK(announced(server) == filetimer::Announcement::kNone);
}

TEST_CASE("a forced shutdown ends the server after its time or at once, and leaves scopes open") {
  Server server;
  const WorkerInScope worker(server, "load");
  SUBCASE("after its time") {
    CHECK(Asker(server, shutdown("scopes", true, 0.05)).last().integer("open_scope_count") == 1);
    CHECK(server.process().status() == exited(0));
    CHECK(server.records().back().text("reason") == "shutdown: graceful_or_now");
  }
  SUBCASE("at once") {
    CHECK(Asker(server, shutdown("", true)).last().text("answer") == "done");
    CHECK(server.process().status() == exited(0));
    CHECK(server.records().back().integer("left_count") == 1);
  }
  CHECK(worker.is_alive());
  // The next server adopts what was left open.
  Server next(server.temp());
  CHECK(is_open_on(next, "load"));
}

// A worker that has mapped it would open no scope any more, and not look for the new one.
TEST_CASE("a status page that was removed while the server drained announces no drain any more") {
  Server server({"--max-interval", "20ms"});
  Asker(server, question("drain")).next("done");
  const auto board = status_page(server.dir());
  REQUIRE(::unlink((server.dir() + "/server").c_str()) == 0);
  CHECK(wait_until([&] { return board->announcement.load() == 0; }));
  CHECK(wait_until([&] {
    return board->next_wake.load() == filetimer::kWakeAlways && board->incarnation.load() == 2 &&
           board->scans.load() == 0;  // each deadline gets its message
  }));
  server.wait_for_message("made again");
  CHECK(wait_until([&] { return announced(server) == filetimer::Announcement::kDraining; }));
}

TEST_CASE("a status page that a client has extended after it was cut short is made anew") {
  Server server({"--max-interval", "20ms"});
  {
    const Stopped stopped(server);
    const std::string path = server.dir() + "/server";
    REQUIRE(::truncate(path.c_str(), 0) == 0);
    REQUIRE(::truncate(path.c_str(), filetimer::kBoardBytes) == 0);
  }
  server.wait_for_message("made again");
  CHECK(status_page(server.dir())->magic == filetimer::kBoardMagic);
}

TEST_CASE("a shutdown of a server with COMMAND sends it SIGTERM, and a forced one kills it") {
  for (const bool is_forced : {false, true}) {
    CAPTURE(is_forced);
    Server server(Server::Setup{.command = {worker_path(), is_forced ? "ignore-term" : "block"}});
    const JsonLine status = Asker(server, question("status")).next("done");
    CHECK(filetimer::ancestors_of(static_cast<pid_t>(status.integer("command_pid"))).at(0) ==
          server.pid());
    Asker asker(server, is_forced ? shutdown("", true) : shutdown("scopes"));
    CHECK(asker.last().text("answer") == "done");
    CHECK(server.process().status() == exited(128 + (is_forced ? SIGKILL : SIGTERM)));
    CHECK((!is_forced || contains(server.err(), "shutdown: now: killing COMMAND\n")));
  }
}

TEST_CASE("200 clients at once are all answered, and a deadline meanwhile is met") {
  Server server;
  Worker worker("block");
  std::vector<Asker> askers;
  {
    const Stopped stopped(server);  // more requests than one iteration answers
    server.send(acquire(worker.pid(), "load", 20ms));
    for (int i = 0; i < 200; ++i) {
      askers.emplace_back(server, question(i % 2 == 0 ? "ping" : "status"));
    }
  }
  for (Asker& asker : askers) {
    CHECK(asker.next("done").integer("server_pid") == server.pid());
  }
  CHECK(worker.status() == killed_by(SIGKILL));
}

TEST_CASE("as many ranks wait as there is room for, and pings are answered beside them") {
  Server server({.in_child = limit(RLIMIT_NOFILE, {160, 160})});
  std::vector<Asker> waiting;
  for (const Question& one : {join(0, 4), join(1, 4), join(2, 4), join(0, 4, 60, "other")}) {
    waiting.emplace_back(server, one).next("granted");
  }
  const auto answer_to = [&](const Question& asked) { return Asker(server, asked).line(); };
  const std::string refused = "4 clients wait for an answer: there is no room for another";
  CHECK(contains(answer_to(join(1, 4, 60, "other")), refused));
  CHECK(contains(answer_to(join(0, 5, 60, "wide")), refused));
  Asker(server, question("ping")).next("done");
  waiting.pop_back();
  CHECK(wait_until([&] {
    return contains(answer_to(join(0, 5, 60, "wide")), "the world is 5: expected 1 to 4 ranks");
  }));
  CHECK(Asker(server, join(3, 4)).last().text("answer") == "done");
}

TEST_CASE("the control socket of a killed server is replaced, and that of a stopped one is gone") {
  const TempFolder temp;
  Server::Setup setup;
  SUBCASE("also at a path that is too long for an address") {
    setup.folder = std::string(200, 'd');
  }
  {
    Server killed(temp, setup);
    killed.kill();
    CHECK(exists(killed.dir() + "/control"));
  }
  Server server(temp, setup);
  Asker(server, question("ping")).next("done");
  CHECK(server.stop() == exited(0));
  CHECK_FALSE(exists(server.dir() + "/control"));
}

TEST_CASE("a pipe of another reader in place of the server's is left alone, with a warning") {
  Server server({"--max-interval", "20ms"});
  const WorkerInScope worker(server, "released elsewhere", 2s);
  server.barrier();
  const std::string pipe = server.fifo();
  REQUIRE(::unlink(pipe.c_str()) == 0);
  REQUIRE(::mkfifo((pipe + ".new").c_str(), 0600) == 0);
  UniqueFd reader(::open((pipe + ".new").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(::rename((pipe + ".new").c_str(), pipe.c_str()) == 0);
  const std::string trouble = "'" + pipe + "' was replaced by a pipe that another process reads";
  server.wait_for_message(trouble);
  const JsonLine status = Asker(server, question("status")).next("done");
  CHECK(status.text("pipe_trouble").starts_with(trouble));
  reader.reset();
  REQUIRE(wait_until([&] { return is_read_pipe(pipe); }));
  let_pass(2s);
  server.barrier();
  CHECK(worker.is_alive());
}

TEST_CASE("a drain continues, and requests are answered, in a directory that is made again") {
  Server server({"--max-interval", "10ms"});
  Asker(server, question("drain")).next("done");
  std::filesystem::rename(server.dir(), server.temp().path("away"));
  REQUIRE(wait_until([&] { return is_read_pipe(server.fifo()); }));
  CHECK(announced(server) == filetimer::Announcement::kDraining);
  Asker(server, question("ping")).next("done");
}

TEST_CASE("a rank may join again before its hang-up is noticed, and is answered by a stop") {
  Server server;
  Asker first(server, join(0, 2));
  first.next("granted");
  std::optional<Asker> again;
  {
    const Stopped stopped(server);
    first.close();
    again.emplace(server, join(0, 2));
  }
  again->next("granted");
  CHECK(server.stop() == exited(0));
  CHECK(again->next("refused").text("reason") == "the server was stopped");
}
