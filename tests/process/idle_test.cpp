// Workers that hang where nobody has wrapped a scope around: an idle timeout counts from the last
// release, and only then.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>

#include "common/clock.hpp"
#include "tests/process/harness.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using filetimer::Instant;
using namespace std::chrono_literals;

namespace {

constexpr Way kWays[] = {Way::kPage, Way::kPipe};

std::size_t expiries_of(const Server& server, const Worker& worker) {
  return count(server.records(), "expired", worker.pid());
}

Record idle_record(const Server& server, Worker& worker) {
  CHECK(worker.status() == killed_by(SIGKILL));
  server.wait_for("killed", worker.pid());
  Record record = server.wait_for("expired", worker.pid());
  CHECK(record.text("scope") == "(idle)");
  return record;
}

void visit_scope(Worker& worker) {
  CHECK(worker.ask("open step 60000") == "yes");
  CHECK(worker.ask("release step") == "yes");
}

}  // namespace

TEST_CASE("a worker in no scope for its idle timeout is killed, and the record says since when") {
  for (const Way way : kWays) {
    CAPTURE(static_cast<int>(way));
    const TempDir temp;
    const Server server(temp);
    const auto worker = client_worker(server.dir(), way, 300ms);
    visit_scope(*worker);
    CHECK(worker->ask("open step 60000") == "yes");
    const Instant before = Instant::now();
    CHECK(worker->ask("release step") == "yes");
    const Instant after = Instant::now();
    const Record record = idle_record(server, *worker);
    const Instant since{record.integer("acquired_mono_ns")};
    const auto grain = way == Way::kPage ? 0ms : 2ms;  // the pipe has the wall clock
    CHECK(since + grain >= before);
    CHECK(since <= after + grain);
    const Instant deadline{record.integer("deadline_mono_ns")};
    CHECK(deadline - since >= 300ms - grain);
    CHECK(deadline - since <= 300ms + grain);
    CHECK(record.number("timeout_s") == doctest::Approx(0.3));
    CHECK(server.wait_for("killed", worker->pid()).text("verdict") == "dead");
  }
}

TEST_CASE("before its first scope, inside one and in an unlimited region a worker is not idle") {
  for (const Way way : kWays) {
    CAPTURE(static_cast<int>(way));
    const TempDir temp;
    const Server server(temp);
    const auto unborn = client_worker(server.dir(), way, 100ms);
    const auto inside = client_worker(server.dir(), way, 100ms);
    const auto outside = client_worker(server.dir(), way, 100ms);
    inside->ask("open long 60000");
    outside->ask("enter region");
    visit_scope(*inside);
    visit_scope(*outside);
    let_pass(500ms);
    for (const auto* worker : {&unborn, &inside, &outside}) {
      CHECK(expiries_of(server, **worker) == 0);
    }
    CHECK(inside->ask("release long") == "yes");
    idle_record(server, *inside);
    CHECK(outside->ask("leave") == "yes");
    idle_record(server, *outside);
    CHECK(unborn->is_alive());
  }
}

TEST_CASE("scopes that a worker enters and leaves again and again keep it from being idle") {
  for (const Way way : kWays) {
    CAPTURE(static_cast<int>(way));
    const TempDir temp;
    const Server server(temp);
    const auto worker = client_worker(server.dir(), way, 2000ms);
    const Instant until = Instant::now() + 2500ms;
    while (Instant::now() < until) {
      visit_scope(*worker);
      let_pass(50ms);
    }
    CHECK(expiries_of(server, *worker) == 0);
  }
}

TEST_CASE("an idle timeout is nobody's open scope") {
  const TempDir temp;
  Server server(temp);
  const auto worker = client_worker(server.dir(), Way::kPage, 1h);
  visit_scope(*worker);
  const Finished listed = run_client(temp, {"list", "--json", "--dir", server.dir()});
  CHECK(listed.status == exited(0));
  CHECK(listed.out.find("idle") == std::string::npos);
  worker->tell("exit");
  CHECK(worker->status() == exited(0));
  server.barrier();
  CHECK(count(server.records(), "left_open") == 0);
  const auto other = client_worker(server.dir(), Way::kPage, 1h);
  visit_scope(*other);
  CHECK(run_client(temp, {"shutdown", "--dir", server.dir()}).status == exited(0));
}

TEST_CASE("the next server goes on with an idle timeout") {
  const TempDir temp;
  std::optional<Server> server;
  server.emplace(temp);
  const auto worker = client_worker(server->dir(), Way::kPage, 500ms);
  const Instant before = Instant::now();
  visit_scope(*worker);
  const Instant after = Instant::now();
  server->process().signal(SIGKILL);
  CHECK(server->process().status() == killed_by(SIGKILL));
  server.emplace(temp);
  const Record record = idle_record(*server, *worker);
  CHECK(Instant{record.integer("deadline_mono_ns")} >= before + 500ms);
  CHECK(Instant{record.integer("deadline_mono_ns")} <= after + 500ms);
}

TEST_CASE("an idle worker that comes back before the signal is spared, and watched on") {
  const TempDir temp;
  const std::string hangs = temp.path("hangs");
  write_file(hangs, "");  // the kill waits for the log as long as it may
  const Server server(temp, {.environment = {{"LD_PRELOAD", bad_disk_path()},
                                             {"ASAN_OPTIONS", "verify_asan_link_order=0"},
                                             {"BAD_DISK_HANGS", hangs}}});
  const auto worker = client_worker(server.dir(), Way::kPage, 200ms);
  visit_scope(*worker);
  server.wait_for_message("(idle)");  // the verdict
  CHECK(worker->ask("open back 60000") == "yes");
  REQUIRE(::unlink(hangs.c_str()) == 0);
  CHECK(server.wait_for("killed", worker->pid()).text("verdict") == "spared");
  CHECK(server.wait_for([](const Record& r) { return r.is("released_late"); }).text("scope") ==
        "(idle)");
  CHECK(worker->ask("release back") == "yes");
  CHECK(worker->status() == killed_by(SIGKILL));
  CHECK(wait_until([&] { return expiries_of(server, *worker) == 2; }));
}

TEST_CASE("in a dry run each time of idleness is told, and once") {
  const TempDir temp;
  const Server server(temp, {"--dry-run"});
  const auto worker = client_worker(server.dir(), Way::kPage, 100ms);
  for (std::size_t i = 1; i <= 2; ++i) {
    visit_scope(*worker);
    CHECK(wait_until([&] { return count(server.records(), "killed", worker->pid()) == i; }));
    let_pass(300ms);
    CHECK(expiries_of(server, *worker) == i);
  }
}

TEST_CASE("an idle worker that is stopped is put off, and then has its full time") {
  const TempDir temp;
  const Server server(temp);
  const auto worker = client_worker(server.dir(), Way::kPage, 400ms);
  visit_scope(*worker);
  worker->signal(SIGSTOP);
  worker->wait_until_stopped();
  CHECK(server.wait_for("deferred", worker->pid()).text("scope") == "(idle)");
  CHECK(expiries_of(server, *worker) == 0);
  const Instant before = Instant::now();
  worker->signal(SIGCONT);
  const Record record = idle_record(server, *worker);
  CHECK(Instant{record.integer("deadline_mono_ns")} >= before + 400ms);
}
