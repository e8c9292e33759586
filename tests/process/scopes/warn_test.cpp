// Soft deadlines, from a worker to the record: which scopes get a warning, once and in time, with
// evidence of their worker, and which do not.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// A line as our own clients write it, with a timeout of an hour.
std::string acquire_softly(pid_t pid, const std::string& scope,
                           std::chrono::duration<double> soft) {
  return with_own_keys(acquire_far(pid, scope),
                       fmt::format(R"("x_timeout_s": 3600, "x_soft_s": {})", soft.count()));
}

// "wake SLOT NAME MS" with a soft deadline.
std::string softly(const std::string& what, std::chrono::milliseconds soft) {
  return fmt::format("wake {} 9 4294967295 0 {}", what, soft.count());
}

}  // namespace

TEST_CASE("a scope on a page has a warning at --warn-at, then expires and has its worker killed") {
  const Server server({"--warn-at", "0.02"});
  const auto worker = page_worker(server.dir(), "w-1");
  worker->tell("wake 0 forward 2000");
  kill_of(server, *worker);
  for (const char* const event : {"warned", "expired", "killed"}) {
    CHECK(count(server.records(), event, worker->pid()) == 1);
  }
  const Record warned = server.wait_for("warned", "forward");
  CHECK(warned.text("reason") == "0.02 of its timeout has passed (--warn-at)");
  CHECK(warned.number("timeout_s") == 2);
  CHECK((warned.number("soft_s") == doctest::Approx(0.04) ||
         count(server.records(), "deferred") > 0));
  CHECK(warned.number("elapsed_s") >= 0.04);
  CHECK(warned.integer("tid") == worker->pid());
  CHECK(warned.text("comm") == "page_worker");
  const Record expired = server.wait_for("expired", worker->pid());
  CHECK(warned.integer("acquired_mono_ns") == expired.integer("acquired_mono_ns"));
  CHECK(warned.integer("soft_mono_ns") < expired.integer("deadline_mono_ns"));
}

TEST_CASE("a warning says where the worker is, and the worker gets no signal") {
  const Server server;
  Worker worker("catch-signals");
  server.send(acquire_softly(worker.pid(), "forward", 50ms));
  const Record warned = server.wait_for("warned", "forward");
  CHECK(warned.text("reason") == "its soft deadline of 50ms has passed");
  CHECK(warned.number("soft_s") == doctest::Approx(0.05));
  CHECK(warned.number("elapsed_s") >= 0.05);
  CHECK_FALSE(warned.text("state").empty());
  CHECK(warned.array("threads").size() == 1);
  CHECK(warned.number("gathered_ms") > 0);
  // This must be the first signal that the worker gets.
  worker.signal(SIGUSR2);
  CHECK(worker.line() == fmt::format("signal {}", SIGUSR2));
}

TEST_CASE("a soft deadline has no second warning from the next server") {
  const std::vector<std::string> args{"--warn-at", "0.00001", "--evidence", "none"};  // 36 ms
  Server server(args);
  const WatchedWorker paged(server, true);
  const WatchedWorker piped(server, false);
  for (const WatchedWorker* each : {&paged, &piped}) {
    each->open(0, "old", 1h);
    server.wait_for("warned", each->worker->pid());
  }
  server.kill();
  Server next(server.temp(), args);
  const std::vector<std::string> each_once{"old", "old",
                                           "new"};  // the first scope by the first server
  for (const WatchedWorker* each : {&paged, &piped}) {
    const pid_t pid = each->worker->pid();
    each->open(1, "new", 1h);
    CHECK(wait_until([&] { return count(next.records(), "warned", pid) == 3; }));
    CHECK(scopes_of(next.records(), "warned", pid) == each_once);
    CHECK_FALSE(next.wait_for("warned", pid).has("threads"));
  }
}

TEST_CASE("the warning at a timeout has the time to it, also if no signal follows") {
  const Server server({"--dry-run"});
  const auto worker = page_worker(server.dir(), "w-1");
  worker->tell("wake 0 forward 300 35 60000 64 50");
  const Record warned = server.wait_for([](const Record& record) {
    return record.is("warned") && record.text("reason") == "its timeout has passed";
  });
  CHECK_FALSE(warned.has("signal"));
  CHECK(
      (warned.number("soft_s") == doctest::Approx(0.3) || count(server.records(), "deferred") > 0));
}

TEST_CASE("a worker that runs another program has left its scopes, and is not warned about") {
  Server server;
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask("hint");
  server.barrier();  // it knows the page
  const auto begin = filetimer::Instant::now();
  {
    const Stopped stopped(server);
    worker->ask(softly("0 forward 3600000", 100ms));
    worker->tell("exec sleep 100");
    CHECK(wait_until(
        [&] { return read_file(fmt::format("/proc/{}/comm", worker->pid())) == "sleep\n"; }));
  }
  const Record left = server.wait_for("left_open", worker->pid());
  CHECK(filetimer::Instant::now() - begin >= 100ms);
  CHECK(left.text("scope") == "forward");
  CHECK(count(server.records(), "warned") == 0);
  CHECK(worker->is_alive());
}

TEST_CASE("timer_client run and acquire set soft deadlines") {
  const Server server;
  Child run({.argv = {client_path(), "run", "--warn-after", "50ms", "--", "sleep", "100"},
             .environment = {{"FILETIMER_DIR", server.dir()}}});
  const Record warned = server.wait_for("warned", "sleep");
  CHECK(warned.text("comm") == "sleep");
  CHECK(warned.number("elapsed_s") >= 0.05);
  const HeldPid sleeper(static_cast<pid_t>(warned.integer("pid")));
  sleeper.signal(SIGKILL);
  CHECK(run.status() == exited(128 + SIGKILL));
  Worker worker("block");
  CHECK(run_client(server, {"acquire", "--scope", "copy", "--timeout", "1h", "--warn-after", "20ms",
                            "--pid", std::to_string(worker.pid())})
            .status == exited(0));
  CHECK(server.wait_for("warned", "copy").integer("pid") == worker.pid());
  CHECK(worker.is_alive());
}

TEST_CASE("a server that stops while warnings wait for evidence records a hook for each of them") {
  constexpr std::size_t kWorkers = 8;  // more than have their evidence collected at one time
  Server server({"--on-warning", "true", "--evidence", "stacks"});
  std::vector<std::unique_ptr<Worker>> workers;
  std::string requests;
  for (std::size_t i = 0; i < kWorkers; ++i) {
    workers.push_back(std::make_unique<Worker>("block"));
    requests += acquire_softly(workers.back()->pid(), "forward", 1ms);
  }
  server.send(requests);
  server.wait_for("warned", "forward");
  server.stop();
  CHECK(count(server.records(), "warned") == kWorkers);
  CHECK(count(server.records(), "hook") == kWorkers);
}

TEST_CASE("a warning that is recorded without evidence says why") {
  for (const std::string why :
       {"the worker ended first", "a deadline of the worker came first",
        "the server was stopped first", "the scope ended before the evidence was complete",
        "the evidence was not complete after 100s"}) {
    CAPTURE(why);
    const TempFolder temp;
    Server::Setup setup = with_own_clocks(temp, {"--evidence-timeout", "100s"});
    setup.helper = "read -r _; read -r _; " + waits_for_go(temp);  // once its answer is waited for
    Server server(temp, setup);
    Worker worker("block");
    server.send(acquire_softly(worker.pid(), "forward", 1ms));
    REQUIRE(wait_until([&] { return exists(temp.path("begun")); }));  // the evidence is collected
    if (why.starts_with("the worker")) {
      worker.signal(SIGKILL);
    } else if (why.starts_with("a deadline")) {
      server.send(acquire_past(worker.pid(), "s", 0));
    } else if (why.starts_with("the server")) {
      CHECK(server.stop() == exited(0));
    } else if (why.starts_with("the scope")) {
      server.send(release(worker.pid(), "forward"));
      temp.write("go", "");
    } else {
      set_clocks(temp, server, filetimer::Instant::now() + 101s);
    }
    CHECK(server.wait_for("warned", "forward").text("missing") == why);
  }
}

TEST_CASE("a warning before a signal says why its evidence is cut, and whether a signal was sent") {
  for (const bool ends : {false, true}) {
    CAPTURE(ends);
    const TempFolder temp;
    const Server server(temp, {.helper = waits_for_go(temp)});
    const auto worker = page_worker(server.dir(), "w-1");
    worker->tell("wake 0 forward 1 35 4000 64");
    REQUIRE(wait_until([&] { return exists(temp.path("begun")); }));
    if (ends) {
      let_pass(100ms);  // the helper may have been started before the timeout
      worker->signal(SIGKILL);
    }
    const Record warned = server.wait_for("warned", "forward");
    const std::string missing = warned.text("missing");
    CAPTURE(missing);
    // The latter if no processor was free in the 20 ms between the helper's limit and the server's.
    const bool has_partial = contains(missing, "time was up");
    const bool is_cut = has_partial || missing == "the evidence was not complete after 1s";
    CHECK((ends ? contains(missing, "the worker ended first") : is_cut));
    CHECK(warned.has("signal") != ends);
    CHECK((!has_partial || warned.number("gathered_ms") < 1900));
  }
}

TEST_CASE("--on-warning runs once the warning is recorded, and show takes the warning's id") {
  const TempFolder temp;
  const TempFolder memory("/dev/shm");  // a hook waits for a slow disk no longer than 250 ms
  const std::string out = temp.path("out");
  Server server(temp,
                {.args = {"--log", memory.path("log.jsonl"), "--on-warning",
                          fmt::format("{} show $FILETIMER_ID $FILETIMER_LOG > {}; "
                                      "echo $FILETIMER_VERDICT $FILETIMER_PID \"$FILETIMER_SCOPE\" "
                                      "${{FILETIMER_INCIDENT-of no incident}} "
                                      "${{FILETIMER_RANK-no rank}} "
                                      "${{FILETIMER_JOB_ID-no job}} >> {}",
                                      client_path(), out, out)},
                 .environment = {{"FILETIMER_INCIDENT", "of the server"},
                                 {"FILETIMER_RANK", "99"},
                                 {"FILETIMER_JOB_ID", "of the server"}}});
  Worker worker("block");
  server.send(acquire_softly(worker.pid(), "forward", 50ms));
  const Record hook = server.wait_for("hook", worker.pid());
  CHECK(hook.text("on") == "warning");
  CHECK(hook.text("result") == "exited");
  const Record warned = server.wait_for("warned", "forward");
  CHECK(hook.text("id") == warned.text("id"));
  const std::string text = read_file(out);
  CAPTURE(text);
  CHECK(text.starts_with(fmt::format("pid {} (", worker.pid())));
  CHECK(contains(text, "was late in `forward`: open for "));
  CHECK(contains(text, "Threads\n"));
  CHECK(text.ends_with(
      fmt::format("warned {} forward of no incident no rank no job\n", worker.pid())));
  CHECK(worker.is_alive());
}

TEST_CASE("sixteen warnings of a worker are recorded in ten seconds, and the others are counted") {
  const TempFolder temp;
  Server server(temp, with_own_clocks(temp, {"--evidence", "none"}));
  const auto worker = page_worker(server.dir(), "w-1");
  std::vector<std::string> earliest;
  {
    const Stopped stopped(server);  // all are read together
    for (int i = 0; i < 20; ++i) {  // the one that was opened last stands first on the page
      worker->ask(softly(fmt::format("{} s{} 3600000", 19 - i, i), 1ms));
      earliest.push_back(fmt::format("s{}", i));
    }
  }
  earliest.resize(16);
  REQUIRE(wait_until([&] { return count(server.records(), "warned") == 16; }));
  server.barrier();
  CHECK(scopes_of(server.records(), "warned", worker->pid()) == earliest);
  set_clocks(temp, filetimer::Instant::now() + 11s);
  worker->ask(softly("20 later 3600000", 1ms));
  CHECK(server.wait_for("warned", "later").integer("omitted") == 4);
}

TEST_CASE("a paused scope causes no warning, and one warning after the pause") {
  const Server server({"--warn-at", "0.1"});
  const auto worker = client_worker(server.dir());
  worker->ask("open early 8000");
  worker->ask("pause early");
  worker->ask("open late 3500");
  server.wait_for("warned", "late");
  worker->ask("pause late");
  let_pass(500ms);
  CHECK(count(server.records(), "warned", "early") == 0);
  worker->ask("resume late");
  worker->ask("resume early");
  kill_of(server, *worker);  // for "late", which had the less time left
  CHECK(count(server.records(), "warned", "late") == 1);
  CHECK(server.wait_for("expired", worker->pid()).text("scope") == "late");
}
