// Load: writers that never pause, many expiries at one time, and messages without a reader.
// Deadlines are still met.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <memory>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

constexpr int kWriters = 4;
constexpr int kTogether = 64;
// The most bytes of an expiry in the log, without its evidence.
constexpr std::size_t kBytesAnExpiry = 2000;

std::unique_ptr<Worker> flood(const Server& server) {
  return std::make_unique<Worker>("flood", Worker::Setup{.args = {server.fifo()}});
}

}  // namespace

TEST_CASE("four writers that never pause delay no deadline and lose no line") {
  const TempFolder temp;
  Server server(temp, {"--evidence", "none"});
  std::vector<std::unique_ptr<Worker>> writers;
  for (int i = 0; i < kWriters; ++i) {
    writers.push_back(flood(server));
  }
  Worker late("block");
  server.send(acquire(late.pid(), "amid the flood", 1s));
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
  CHECK(server.stop() == exited(0));
  const Record stopped = server.records().back();
  REQUIRE(stopped.is("server_stopped"));
  CHECK(stopped.integer("requests") == lines + 2);  // the late one's and the barrier's
  CHECK(stopped.integer("rejected") == 0);
  CHECK(stopped.array("left").size() == 0);
  CHECK(count(server.records(), "left_open") == 0);
  CHECK(count(server.records(), "expired") == 2);
}

TEST_CASE("a scope that was opened while the pipe was full is judged at its deadline") {
  const TempFolder temp;
  Server server(temp, {"--evidence", "none", "--max-interval", "1h"});  // no sweep finds it
  const auto known = client_worker(server.dir());
  Worker early(
      "", {.environment = {{"FILETIMER_DIR", server.dir()}}, .program = {client_worker_path()}});
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
  Server server(temp, on_bad_disk("BAD_DISK_ENDLESS", temp.path("endless")));
  write_file(temp.path("endless"), "");
  server.process().signal(SIGTERM);
  CHECK(server.process().status() == exited(0));
  CHECK(server.records().back().is("server_stopped"));
}

TEST_CASE("each of many workers that expire together is killed and recorded") {
  const TempFolder temp;
  Server server(temp);
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < kTogether; ++i) {
    workers.push_back(std::make_unique<Worker>("block"));
  }
  const double deadline =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() +
      1.0;
  std::string lines;
  for (const auto& worker : workers) {
    lines += acquire_far(worker->pid(), "epoch") + version1(worker->pid(), "exchange", deadline);
  }
  server.send(lines);
  for (const auto& worker : workers) {
    CHECK(worker->status() == killed_by(SIGKILL));
    const Record killed = server.wait_for("killed", worker->pid());
    CHECK(killed.text("verdict") == "dead");
    CHECK(killed.signals() == std::vector<int>{SIGKILL});
  }
  const Records records = server.records();
  CHECK(count(records, "incident") == 1);
  CHECK(count(records, "expired") == kTogether);
  CHECK(count(records, "killed") == kTogether);
  std::size_t bytes = 0;
  for (const Record& record : records) {
    if (record.is("incident")) {
      CHECK(record.array("open_scopes").size() == 2 * kTogether);
      CHECK(record.integer("omitted") == 0);
    }
    bytes += record.is("evidence") ? 0 : record.line().size();
  }
  // The log lists the scopes of each worker once, and not once for each expiry.
  CHECK(bytes < kTogether * kBytesAnExpiry);
}

TEST_CASE("a full standard error without a reader delays neither kills nor the stop") {
  const TempFolder temp;
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  const filetimer::UniqueFd unread(ends[0]);
  filetimer::UniqueFd full(ends[1]);
  const std::string page(4096, 'x');
  while (::write(full.get(), page.data(), page.size()) > 0) {
  }
  REQUIRE(errno == EAGAIN);
  REQUIRE(::fcntl(full.get(), F_SETFL, 0) == 0);  // the server's writes to it do block
  Server server(temp, {.args = {"--log-level", "debug"}, .err_fd = full.get()});
  full.reset();
  for (int i = 0; i < 20; ++i) {
    Worker worker("block");
    server.send("no request\n" + acquire_past(worker.pid(), "s"));
    CHECK(worker.status() == killed_by(SIGKILL));
    server.wait_for("killed", worker.pid());
  }
  CHECK(server.stop() == exited(0));
  CHECK(server.records().back().is("server_stopped"));
}
