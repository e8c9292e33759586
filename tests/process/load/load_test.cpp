// Limits on what clients and other processes can make a server hold, list and record; and load:
// writers that never pause, many expiries at one time, and messages without a reader. Deadlines are
// still met.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>

#include "common/limits.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/test_page.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;
using filetimer::kMaxScopesPerWorker;

namespace {

// Requests for as many scopes as a worker may have.
std::string fill(pid_t pid, const std::string& padding = {}) {
  std::string lines;
  for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
    lines += acquire_far(pid, fmt::format("s{}{}", i, padding));
  }
  return lines;
}

std::size_t rejections_with(const Server& server, std::string_view reason) {
  std::size_t found = 0;
  for (const Record& record : server.records()) {
    if (record.is("rejected") && contains(record.text("reason"), reason)) {
      found += static_cast<std::size_t>(record.integer("count"));
    }
  }
  return found;
}

// Makes the folder of pages for the next server in `temp`.
std::string make_page_folder(const TempFolder& temp) {
  temp.make_folder("run");
  return temp.make_folder("run/scopes");
}

// A server may watch 16 workers then.
const std::function<void()> kAllow64Descriptors = limit(RLIMIT_NOFILE, {64, 64});

constexpr int kWriters = 4;
constexpr int kTogether = 64;
// The most bytes of an expiry in the log, without its evidence.
constexpr std::size_t kBytesAnExpiry = 2000;

}  // namespace

TEST_CASE("a full server refuses the next worker until another one has left its scope") {
  Server server({.in_child = kAllow64Descriptors});
  const Record started = server.wait_for("server_started");
  const auto limit = started.at("limits")["workers"].get_int64().value();
  CHECK(limit == 16);
  CHECK(started.at("limits")["descriptors"].get_int64().value() == 64);
  const auto workers = workers_in_scopes(server, 16);
  HungWorker next(server, "refused");
  const Record rejected = server.wait_for("rejected", next.pid());
  CHECK(rejected.text("reason") ==
        "16 workers are watched: no more fit (see ulimit -n); it is tried again");
  server.send(fill(next.pid()));  // at most 1,024 are tried again
  server.wait_for([](const Record& record) {
    return record.is("rejected") &&
           record.text("reason") == "16 workers are watched: no more fit (see ulimit -n)";
  });
  CHECK(next.is_alive());
  server.send(release(workers.front()->pid(), "s") + acquire_past(next.pid(), "accepted"));
  kill_of(server, next);
  CHECK(scopes_of(server.records(), "expired", next.pid()) == std::vector<std::string>{"accepted"});
  // The worker that made room is admitted again after the end of the other one.
  REQUIRE(wait_until([&] { return status_of(server).integer("workers") == limit - 1; }));
  server.send(acquire_past(workers.front()->pid(), "s"));
  CHECK(workers.front()->status() == killed_by(SIGKILL));
  for (std::size_t i = 1; i < workers.size(); ++i) {
    CHECK(workers[i]->is_alive());
  }
}

TEST_CASE("a refused line that was released or renewed since is not tried again") {
  Server server({.args = {"--max-interval", "100ms"}, .in_child = kAllow64Descriptors});
  const auto workers = workers_in_scopes(server, 16);
  const Worker released("block");
  const Worker renewed("block");
  Worker last("block");
  server.send(acquire_past(released.pid(), "s") + acquire_past(renewed.pid(), "s") +
              acquire_past(last.pid(), "s"));
  REQUIRE(wait_until([&] { return rejections_with(server, "no more fit") >= 3; }));
  server.send(release(released.pid(), "s") + release(workers[0]->pid(), "s") +
              release(workers[1]->pid(), "s") + release(workers[2]->pid(), "s") +
              acquire_far(renewed.pid(), "s"));
  CHECK(last.status() == killed_by(SIGKILL));  // the others were tried again before it
  server.barrier();
  CHECK(released.is_alive());
  CHECK(renewed.is_alive());
  CHECK(server.stop_record().integer("requests") == 16 + 3 + 5 + 1);  // each once
}

TEST_CASE("a server raises its limit of descriptors, and watches as many workers as that allows") {
  const Server server({.in_child = limit(RLIMIT_NOFILE, {64, 1024})});
  const Record started = server.wait_for("server_started");
  CHECK(started.at("limits")["descriptors"].get_int64().value() == 1024);
  CHECK(started.at("limits")["workers"].get_int64().value() == 384);
}

TEST_CASE("a page that a full server refuses is watched once there is room") {
  Server server({.args = {"--max-interval", "50ms"}, .in_child = kAllow64Descriptors});
  const auto workers = workers_in_scopes(server, 16);
  const auto late = page_worker(server.dir(), "late");
  late->ask("open 0 forward 1");
  server.wait_for_rejection("no more fit");
  CHECK(late->is_alive());
  server.send(release(workers.front()->pid(), "s"));
  kill_of(server, *late);
}

TEST_CASE("a server with room for fewer workers than the one before starts, and names the others") {
  Server server;
  const auto workers = workers_in_scopes(server, 17);
  server.barrier();
  server.kill();
  Server next(server.temp(), {.in_child = kAllow64Descriptors});
  CHECK(adopted_by(next) == 16);
  CHECK(status_of(next).integer("workers") == 16);
  next.wait_for_message("are not watched: 16 workers are watched: no more fit (see ulimit -n)");
  for (const auto& worker : workers) {
    next.send(release(worker->pid(), "s"));
  }
  CHECK(next.stop() == exited(0));
  CHECK(adopted_by(Server(server.temp())) == 0);  // it would kill the one that was not watched
}

TEST_CASE("a worker with 1,024 scopes on the pipe is refused one more and keeps what it has") {
  Server server;
  const Worker worker("block");
  const Worker other("block");
  server.send(fill(worker.pid()) + acquire_past(worker.pid(), "one more") +
              acquire_far(worker.pid(), "s7") + acquire_far(other.pid(), "s"));
  const Record rejected = server.wait_for("rejected", worker.pid());
  CHECK(rejected.integer("count") == 1);
  CHECK(rejected.text("reason") == "1024 scopes of this worker are open: no more fit");
  const Record stopped = server.stop_record();
  CHECK(worker.is_alive());
  CHECK(stopped.integer("rejected") == 1);
  CHECK(stopped.integer("left_count") == 1025);
}

TEST_CASE("a server that stops lists 8,192 scopes that it left, and counts all") {
  Server server;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < 9; ++i) {
    workers.push_back(std::make_unique<Worker>("block"));
    server.send(fill(workers.back()->pid()));
  }
  server.barrier();  // requests that are read after the signal are refused
  const Record stopped = server.stop_record();
  CHECK(stopped.array("left").size() == 8192);
  CHECK(stopped.integer("left_count") == 9 * 1024);
}

TEST_CASE("dropped records are counted when the server stops") {
  const TempFolder temp;
  const std::string metrics = temp.path("filetimer.prom");
  Server server(
      temp, on_bad_disk(temp, "BAD_DISK_READ_ONLY", {"--evidence", "none", "--metrics", metrics}));
  server.barrier();
  temp.write("fault", "");
  expect_kill(server, "hung");  // without a kill file
  server.wait_for_message("if this server is killed, the next one may judge a scope again");
  // A worker that exits leaves as many records as scopes, each of about 700 bytes.
  constexpr int kMostWorkers = 64;
  int workers = 0;
  do {
    Worker worker("block");
    server.send(fill(worker.pid(), std::string(240, 'x')));
    REQUIRE(wait_until([&] {
      return status_of(server).integer("open_scopes") == filetimer::kMaxScopesPerWorker;
    }));
    worker.kill();
  } while (status_of(server).integer("lost_records") == 0 && ++workers < kMostWorkers);
  REQUIRE(std::filesystem::remove(temp.path("fault")));
  server.wait_for_message("records were lost");
  const std::int64_t lost = server.stop_record().integer("lost_records");
  CHECK(lost > 0);
  CHECK(metric_of(server, metrics, "log_lost_records_total") == std::to_string(lost));
}

TEST_CASE("16,384 names of refused pages are kept, and beyond that all are looked at again") {
  const TempFolder temp;
  const std::string pages = make_page_folder(temp);
  constexpr int kRemembered = 16'384;
  for (int i = 0; i < kRemembered; ++i) {
    write_file(fmt::format("{}/junk-{}", pages, i), "no page");
  }
  Server server(temp, {"--max-interval", "10ms"});
  const auto rejected = [&] { return status_of(server).integer("rejected"); };
  REQUIRE(wait_until([&] { return rejected() == kRemembered; }));
  write_file(pages + "/junk-more", "no page");
  // Besides the new one, old ones again.
  REQUIRE(wait_until([&] { return rejected() > kRemembered + 1; }));
  expect_kill(server);
}

TEST_CASE("a sweep looks at 256 files") {
  const TempFolder temp;
  const Server server(temp, with_own_clocks(temp));
  for (int i = 0; i < 300; ++i) {
    write_file(fmt::format("{}/scopes/junk-{}", server.dir(), i), "no page");
  }
  const auto has_rejected = [&](std::int64_t files, std::chrono::hours at) {
    set_clocks(temp, server, filetimer::Instant::now() + at);
    return wait_until([&] { return status_of(server).integer("rejected") == files; });
  };
  CHECK(has_rejected(256, 2h));
  CHECK(has_rejected(300, 4h));
}

TEST_CASE("at most 64 unlocked pages wait for the end of their workers") {
  Server server({"--max-interval", "100ms"});
  const Worker worker("block");
  filetimer::TestPage page;
  page.header().pid = worker.pid();
  {
    const Stopped stopped(server);
    for (int i = 0; i < 65; ++i) {
      const std::string path = fmt::format("{}/scopes/free-{}", server.dir(), i);
      write_file(path, page.bytes().substr(0, sizeof(filetimer::PageHeader)));
      std::filesystem::resize_file(path, filetimer::kPageBytes);
    }
  }
  // The next sweep refuses the others, because their worker is alive. Then there is room for the
  // first one, which the sweep after that refuses.
  REQUIRE(wait_until([&] { return rejections_with(server, "no process holds its lock") == 66; }));
  const Record first = server.wait_for("rejected");
  CHECK(first.integer("count") == 1);
  CHECK(worker.is_alive());
}

TEST_CASE("a start records 8,192 orphaned scopes, counts all, and refuses a file of a wrong name") {
  const TempFolder temp;
  const std::string pages = make_page_folder(temp);
  Child dead(Launch{.argv = {"/bin/true"}});
  REQUIRE(dead.status() == exited(0));
  filetimer::TestPage page;
  page.header().pid = dead.pid();
  std::int64_t opened = 1'000;
  for (int i = 0; i < 9; ++i) {
    for (std::size_t slot = 0; slot < kMaxScopesPerWorker; ++slot) {
      page.open(slot, {.acquired = ++opened, .word = filetimer::slot_word::kNoDeadline});
    }
    page.write(fmt::format("{}/w-{}", pages, i));
  }
  write_file(pages + "/no page", "");
  Server server(temp, {"--max-interval", "50ms"});
  CHECK(adopted_by(server) == 0);  // this record follows those of the scopes
  server.wait_for_rejection("'no page' is not the name of a page");
  filetimer::TestPage later;
  later.header().pid = dead.pid();
  later.open(0, {.acquired = ++opened, .word = filetimer::slot_word::kNoDeadline});
  later.write(temp.path("later"));
  std::filesystem::rename(temp.path("later"), pages + "/later");
  CHECK(wait_until([&] { return !exists(pages + "/later"); }));
  CHECK(server.stop() == exited(0));
  CHECK(count(server.records(), "left_open") == 8192 + 1);  // the limit holds until a sweep
  CHECK(server.wait_for("server_started").integer("ended_scopes") == 9 * 1024);
  CHECK_FALSE(exists(pages + "/w-0"));
}

TEST_CASE("four writers that never pause delay no deadline and lose no line") {
  Server server({"--evidence", "none"});
  std::vector<std::unique_ptr<Worker>> writers;
  for (int i = 0; i < kWriters; ++i) {
    writers.push_back(std::make_unique<Worker>("flood", Worker::Setup{.args = {server.fifo()}}));
  }
  WorkerInScope late(server, "amid the flood", 1s);
  CHECK(late.status() == killed_by(SIGKILL));  // and they are still writing
  check_prompt(server, late.pid());
  std::int64_t lines = 0;
  for (const auto& writer : writers) {
    CHECK(writer->is_alive());
    writer->let_go();
    lines += std::stoll(writer->line());
  }
  CHECK(lines > 1000);
  server.barrier();
  const Record stopped = server.stop_record();
  CHECK(stopped.integer("requests") == lines + 2);  // the late one's and the barrier's
  CHECK(stopped.integer("rejected") == 0);
  CHECK(stopped.array("left").size() == 0);
  CHECK(count(server.records(), "left_open") == 0);
  CHECK(count(server.records(), "expired") == 2);
}

TEST_CASE("a scope that was opened while the pipe was full is judged at its deadline") {
  Server server({"--evidence", "none", "--max-interval", "1h"});  // no sweep finds it
  const auto known = client_worker(server.dir());
  Worker early("", {.environment = {{"FILETIMER_DIR", server.dir()}},
                    .program = {program_path("client_worker")}});
  {
    const Stopped stopped(server);
    // Each of the first lines takes a memory page of the pipe, and half of its room.
    const filetimer::UniqueFd pipe = open_pipe(server.fifo());
    for (const std::string& line : {release(known->pid(), std::string(2000, 'x')),
                                    release(known->pid(), "x"), std::string("\n")}) {
      while (::write(pipe.get(), line.data(), line.size()) > 0) {
      }
    }
    CHECK(early.ask("connect-early") == "yes");  // a page that the server does not know
    for (Worker* const worker : {known.get(), &early}) {
      CHECK(worker->ask("open late 300") == "yes");
    }
  }
  for (Worker* const worker : {known.get(), &early}) {
    CHECK(worker->status() == killed_by(SIGKILL));
  }
}

TEST_CASE("writers that never pause do not delay a stop") {
  const TempFolder temp;
  Server server(temp, on_bad_disk(temp, "BAD_DISK_ENDLESS"));
  temp.write("fault", "");
  server.stop_record();
}

TEST_CASE("each of many workers that expire together is killed and recorded") {
  Server server;
  const auto workers = workers_in_scopes(server, kTogether);
  const double deadline = unix_now() + 1;
  std::string lines;
  for (const auto& worker : workers) {
    lines += version1(worker->pid(), "exchange", deadline);
  }
  server.send(lines);
  for (const auto& worker : workers) {
    CHECK(kill_of(server, *worker).signals() == std::vector<int>{SIGKILL});
  }
  const Records records = server.records();
  CHECK(count(records, "incident") == 1);
  CHECK(count(records, "expired") == kTogether);
  CHECK(count(records, "killed") == kTogether);
  const Record incident = server.wait_for("incident");
  CHECK(incident.array("open_scopes").size() == 2 * kTogether);
  CHECK(incident.integer("omitted") == 0);
  std::size_t bytes = 0;
  for (const Record& record : records) {
    bytes += record.is("evidence") ? 0 : record.line().size();
  }
  // The log lists the scopes of each worker once, and not once for each expiry.
  CHECK(bytes < kTogether * kBytesAnExpiry);
}

TEST_CASE("a full standard error without a reader delays neither kills nor the stop") {
  auto [unread, full] = make_pipe();
  REQUIRE(::fcntl(full.get(), F_SETFL, O_NONBLOCK) == 0);
  const std::string page(4096, 'x');
  while (::write(full.get(), page.data(), page.size()) > 0) {
  }
  REQUIRE(errno == EAGAIN);
  REQUIRE(::fcntl(full.get(), F_SETFL, 0) == 0);  // the server's writes to it do block
  Server server({.args = {"--log-level", "debug"}, .err_fd = full.get()});
  full.reset();
  for (int i = 0; i < 20; ++i) {
    Worker worker("block");
    server.send("no request\n" + acquire_past(worker.pid(), "s"));
    kill_of(server, worker);
  }
  server.stop_record();
}
