// Deadlines that pass while a worker or the server could not run. No worker is killed for them, and
// a worker that hangs is still killed.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/ptrace.h>

#include "common/wire.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/kernel_stacks.hpp"

using namespace filetimer::testing;
using filetimer::Instant;
using filetimer::wire::format_page_hint;
using namespace std::chrono_literals;

namespace {

// Opens the scope "step". The signal brings the worker into this state before the server knows of
// the scope.
void acquire_step(const WatchedWorker& watched, std::chrono::milliseconds timeout, int signal = 0,
                  char state = 'T') {
  if (watched.has_page) {
    watched.worker->ask(fmt::format("open 0 step {}", timeout.count()));
  }
  if (signal != 0) {
    watched.worker->signal(signal);
    watched.worker->wait_for_state(state);
  }
  watched.server.send(watched.has_page ? format_page_hint("w-1")
                                       : acquire(watched.worker->pid(), "step", timeout));
}

}  // namespace

TEST_CASE("the deadline of a stopped worker is deferred, and it gets the time of its stop back") {
  for (const bool with_page : {false, true}) {
    CAPTURE(with_page);
    const Server server;
    const WatchedWorker watched(server, with_page);
    Worker& worker = *watched.worker;
    acquire_step(watched, 1s, SIGSTOP);
    const Record put_off = server.wait_for("deferred", worker.pid());
    CHECK(put_off.text("scope") == "step");
    CHECK(put_off.text("reason") == "stopped (SIGSTOP or the terminal)");
    // The scope of a line begins when the server reads the line, so its timeout may be shorter.
    const double timeout_s = put_off.number("timeout_s");
    CHECK((with_page ? timeout_s == 1 : timeout_s <= 1));
    CHECK(put_off.number("remaining_s") <= 0);
    CHECK(put_off.number("elapsed_s") + put_off.number("remaining_s") > timeout_s - 0.001);
    server.wait_for_message(
        fmt::format("deadline of scope 'step' deferred: pid {} (", worker.pid()));
    CHECK(worker.is_alive());
    const std::int64_t went_on = Instant::now().ns;
    worker.signal(SIGCONT);
    kill_of(server, worker);
    const Record expired = server.wait_for("expired", worker.pid());
    CHECK(static_cast<double>(expired.integer("mono_ns") - went_on) / 1e9 >= timeout_s);
    CHECK(expired.number("timeout_s") == timeout_s);
    CHECK(expired.number("elapsed_s") > 2 * timeout_s - 0.01);
    server.wait_for_message("is resumed: its scopes get the time back, at most ");
    CHECK(count(server.records(), "deferred", worker.pid()) == 1);
  }
}

// On a busy machine the server may not look at all workers while one is stopped for a short time.
TEST_CASE("a stop that ends before the deadline is given back among many workers, too") {
  until_in_time(1500ms, [](std::chrono::milliseconds time) {
    const Server server;
    const auto others = workers_in_scopes(server, 20);
    Worker worker("block");
    worker.halt();
    server.send(acquire(worker.pid(), "step", time + 500ms));
    let_pass(time);
    worker.signal(SIGCONT);
    CHECK(worker.status() == killed_by(SIGKILL));
    const double elapsed_s = server.wait_for("expired", worker.pid()).number("elapsed_s");
    return elapsed_s > std::chrono::duration<double>(2 * time).count();
  });
}

// The server looks every 1.5 s.
TEST_CASE("a message between two looks at the workers does not delay the second one") {
  Server server({"--max-interval", "1h"});
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask("open 0 step 8000 0");
  server.send(format_page_hint("w-1"));
  server.barrier();
  worker->halt();
  let_pass(1200ms);
  server.send(format_page_hint("w-1"));
  let_pass(1100ms);
  worker->signal(SIGCONT);
  server.wait_for_message("is resumed: its scopes get the time back");
}

TEST_CASE("a worker that survives SIGKILL is recorded as unkillable, with the reason") {
  const TempFolder temp;
  // The evidence of what holds the worker does not take its whole time.
  const std::string metrics = temp.path("filetimer.prom");
  Server server(temp, {"--stopped", "kill", "--kill-wait", "100ms", "--evidence", "none",
                       "--evidence-timeout", "1h", "--metrics", metrics});
  const WatchedWorker watched(server, true);
  Worker& worker = *watched.worker;
  // The worker exits only when this thread, its tracer, lets it.
  REQUIRE(::ptrace(PTRACE_SEIZE, worker.pid(), nullptr, PTRACE_O_TRACEEXIT) == 0);
  worker.ask("open 1 outer 3600000");
  acquire_step(watched, 1ms, SIGKILL, 't');
  const Record killed = server.wait_for("killed", worker.pid());
  CHECK(killed.text("verdict") == "unkillable");
  CHECK(killed.signals() == std::vector<int>{SIGKILL});
  CHECK_FALSE(killed.has("cancelled"));  // it is open
  CHECK(killed.at("dead_after_ms").is_null());
  CHECK(killed.text("state") == "t");
  CHECK(killed.has("kernel_stack") == can_read_kernel_stacks());
  const std::string wchan = read_file(fmt::format("/proc/{}/wchan", worker.pid()));
  CHECK(killed.text("reason") == fmt::format("still alive after SIGKILL: pid {} is in state t{}",
                                             worker.pid(),
                                             wchan.empty() || wchan == "0" ? "" : " in " + wchan));
  server.wait_for_message("), " + killed.text("reason") + " (" + killed.text("id") + ")\n");
  CHECK(worker.is_alive());
  // Another scope of the worker changes nothing, because unkillable workers are counted.
  server.send(acquire_past(worker.pid(), "again"));
  REQUIRE(wait_until([&] { return count(server.records(), "killed", worker.pid()) == 2; }));
  CHECK(status_of(server).integer("unkillable") == 1);
  const auto let_go = [&] {
    REQUIRE(::ptrace(PTRACE_DETACH, worker.pid(), nullptr, nullptr) == 0);
    CHECK(worker.status() == killed_by(SIGKILL));
  };
  SUBCASE("which dies before the server stops") {
    let_go();
    CHECK(server.stop() == exited(0));
  }
  SUBCASE("which is alive when the server stops") {
    CHECK(server.stop() == exited(8));
    CHECK(metric_of(server, metrics, "unkillable_workers") == "1");
    CHECK(metric_of(server, metrics, "unkillable_total", "scope=\"step\"") == "1");
    let_go();
  }
}

TEST_CASE("a server that was stopped past a deadline gives the time back, once") {
  for (const bool with_page : {false, true}) {
    CAPTURE(with_page);
    until_in_time(1s, [with_page](std::chrono::milliseconds timeout) {
      Server server;
      const WatchedWorker watched(server, with_page);
      Worker& worker = *watched.worker;
      const Instant deadline = Instant::now() + timeout;
      acquire_step(watched, timeout);
      const Instant last_deadline = Instant::now() + timeout;
      server.barrier();
      {
        server.process().wait_for_state('S');
        const Stopped stopped(server);
        if (Instant::now() >= deadline) {
          return false;
        }
        let_pass_until(last_deadline + 3100ms);
      }
      // On a busy machine the server may miss time again, but less.
      const auto is_of_stop = [](const Record& r) {
        return r.is("deferred") && !r.has("pid") && r.number("given_s") > 3;
      };
      const Record given = server.wait_for(is_of_stop);
      CAPTURE(given.line());
      CHECK(given.text("reason").starts_with("the server woke"));
      CHECK(given.integer("scopes") == 1);
      server.wait_for_message(", while 1 scope was open\n");
      kill_of(server, worker);
      const Record expired = server.wait_for("expired", worker.pid());
      // The time that was given back begins when the server runs again.
      const std::int64_t after = expired.integer("mono_ns") - given.integer("mono_ns");
      CHECK(static_cast<double>(after) / 1e9 > expired.number("timeout_s") - 0.2);
      CHECK(std::ranges::count_if(server.records(), is_of_stop) == 1);
      return true;
    });
  }
}

TEST_CASE("a scope that the server finds late gets that time back, and a record says so") {
  const TempFolder temp;
  Server server(temp, {"--metrics", temp.path("metrics")});
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask("open 0 forward 4000 0");
  let_pass(500ms);
  REQUIRE(worker->ask("hint") == "ok");
  const Record given = server.wait_for([](const Record& record) {
    return record.is("deferred") &&
           record.text("reason").starts_with("the server had not seen a scope for ");
  });
  CHECK(given.number("given_s") >= 0.5);
  CHECK(given.integer("scopes") == 1);
  CHECK(server.stop() == exited(0));
  CHECK_FALSE(contains(read_file(temp.path("metrics")), "reason=\"server_missed_time\"} 0\n"));
}

TEST_CASE("a grace period is longer by the time that the server missed in it") {
  Server server({"--grace", "2s", "--evidence", "none"});
  HungWorker worker(server, "step", SIGTERM, "ignore-term");
  server.wait_for("expired", worker.pid());
  server.barrier();  // and its signal was sent
  {
    const Stopped stopped(server);
    let_pass(900ms);
  }
  const Record killed = kill_of(server, worker);
  // It looked every 250 ms, so at least 650 ms were missed.
  CHECK(mono_of_signal(killed, 1) - mono_of_signal(killed, 0) > 2'500'000'000);
}
