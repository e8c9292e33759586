// Workers that hang outside any scope: an idle timeout counts from the last release, and only in no
// scope.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using filetimer::Instant;
using namespace std::chrono_literals;

namespace {

Record idle_record(const Server& server, Worker& worker) {
  kill_of(server, worker);
  Record record = server.wait_for("expired", worker.pid());
  CHECK(record.text("scope") == "(idle)");
  return record;
}

}  // namespace

TEST_CASE("a worker in no scope for its idle timeout is killed, and the record has the start") {
  const Server server;
  const auto worker = client_worker(server.dir(), 300ms);
  CHECK(worker->ask("open step 60000") == "yes");
  const Instant before = Instant::now();
  CHECK(worker->ask("release step") == "yes");
  const Instant after = Instant::now();
  const Record record = idle_record(server, *worker);
  const Instant since{record.integer("acquired_mono_ns")};
  CHECK(since >= before);
  CHECK(since <= after);
  const Instant deadline{record.integer("deadline_mono_ns")};
  CHECK((deadline - since == 300ms || count(server.records(), "deferred") > 0));
  CHECK(record.number("timeout_s") == doctest::Approx(0.3));
}

TEST_CASE("an idle timeout begins anew when a pipe that another process has read is back") {
  const Server server({"--max-interval", "3s"});
  const auto worker = client_worker(server.dir(), 1s);
  server.send(acquire_far(worker->pid(), "forward"));
  const std::string other = server.fifo() + ".new";
  REQUIRE(::mkfifo(other.c_str(), 0600) == 0);
  filetimer::UniqueFd reader(::open(other.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(wait_until([&] { return contains(run_client(server, {"list"}).out, "forward"); }));
  REQUIRE(::rename(other.c_str(), server.fifo().c_str()) == 0);
  server.wait_for_message("was replaced by a pipe that another process reads");
  let_pass(1500ms);
  const Instant back = Instant::now();
  reader.reset();
  CHECK(Instant{idle_record(server, *worker).integer("mono_ns")} >= back + 500ms);
}

TEST_CASE("the idle timeout of a stopped worker is deferred, and it gets that time back") {
  const Server server;
  const auto worker = client_worker(server.dir(), 1s);
  server.send(acquire_far(worker->pid(), "forward"));
  let_pass(100ms);  // not idle
  worker->halt();
  server.send(release(worker->pid(), "forward"));
  const Record deferred = server.wait_for("deferred", worker->pid());
  CHECK(deferred.text("scope") == "(idle)");
  CHECK(deferred.number("elapsed_s") + deferred.number("remaining_s") == doctest::Approx(1));
  CHECK(worker->is_alive());
  const Instant resumed = Instant::now();
  worker->signal(SIGCONT);
  CHECK(Instant{idle_record(server, *worker).integer("mono_ns")} >= resumed + 1s);
}

TEST_CASE("an idle timeout does not count as an open scope") {
  Server server({"--warn-at", "0.00001"});
  const auto worker = client_worker(server.dir(), 1h);
  CHECK(visit_scope(*worker));
  server.barrier();
  const Finished listed = run_client(server, {"list", "--json"});
  CHECK(listed.status == exited(0));
  CHECK_FALSE(contains(listed.out, "idle"));
  CHECK(worker->exit() == exited(0));
  server.barrier();
  CHECK(count(server.records(), "left_open") == 0);
  const auto other = client_worker(server.dir(), 1h);
  CHECK(visit_scope(*other));
  let_pass(100ms);  // beyond --warn-at of the hour
  CHECK(count(server.records(), "warned", "(idle)") == 0);
  CHECK(run_client(server, {"shutdown", "--mode", "if_idle"}).status == exited(0));
}

TEST_CASE("an idle worker that opens a scope before the signal is spared and still watched") {
  const TempFolder temp;
  const Server server(temp, kills_wait_for_go(temp));
  const auto worker = client_worker(server.dir(), 200ms);
  CHECK(visit_scope(*worker));
  server.wait_for_message("(idle)");  // the verdict
  CHECK(worker->ask("open back 60000") == "yes");
  temp.write("go", "");
  CHECK(server.wait_for("killed", worker->pid()).text("verdict") == "spared");
  CHECK(server.wait_for("released_late").text("scope") == "(idle)");
  worker->tell("release back");
  CHECK(worker->status() == killed_by(SIGKILL));
  CHECK(wait_until([&] { return count(server.records(), "expired", worker->pid()) == 2; }));
}

TEST_CASE("a worker whose whole-process scope another process opened can be idle") {
  const Server server;
  const auto worker = client_worker(server.dir(), 300ms);
  server.send(fmt::format(R"({{"version":1,"pid":{},"scope_id":"job#process","x_scope":"job",)"
                          R"("expiration_time":Infinity,"signal":9,"x_timeout_s":Infinity,)"
                          R"("x_whole_process":true}})"
                          "\n",
                          worker->pid()));
  CHECK(visit_scope(*worker));
  idle_record(server, *worker);
}

TEST_CASE("a page with an idle timeout of a microsecond does not keep the server busy") {
  const Server server;
  const auto worker = page_worker(server.dir(), "w-1");
  CHECK(worker->ask("open 0 step 3600000") != "error");
  CHECK(worker->ask("idle 1 1000") == "ok");
  CHECK(worker->ask("hint") == "ok");
  const auto before = cpu_time_of(server.pid());
  let_pass(1s);
  CHECK(cpu_time_of(server.pid()) - before < 300ms);
  CHECK(worker->is_alive());
}
