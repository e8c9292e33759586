// timer_client against a real timer_server: what a person at a shell gets.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <csignal>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// timer_client with these words, to its end.
ExitStatus run_client(const Server& server, std::vector<std::string> words) {
  words.insert(words.begin(), client_path());
  Child child({.argv = std::move(words), .environment = {{"FILETIMER_DIR", server.dir()}}});
  return child.status();
}

// The same with its standard output in a file.
ExitStatus run_client_to(const Server& server, std::vector<std::string> words,
                         const std::string& out) {
  words.insert(words.begin(), client_path());
  Child child(
      {.argv = std::move(words), .environment = {{"FILETIMER_DIR", server.dir()}}, .out = out});
  return child.status();
}

// A shell that knows timer_client as $T.
ExitStatus run_shell(const Server& server, const std::string& script) {
  Child shell({.argv = {"/bin/sh", "-c", script},
               .environment = {{"FILETIMER_DIR", server.dir()}, {"T", client_path()}}});
  return shell.status();
}

// Of a server that has stopped.
std::int64_t requests_of(const Server& server) {
  const Records records = server.records();
  REQUIRE(records.back().is("server_stopped"));
  return records.back().integer("requests");
}

}  // namespace

TEST_CASE("run exits 124 when COMMAND was killed, and the record has COMMAND's name") {
  const TempDir temp;
  Server server(temp);
  CHECK(run_client(server, {"run", "--after", "200ms", "--", "sleep", "100"}) == exited(124));
  const Record killed = server.wait_for([](const Record& r) { return r.is("killed"); });
  CHECK(killed.text("scope") == "sleep");
  CHECK(killed.text("comm") == "sleep");
  CHECK(killed.text("verdict") == "dead");
  CHECK(killed.signals() == std::vector<int>{SIGKILL});
  const Record expired = server.wait_for([](const Record& r) { return r.is("expired"); });
  CHECK(expired.number("timeout_s") == doctest::Approx(0.2));
  server.barrier();
  CHECK(count(server.records(), "left_open") == 0);
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("run exits 124 when COMMAND needed the SIGKILL after the grace") {
  const TempDir temp;
  Server server(temp);
  CHECK(run_client(server, {"run", "--after", "300ms", "--signal", "TERM", "--grace", "100ms",
                            "--scope", "stubborn", "--", worker_path(), "ignore-term"}) ==
        exited(124));
  const Record killed = server.wait_for([](const Record& r) { return r.is("killed"); });
  CHECK(killed.text("scope") == "stubborn");
  CHECK(killed.signals() == std::vector<int>{SIGTERM, SIGKILL});
}

TEST_CASE("a COMMAND that ends in time leaves no record, however short it is") {
  const TempDir temp;
  Server server(temp);
  for (int i = 0; i < 50; ++i) {
    CHECK(run_client(server, {"run", "--after", "1h", "--", "true"}) == exited(0));
  }
  CHECK(run_client(server, {"run", "--after", "1h", "--", "sh", "-c", "sleep 0.1; exit 3"}) ==
        exited(3));
  server.barrier();
  CHECK(server.stop() == exited(0));
  CHECK(requests_of(server) == 2 * 51 + 1);  // all of them arrived; the barrier is one
  CHECK(server.records().back().array("left").size() == 0);
  const Records records = server.records();
  CHECK(count(records, "rejected") == 0);
  CHECK(count(records, "left_open") == 0);
  CHECK(count(records, "expired") == 1);  // the barrier's
}

TEST_CASE("acquire in a shell holds that shell to its deadline, also as the next program") {
  const TempDir temp;
  Server server(temp);
  CHECK(run_shell(server, "$T acquire --scope x --after 300ms; exec sleep 100") ==
        killed_by(SIGKILL));
  const Record killed = server.wait_for([](const Record& r) { return r.is("killed"); });
  CHECK(killed.text("scope") == "x");
  CHECK(killed.text("verdict") == "dead");
}

TEST_CASE("a shell that releases leaves nothing open, one that does not is told of") {
  const TempDir temp;
  Server server(temp);
  // The shell ends only when the server has read what it said: its pid means nothing afterwards.
  const std::string until_read =
      "&& $T acquire --scope marker$$ --after 1ms --signal 0 && until grep -q "
      "\"\\\"marker$$\\\",\\\"verdict\\\"\" $FILETIMER_DIR/expired.jsonl; do sleep 0.01; done && ";
  CHECK(run_shell(server, "$T acquire --scope kept --after 1h && $T release --scope kept " +
                              until_read + "exit 5") == exited(5));
  CHECK(run_shell(server, "$T acquire --scope forgotten --after 1h " + until_read + "exit 6") ==
        exited(6));
  const Record left = server.wait_for([](const Record& r) { return r.is("left_open"); });
  CHECK(left.text("scope") == "forgotten");
  server.barrier();
  CHECK(count(server.records(), "left_open") == 1);
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("a server in front of run ends as run does") {
  const TempDir temp;
  const Finished late = run_server(temp, {"--dir", temp.path("run"), "--", client_path(), "run",
                                          "--after", "200ms", "--", "sleep", "100"});
  CHECK(late.status == exited(124));
  CHECK(count(read_log(temp.path("run/expired.jsonl")), "killed") == 1);
  const Finished in_time = run_server(temp, {"--dir", temp.path("run"), "--", client_path(), "run",
                                             "--after", "1h", "--", "sh", "-c", "exit 9"});
  CHECK(in_time.status == exited(9));
}

TEST_CASE("ping and status are answered, and say so on a page for people") {
  const TempDir temp;
  Server server(temp);
  const std::string out = temp.path("out");
  CHECK(run_client_to(server, {"ping"}, out) == exited(0));
  CHECK(read_file(out).starts_with("pid " + std::to_string(server.pid()) + " answered in "));
  CHECK(run_client_to(server, {"status"}, out) == exited(0));
  const std::string page = read_file(out);
  CAPTURE(page);
  for (const char* word : {"may", "ptrace", "kernel stacks", "signal", "workers", "descriptors"}) {
    CAPTURE(word);
    CHECK(page.find(word) != std::string::npos);
  }
}

TEST_CASE("shutdown is refused with 6 while a scope is open, waits with 5, and ends with 0") {
  const TempDir temp;
  Server server(temp);
  const Worker worker("block");
  server.send(acquire_far(worker.pid(), "load"));
  const std::string out = temp.path("out");
  CHECK(run_client_to(server, {"shutdown"}, out) == exited(6));
  CHECK(read_file(out).find("load") != std::string::npos);
  CHECK(run_client(server, {"shutdown", "--graceful", "--timeout", "50ms"}) == exited(5));
  CHECK(run_client(server, {"drain"}) == exited(0));
  CHECK(run_client(server, {"drain", "--off"}) == exited(0));
  server.send(release(worker.pid(), "load"));
  CHECK(run_client(server, {"shutdown", "--graceful=workers", "--force", "--timeout", "50ms"}) ==
        exited(0));
  CHECK(server.process().status() == exited(0));
  CHECK(run_client(server, {"shutdown"}) == exited(4));
  CHECK(run_client(server, {"ping"}) == exited(4));
}

TEST_CASE("a server that is stopped answers nothing, and who asks is told so with 5") {
  const TempDir temp;
  Server server(temp);
  server.process().signal(SIGSTOP);
  server.process().wait_until_stopped();
  const std::string err = temp.path("err");
  Child child({.argv = {client_path(), "ping", "--rpc-timeout", "200ms", "--dir", server.dir()},
               .err = err});
  CHECK(child.status() == exited(5));
  CHECK(read_file(err).find("stopped") != std::string::npos);
  server.process().signal(SIGCONT);
  CHECK(run_client(server, {"ping"}) == exited(0));  // the late answer harms nobody
}

TEST_CASE("ranks that meet by the command line all get the round, or the names of the missing") {
  const TempDir temp;
  Server server(temp);
  const auto join = [&](const std::string& rank, const std::string& timeout) {
    return Launch{.argv = {client_path(), "rendezvous", "--rank", rank, "--world", "3", "--timeout",
                           timeout, "--dir", server.dir()},
                  .out = temp.path("out" + rank),
                  .err = temp.path("err" + rank)};
  };
  {
    Child zero(join("0", "2s"));
    Child two(join("2", "15s"));
    CHECK(zero.status() == exited(5));
    CHECK(two.status() == exited(5));
    CHECK(read_file(temp.path("err2")).find("missing: 1") != std::string::npos);
  }
  Child zero(join("0", "20s"));
  Child one(join("1", "20s"));
  Child two(join("2", "20s"));
  for (Child* rank : {&zero, &one, &two}) {
    CHECK(rank->status() == exited(0));
  }
  CHECK(read_file(temp.path("out1")).find('2') != std::string::npos);
}
