// The flight recorders of the ranks of a job: asked once, before the signals, and never waited for
// longer than the time limit of evidence. The ranks are stand-ins for PyTorch's.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <memory>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// No rank of these tests needs as long.
const std::vector<std::string> kPatient{"--evidence", "proc", "--evidence-timeout", "20s"};

Environment environment_of_rank(const TempFolder& temp, int rank, const std::string& job) {
  return {{"RANK", std::to_string(rank)},
          {"SLURM_JOB_ID", job},
          {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", temp.path("pipe_")},
          {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", temp.path("dump_")}};
}

// Returns when the server has read the environment of a rank.
void wait_until_known(const TempFolder& temp, Server& server, const Worker& worker, int rank) {
  server.send(acquire_far(worker.pid(), "wait"));
  server.barrier();
  const std::vector<std::string> question{"dump", "--pid", std::to_string(worker.pid()), "--json"};
  const std::string known = fmt::format("\"rank\":{}", rank);
  CHECK(wait_until([&] { return contains(run_client(temp, server, question).out, known); }));
}

// A rank that the server knows.
std::unique_ptr<Worker> rank_of_job(const TempFolder& temp, Server& server, int rank,
                                    const std::string& way, int size = 0,
                                    const std::string& job = "8812") {
  Worker::Setup setup;
  setup.program = {"/usr/bin/python3", flight_recorder_path(), way};
  setup.args = {std::to_string(size)};
  setup.environment = environment_of_rank(temp, rank, job);
  auto worker = std::make_unique<Worker>("", setup);
  wait_until_known(temp, server, *worker, rank);
  return worker;
}

struct Dump {
  std::int64_t rank = -1;
  std::int64_t pid = 0;
  std::string path;
  std::int64_t size = -1;
  std::string missing;
};

std::vector<Dump> dumps_in(const Record& evidence) {
  std::vector<Dump> dumps;
  if (!evidence.has("flight_recorder")) {
    return dumps;
  }
  for (const auto each : evidence.array("flight_recorder")) {
    Dump& dump = dumps.emplace_back();
    dump.rank = each["rank"].get_int64().value();
    dump.pid = each["pid"].get_int64().value();
    if (each["missing"].error() == simdjson::SUCCESS) {
      dump.missing = std::string(each["missing"].get_string().value());
    } else {
      dump.path = std::string(each["path"].get_string().value());
      dump.size = each["size"].get_int64().value();
    }
  }
  return dumps;
}

std::string asked(const TempFolder& temp, int rank) {
  return read_file(temp.path(fmt::format("pipe_{}.asked", rank)));
}

// The one dump in the evidence of a rank that hangs and is killed. `delay`: from the verdict to the
// signal.
Dump dump_of_killed(const TempFolder& temp, const std::string& way, std::vector<std::string> args,
                    std::chrono::nanoseconds& delay) {
  Server server(temp, std::move(args));
  const auto worker = rank_of_job(temp, server, 0, way);
  server.send(acquire_past(worker->pid(), "allreduce"));
  CHECK(worker->status() == killed_by(SIGKILL));
  const Record killed = server.wait_for("killed", worker->pid());
  delay = std::chrono::nanoseconds(mono_of_signal(killed, 0) -
                                   server.wait_for("expired", worker->pid()).integer("mono_ns"));
  const auto dumps = dumps_in(server.wait_for("evidence", worker->pid()));
  REQUIRE(dumps.size() == 1);
  CHECK(dumps[0].pid == worker->pid());
  return dumps[0];
}

}  // namespace

TEST_CASE("all ranks of the job dump before the one that hangs is killed") {
  const TempFolder temp;
  Server server(temp, kPatient);
  // What an earlier run left there is not taken for the dump.
  temp.write("dump_0", "old");
  temp.write("dump_1", "old");
  const auto hung = rank_of_job(temp, server, 1, "dumps", 50'000);
  const auto waiting = rank_of_job(temp, server, 0, "dumps", 7);
  // It names the FIFO of its rank, too, and is not asked.
  const Worker loader("block", {.environment = environment_of_rank(temp, 0, "8812")});
  wait_until_known(temp, server, loader, 0);
  server.send(acquire_past(hung->pid(), "load"));
  CHECK(hung->status() == killed_by(SIGKILL));
  const Record killed = server.wait_for("killed", hung->pid());
  const Record evidence = server.wait_for("evidence", hung->pid());
  CAPTURE(evidence.line());
  CHECK(evidence.integer("mono_ns") <= mono_of_signal(killed, 0));
  const auto dumps = dumps_in(evidence);
  REQUIRE(dumps.size() == 2);
  CHECK(dumps[0].rank == 1);
  CHECK(dumps[0].pid == hung->pid());
  CHECK(dumps[0].path == temp.path("dump_1"));
  CHECK(dumps[0].size == 50'000);
  CHECK(dumps[1].rank == 0);
  CHECK(dumps[1].pid == waiting->pid());
  CHECK(dumps[1].path == temp.path("dump_0"));
  CHECK(dumps[1].size == 7);
  CHECK_FALSE(evidence.has("flight_recorder_omitted"));
  CHECK(asked(temp, 0) == "1\n");
  CHECK(asked(temp, 1) == "1\n");
  CHECK(waiting->is_alive());
  const Finished shown = run_client(temp, server, {"show", killed.text("id")});
  CHECK(contains(shown.out, "Flight recorder"));
  CHECK(contains(shown.out,
                 fmt::format("rank 0, pid {}: {}, 7 bytes", waiting->pid(), temp.path("dump_0"))));
}

TEST_CASE("ranks that expire together are asked for one dump each") {
  const TempFolder temp;
  Server server(temp, kPatient);
  const auto one = rank_of_job(temp, server, 0, "dumps", 10);
  const auto other = rank_of_job(temp, server, 1, "dumps", 20);
  server.send(acquire_past(one->pid(), "load") + acquire_past(other->pid(), "load"));
  CHECK(one->status() == killed_by(SIGKILL));
  CHECK(other->status() == killed_by(SIGKILL));
  const auto first = dumps_in(server.wait_for("evidence", one->pid()));
  const auto second = dumps_in(server.wait_for("evidence", other->pid()));
  // The evidence of the first has all ranks, that of the other its own.
  REQUIRE(first.size() + second.size() == 3);
  const auto& of_all = first.size() == 2 ? first : second;
  const auto& of_one = first.size() == 2 ? second : first;
  CHECK(of_one[0].path == of_all[1].path);
  CHECK(of_one[0].size == of_all[1].size);
  CHECK(asked(temp, 0) == "1\n");
  CHECK(asked(temp, 1) == "1\n");
}

TEST_CASE("the ranks of another job are not asked") {
  const TempFolder temp;
  Server server(temp, kPatient);
  const auto hung = rank_of_job(temp, server, 0, "dumps", 10);
  const auto other = rank_of_job(temp, server, 1, "dumps", 10, "8813");
  server.send(acquire_past(hung->pid(), "load"));
  CHECK(hung->status() == killed_by(SIGKILL));
  const auto dumps = dumps_in(server.wait_for("evidence", hung->pid()));
  REQUIRE(dumps.size() == 1);
  CHECK(dumps[0].size == 10);
  CHECK(asked(temp, 1) == "");
}

TEST_CASE("a file that is not a FIFO is not written to") {
  std::chrono::nanoseconds delay{};
  {
    const TempFolder temp;
    const std::string pipe = temp.path("pipe_0.pipe");
    CHECK(dump_of_killed(temp, "regular", kPatient, delay).missing ==
          fmt::format("'{}' is not a FIFO", pipe));
    CHECK(read_file(pipe) == "text");
    CHECK(delay < 15s);
  }
  const TempFolder temp;
  CHECK(dump_of_killed(temp, "symlink", kPatient, delay).missing ==
        fmt::format("'{}' is a symlink: expected a FIFO", temp.path("pipe_0.pipe")));
  CHECK(asked(temp, 0) == "");
  CHECK(delay < 15s);
}

TEST_CASE("a FIFO that no process has open, or that is full, delays no kill") {
  for (const auto& [way, missing] : std::vector<std::pair<std::string, std::string>>{
           {"unread", "no process reads '{}'"},
           {"full", "'{}' is full: it was not read for a long time"}}) {
    const TempFolder temp;
    std::chrono::nanoseconds delay{};
    CHECK(dump_of_killed(temp, way, kPatient, delay).missing ==
          fmt::format(fmt::runtime(missing), temp.path("pipe_0.pipe")));
    CHECK(delay < 15s);
  }
}

TEST_CASE("a rank that never dumps delays the kill by the time limit of evidence") {
  const TempFolder temp;
  std::chrono::nanoseconds delay{};
  CHECK(dump_of_killed(temp, "silent", {"--evidence", "proc", "--evidence-timeout", "3s"}, delay)
            .missing == "it was asked and wrote no dump in time");
  CHECK(asked(temp, 0) == "1\n");
  CHECK(delay >= 2900ms);  // the last look comes less than 40 ms before the limit
  CHECK(delay < 15s);
}

TEST_CASE("a dry run, a signal of 0 and --evidence none ask no rank") {
  const auto is_asked = [](const std::vector<std::string>& args, int signal) {
    const TempFolder temp;
    Server server(temp, args);
    const auto worker = rank_of_job(temp, server, 0, "dumps", 10);
    server.send(acquire_past(worker->pid(), "load", signal));
    const Record killed = server.wait_for("killed", worker->pid());
    CHECK(killed.text("verdict") == (args.back() == "none" ? "dead" : "spared"));
    return !asked(temp, 0).empty() || exists(temp.path("dump_0"));
  };
  CHECK_FALSE(is_asked({"--evidence", "proc", "--dry-run"}, SIGKILL));
  CHECK_FALSE(is_asked({"--evidence", "proc"}, 0));
  CHECK_FALSE(is_asked({"--evidence", "none"}, SIGKILL));
}

TEST_CASE("a worker without a flight recorder has evidence without one, at once") {
  const TempFolder temp;
  const Server server(temp, kPatient);
  Worker worker("block", {.environment = {{"RANK", "3"}}});
  server.send(acquire_past(worker.pid(), "load"));
  CHECK(worker.status() == killed_by(SIGKILL));
  CHECK_FALSE(server.wait_for("evidence", worker.pid()).has("flight_recorder"));
}

TEST_CASE("a worker without a job keeps no rank from being asked in the same incident") {
  const TempFolder temp;
  Server server(temp, kPatient);
  const auto rank = rank_of_job(temp, server, 0, "dumps", 10, "");
  Worker alone("block");
  server.send(acquire_past(alone.pid(), "load"));
  CHECK(alone.status() == killed_by(SIGKILL));
  server.send(acquire_past(rank->pid(), "load"));
  CHECK(rank->status() == killed_by(SIGKILL));
  CHECK(dumps_in(server.wait_for("evidence", rank->pid())).size() == 1);
}
