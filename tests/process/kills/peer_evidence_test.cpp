// The evidence of the peers of a worker that expires: where the others of its job wait.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "common/proc_files.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;

namespace {

std::unique_ptr<Worker> peer_of_job(const Server& server, const std::string& job, int rank) {
  return ranked_worker(server, rank, {{"TORCHELASTIC_RUN_ID", job}});
}

Records peers_in(const Server& server) {
  return of_event(server.records(), "peer_evidence");
}

}  // namespace

TEST_CASE("the peers of a worker have their evidence recorded before its signal") {
  const Server server({"--evidence", "proc", "--evidence-timeout", "20s"});
  std::string job = "8812";
  SUBCASE("of its job") {}
  SUBCASE("of the ranks without a job") {
    job = "";
  }
  const auto hung = peer_of_job(server, job, 1);
  const auto peer = peer_of_job(server, job, 0);
  const auto stranger = peer_of_job(server, "8813", 2);
  const auto hung_too = peer_of_job(server, job, 3);
  server.send(acquire_past(peer->pid(), "spared", 0));  // which makes no difference
  server.wait_for("killed", peer->pid());
  // A worker without a job comes first, and one of the job next: the peers are recorded once.
  const Worker alone("block");
  server.send(acquire_past(alone.pid(), "load") + acquire_past(hung->pid(), "load") +
              acquire_past(hung_too->pid(), "load"));
  const Record killed = kill_of(server, *hung);
  server.wait_for("killed", hung_too->pid());
  const Record expired = server.wait_for("expired", hung->pid());
  const Records peers = peers_in(server);
  REQUIRE(peers.size() == 1);
  CHECK(peers[0].integer("pid") == peer->pid());
  CHECK(peers[0].integer("rank") == 0);
  CHECK(peers[0].text("incident") == expired.text("incident"));
  CHECK(peers[0].has("threads"));
  CHECK(missing_in(peers[0]) == "");
  CHECK(peers[0].integer("mono_ns") <= mono_of_signal(killed, 0));
  CHECK(peer->is_alive());
  CHECK(stranger->is_alive());
}

TEST_CASE("64 peers have their evidence recorded, and the first record counts the others") {
  constexpr std::ptrdiff_t kPeers = 67;
  Server server({"--evidence", "proc", "--evidence-timeout", "20s"});
  const Environment environment{{"TORCHELASTIC_RUN_ID", "8812"}, {"RANK", "0"}};
  const Worker family("family", {.args = {std::to_string(kPeers)}, .environment = environment});
  Worker hung("block", {.environment = environment});
  std::string lines = acquire_far(hung.pid(), "exchange");
  for (const pid_t pid : filetimer::children_of(family.pid(), family.pid())) {
    lines += acquire_far(pid, "exchange");
  }
  server.send(lines);
  REQUIRE(wait_until([&] {  // the server has read the rank of each
    const auto listed = lines_of(run_client(server, {"list", "--json"}).out);
    return std::ranges::count_if(listed, [](const std::string& scope) {
             return contains(scope, "\"rank\":0");
           }) > kPeers;
  }));
  expire(server, hung, "load");
  const Records peers = peers_in(server);
  REQUIRE(peers.size() == 64);
  CHECK(peers[0].integer("peers_omitted") == kPeers - 64);
  CHECK(std::ranges::count_if(peers, [](const Record& r) { return r.has("peers_omitted"); }) == 1);
}

TEST_CASE("a peer has its Python stacks recorded, and runs on") {
  const auto has_stacks = [] {
    const Server server;
    const auto hung = peer_of_job(server, "8812", 1);
    Worker peer({.environment = {{"TORCHELASTIC_RUN_ID", "8812"}, {"RANK", "0"}},
                 .program = {"/usr/bin/python3", FILETIMER_PYTHON_WORKER, server.dir(), "py-1",
                             "hang_in_lock"}});
    peer.tell("open 3600000");
    // The peer says nothing more: asked until it is where it hangs.
    REQUIRE(wait_until([&] {
      return contains(run_client(server, {"dump", "--rank", "0", "--json"}).out,
                      " in hang_in_lock");
    }));
    expire(server, *hung, "load");
    const Records peers = peers_in(server);
    REQUIRE(peers.size() == 1);
    CHECK(peer.is_alive());
    return contains(peers[0].line(), " in hang_in_lock");
  };
  CHECK((has_stacks() || has_stacks() || has_stacks()));  // a peer has a second to dump them
}

TEST_CASE("a server that stops records what it has of the evidence of peers") {
  Server server({.args = {"--evidence-timeout", "1h"}, .helper = "exec /bin/sleep 100"});
  const auto hung = peer_of_job(server, "8812", 1);
  const auto peer = peer_of_job(server, "8812", 0);
  server.send(acquire_past(hung->pid(), "load"));
  server.wait_for("expired", hung->pid());
  CHECK(server.stop() == exited(0));
  CHECK(hung->status() == killed_by(SIGKILL));
  const Records peers = peers_in(server);
  REQUIRE(peers.size() == 1);
  CHECK(peers[0].integer("pid") == peer->pid());
  CHECK(peers[0].has("missing"));
}

TEST_CASE("a worker that gets no signal, and a server that is not to, record nothing of peers") {
  struct Row {
    std::vector<std::string> args;
    int signal = SIGKILL;
  };
  for (const Row& row : {Row{{}, 0}, Row{{"--dry-run"}}, Row{{"--evidence", "none"}}}) {
    CAPTURE(row.args.size());
    const Server server(row.args);
    const auto hung = peer_of_job(server, "8812", 1);
    const auto peer = peer_of_job(server, "8812", 0);
    server.send(acquire_past(hung->pid(), "load", row.signal));
    server.wait_for("killed", hung->pid());
    CHECK(peers_in(server).empty());
    CHECK(peer->is_alive());
  }
}
