// Limits on what clients and other processes can make a server hold, list and record.
// SPDX-License-Identifier: MIT
#include "common/limits.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
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

JsonLine status_of(const TempFolder& temp, const Server& server) {
  const Finished asked = run_client(temp, {"status", "--json", "--dir", server.dir()});
  REQUIRE(asked.status == exited(0));
  return JsonLine(asked.out);
}

std::size_t rejections_with(const Server& server, std::string_view reason) {
  std::size_t found = 0;
  for (const Record& record : server.records()) {
    if (record.is("rejected") && record.text("reason").find(reason) != std::string::npos) {
      found += static_cast<std::size_t>(record.integer("count"));
    }
  }
  return found;
}

// Makes the folder of pages for the next server in `temp`.
std::string make_page_folder(const TempFolder& temp) {
  std::string pages = temp.path("run/scopes");
  std::filesystem::create_directories(pages);
  for (const std::string& folder : {temp.path("run"), pages}) {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  }
  return pages;
}

// Returns the pid of a child that has ended.
// A server may watch 16 workers then.
void allow_64_descriptors() {
  const rlimit files{64, 64};
  ::setrlimit(RLIMIT_NOFILE, &files);
}

pid_t pid_of_the_dead() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::_exit(0);
  }
  REQUIRE(::waitpid(pid, nullptr, 0) == pid);
  return pid;
}

}  // namespace

TEST_CASE("a full server refuses the next worker until another one has left its scope") {
  const TempFolder temp;
  Server server(temp, {.in_child = allow_64_descriptors});
  const Record started = server.wait_for("server_started");
  const auto limit = started.at("limits")["workers"].get_int64().value();
  CHECK(limit == 16);
  CHECK(started.at("limits")["descriptors"].get_int64().value() == 64);
  std::vector<std::unique_ptr<Worker>> workers;
  std::string lines;
  for (int i = 0; i < limit; ++i) {
    workers.push_back(std::make_unique<Worker>("block"));
    lines += acquire_far(workers.back()->pid(), "s");
  }
  server.send(lines);
  Worker next("block");
  server.send(acquire_past(next.pid(), "refused"));
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
  CHECK(next.status() == killed_by(SIGKILL));
  server.wait_for("killed", next.pid());
  CHECK(scopes_of(server.records(), "expired", next.pid()) == std::vector<std::string>{"accepted"});
  // The worker that made room is admitted again after the end of the other one.
  REQUIRE(wait_until([&] { return status_of(temp, server).integer("workers") == limit - 1; }));
  server.send(acquire_past(workers.front()->pid(), "s"));
  CHECK(workers.front()->status() == killed_by(SIGKILL));
  for (std::size_t i = 1; i < workers.size(); ++i) {
    CHECK(workers[i]->is_alive());
  }
}

TEST_CASE("a refused line that was released or renewed since is not tried again") {
  const TempFolder temp;
  Server server(temp, {.args = {"--max-interval", "100ms"}, .in_child = allow_64_descriptors});
  std::vector<std::unique_ptr<Worker>> workers;
  std::string lines;
  for (int i = 0; i < 16; ++i) {
    workers.push_back(std::make_unique<Worker>("block"));
    lines += acquire_far(workers.back()->pid(), "s");
  }
  server.send(lines);
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
  CHECK(server.stop() == exited(0));
  CHECK(server.records().back().integer("requests") == 16 + 3 + 5 + 1);  // each once
}

TEST_CASE("a server raises its limit of descriptors, and watches as many workers as that allows") {
  const TempFolder temp;
  const Server server(temp, {.in_child = [] {
                        const rlimit files{64, 1024};
                        ::setrlimit(RLIMIT_NOFILE, &files);
                      }});
  const Record started = server.wait_for("server_started");
  CHECK(started.at("limits")["descriptors"].get_int64().value() == 1024);
  CHECK(started.at("limits")["workers"].get_int64().value() == 384);
}

TEST_CASE("a page that a full server refuses is watched once there is room") {
  const TempFolder temp;
  Server server(temp, {.args = {"--max-interval", "50ms"}, .in_child = allow_64_descriptors});
  std::vector<std::unique_ptr<Worker>> workers;
  std::string lines;
  for (int i = 0; i < 16; ++i) {
    workers.push_back(std::make_unique<Worker>("block"));
    lines += acquire_far(workers.back()->pid(), "s");
  }
  server.send(lines);
  const auto late = page_worker(server.dir(), "late");
  late->ask("open 0 forward 1");
  server.wait_for([](const Record& record) {
    return record.is("rejected") && record.text("reason").find("no more fit") != std::string::npos;
  });
  CHECK(late->is_alive());
  server.send(release(workers.front()->pid(), "s"));
  CHECK(late->status() == killed_by(SIGKILL));
  server.wait_for("killed", late->pid());
}

TEST_CASE("a server with room for fewer workers than the one before starts, and names the others") {
  const TempFolder temp;
  Server server(temp);
  std::vector<std::unique_ptr<Worker>> workers;
  std::string lines;
  for (int i = 0; i < 17; ++i) {
    workers.push_back(std::make_unique<Worker>("block"));
    lines += acquire_far(workers.back()->pid(), "s");
  }
  server.send(lines);
  server.barrier();
  server.kill();
  const Server next(temp, {.in_child = allow_64_descriptors});
  CHECK(adopted_by(next) == 16);
  CHECK(status_of(temp, next).integer("workers") == 16);
  next.wait_for_message("are not watched: 16 workers are watched: no more fit (see ulimit -n)");
}

TEST_CASE("a worker with 1,024 scopes on the pipe is refused one more and keeps what it has") {
  const TempFolder temp;
  Server server(temp);
  const Worker worker("block");
  const Worker other("block");
  server.send(fill(worker.pid()) + acquire_past(worker.pid(), "one more") +
              acquire_far(worker.pid(), "s7") + acquire_far(other.pid(), "s"));
  const Record rejected = server.wait_for("rejected", worker.pid());
  CHECK(rejected.integer("count") == 1);
  CHECK(rejected.text("reason") == "1024 scopes of this worker are open: no more fit");
  CHECK(server.stop() == exited(0));
  CHECK(worker.is_alive());
  CHECK(server.records().back().integer("rejected") == 1);
  CHECK(server.records().back().integer("left_count") == 1025);
}

TEST_CASE("a server that stops lists 8,192 scopes that it left, and counts all") {
  const TempFolder temp;
  Server server(temp);
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < 9; ++i) {
    workers.push_back(std::make_unique<Worker>("block"));
    server.send(fill(workers.back()->pid()));
  }
  server.barrier();  // requests that are read after the signal are refused
  CHECK(server.stop() == exited(0));
  const Record stopped = server.records().back();
  CHECK(stopped.array("left").size() == 8192);
  CHECK(stopped.integer("left_count") == 9 * 1024);
}

TEST_CASE("dropped records are counted when the server stops") {
  const TempFolder temp;
  const std::string fault = temp.path("fault");
  const std::string metrics = temp.path("filetimer.prom");
  Server server(
      temp, on_bad_disk("BAD_DISK_READ_ONLY", fault, {"--evidence", "none", "--metrics", metrics}));
  server.barrier();
  write_file(fault, "");
  Worker hung("block");
  server.send(acquire_past(hung.pid(), "hung"));
  CHECK(hung.status() == killed_by(SIGKILL));  // without a kill file
  server.wait_for_message("if this server is killed, the next one may judge a scope again");
  // A worker that exits leaves as many records as scopes, each of about 700 bytes.
  constexpr int kMostWorkers = 64;
  int workers = 0;
  do {
    Worker worker("block");
    server.send(fill(worker.pid(), std::string(240, 'x')));
    REQUIRE(wait_until([&] {
      return status_of(temp, server).integer("open_scopes") == filetimer::kMaxScopesPerWorker;
    }));
    worker.signal(SIGKILL);
    CHECK(worker.status() == killed_by(SIGKILL));
  } while (status_of(temp, server).integer("lost_records") == 0 && ++workers < kMostWorkers);
  REQUIRE(::unlink(fault.c_str()) == 0);
  server.wait_for_message("records were lost");
  CHECK(server.stop() == exited(0));
  const std::int64_t lost = server.records().back().integer("lost_records");
  CHECK(lost > 0);
  CHECK(contains(
      read_file(metrics),
      fmt::format("\nfiletimer_log_lost_records_total{{dir=\"{}\"}} {}\n", server.dir(), lost)));
}

TEST_CASE("16,384 names of refused pages are kept, and beyond that all are looked at again") {
  const TempFolder temp;
  const std::string pages = make_page_folder(temp);
  constexpr int kRemembered = 16'384;
  for (int i = 0; i < kRemembered; ++i) {
    write_file(fmt::format("{}/junk-{}", pages, i), "no page");
  }
  Server server(temp, {"--max-interval", "10ms"});
  const auto rejected = [&] { return status_of(temp, server).integer("rejected"); };
  REQUIRE(wait_until([&] { return rejected() == kRemembered; }));
  write_file(pages + "/junk-more", "no page");
  // Besides the new one, old ones again.
  REQUIRE(wait_until([&] { return rejected() > kRemembered + 1; }));
  Worker worker("block");
  server.send(acquire_past(worker.pid(), "s"));
  CHECK(worker.status() == killed_by(SIGKILL));
}

TEST_CASE("at most 64 unlocked pages wait for the end of their workers") {
  const TempFolder temp;
  Server server(temp, {"--max-interval", "100ms"});
  const Worker worker("block");
  filetimer::TestPage page;
  page.header().pid = worker.pid();
  server.process().signal(SIGSTOP);
  server.process().wait_until_stopped();
  for (int i = 0; i < 65; ++i) {
    const std::string path = fmt::format("{}/scopes/free-{}", server.dir(), i);
    write_file(path, page.bytes().substr(0, sizeof(filetimer::PageHeader)));
    std::filesystem::resize_file(path, filetimer::kPageBytes);
  }
  server.process().signal(SIGCONT);
  // The next sweep refuses the others, because their worker is alive. Then there is room for the
  // first one, which the sweep after that refuses.
  REQUIRE(wait_until([&] { return rejections_with(server, "no process holds its lock") == 66; }));
  const Record first = server.wait_for("rejected");
  CHECK(first.integer("count") == 1);
  CHECK(worker.is_alive());
}

TEST_CASE("at most 8,192 orphaned scopes are recorded, and all are counted") {
  const TempFolder temp;
  const std::string pages = make_page_folder(temp);
  filetimer::TestPage page;
  page.header().pid = pid_of_the_dead();
  std::int64_t opened = 1'000;
  for (int i = 0; i < 9; ++i) {
    for (std::size_t slot = 0; slot < kMaxScopesPerWorker; ++slot) {
      page.open(slot, {.acquired = ++opened, .word = filetimer::slot_word::kNoDeadline});
    }
    page.write(fmt::format("{}/w-{}", pages, i));
  }
  Server server(temp);
  CHECK(adopted_by(server) == 0);  // this record follows those of the scopes
  CHECK(server.stop() == exited(0));
  const Records records = server.records();
  CHECK(count(records, "left_open") == 8192);
  for (const Record& record : records) {
    if (record.is("server_started")) {
      CHECK(record.integer("ended_scopes") == 9 * 1024);
    }
  }
  CHECK_FALSE(exists(pages + "/w-0"));
}
