// --slow-factor and `list --stragglers` with eight real workers. The times on their pages are
// computed, so the speed of the machine does not matter.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "common/run_folder.hpp"
#include "tests/process/harness.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/simulated_job.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// The ranks of a job. Each has a page that its server knows.
class Ranks {
 public:
  Ranks(const Server& server, std::size_t count) {
    for (std::size_t rank = 0; rank < count; ++rank) {
      Worker::Setup setup;
      setup.program = {page_worker_path()};
      setup.environment = {{"RANK", std::to_string(rank)}, {"SLURM_JOB_ID", "8812"}};
      workers_.push_back(std::make_unique<Worker>("", setup));
      REQUIRE(workers_[rank]->ask(
                  fmt::format("make {} rank-{} rank={}", server.dir(), rank, rank)) == "ok");
      REQUIRE(workers_[rank]->ask("lock") == "ok");
      REQUIRE(workers_[rank]->ask("hint") == "ok");
    }
  }

  // Makes further steps.
  void run(std::vector<double> slowness, int steps = 16) {
    SimulatedJob job;
    job.ranks = workers_.size();
    job.steps = steps;
    job.slowness = std::move(slowness);
    job.seed = ++seed_;
    job.begin = next_begin_;
    next_begin_ = next_begin_ + steps * 200ms;  // a step takes less
    const auto ended = job.run();
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      for (const auto& [name, scopes] : ended[rank]) {
        std::string command = "left " + name;
        for (const filetimer::EndedReading& scope : scopes) {
          command += fmt::format(" {} {}", scope.ended.ns, scope.took.count());
        }
        REQUIRE(workers_[rank]->ask(command) == "ok");
      }
    }
  }
  [[nodiscard]] pid_t pid(std::size_t rank) const { return workers_[rank]->pid(); }

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
  std::uint64_t seed_ = 0;
  filetimer::Instant next_begin_ = SimulatedJob{}.begin;
};

}  // namespace

TEST_CASE("a rank that stays slow has one slow record for each scope and gets no signal") {
  const TempFolder temp;
  const std::string metrics = temp.path("filetimer.prom");
  Server server(temp, {"--slow-factor", "1.2", "--max-interval", "20ms", "--metrics", metrics});
  Ranks ranks(server, 8);
  ranks.run({1, 1, 1, 1, 1, 1.3});
  // Each look finds scopes that have ended since the last one.
  REQUIRE(wait_until([&] {
    let_pass(20ms);  // looks are seconds apart
    ranks.run({1, 1, 1, 1, 1, 1.3}, 1);
    return count(server.records(), "slow") == 2;
  }));
  const Record forward =
      server.wait_for([](const Record& record) { return record.is("slow", "forward"); });
  // After three looks, which are two seconds apart.
  CHECK(forward.integer("mono_ns") - server.records().at(0).integer("mono_ns") >= 4'000'000'000);
  CHECK(forward.integer("pid") == ranks.pid(5));
  CHECK(forward.integer("rank") == 5);
  CHECK(forward.text("kind") == "slower");
  CHECK(forward.number("factor") == doctest::Approx(1.3).epsilon(0.05));
  CHECK(forward.integer("ranks") == 8);
  const Record waits =
      server.wait_for([](const Record& record) { return record.is("slow", "allreduce"); });
  CHECK(waits.text("kind") == "waits_least");
  CHECK(waits.integer("pid") == ranks.pid(5));
  server.wait_for_message(
      fmt::format("pid {} (page_worker, rank 5) is slow in 'forward': ", ranks.pid(5)));
  CHECK(wait_until([&] {
    const std::string text = read_file(metrics);
    return contains(text, fmt::format("\nfiletimer_slow_total{{dir=\"{}\"}} 2\n", server.dir())) &&
           contains(text, fmt::format("\nfiletimer_slow_scopes{{dir=\"{}\"}} 2\n", server.dir()));
  }));
  const Finished table = run_client(temp, {"log", "--event", "slow", server.log()});
  CHECK(contains(table.out, " ms, others "));
  CHECK(contains(table.out, "  waits "));
  const Finished listed =
      run_client(temp, {"list", "--stragglers", "--json", "--dir", server.dir()});
  CHECK(contains(listed.out, fmt::format("\"pid\":{}", ranks.pid(5))));
  CHECK(contains(listed.out, "\"scope\":\"forward\",\"kind\":\"slower\",\"rank\":5"));
  CHECK(server.stop() == exited(0));
  CHECK(count(server.records(), "slow") == 2);
  CHECK(count(server.records(), "expired") == 0);
  CHECK(count(server.records(), "killed") == 0);
}

TEST_CASE("list --stragglers names no rank of a job whose ranks differ by noise") {
  const TempFolder temp;
  Server server(temp);
  Ranks ranks(server, 8);
  ranks.run({});
  const Finished listed = run_client(temp, {"list", "--stragglers", "--dir", server.dir()});
  CHECK(listed.status == exited(0));
  CHECK(listed.out.empty());
  CHECK(listed.err == "timer_client: no stragglers among 8 ranks\n");
}
