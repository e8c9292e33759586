// SPDX-License-Identifier: MIT
#include "timer_server/system/worker_facts.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/files.hpp"

using namespace filetimer;
using namespace std::string_view_literals;

TEST_CASE("The rank and the job of a worker are in the variables of its launcher") {
  struct Row {
    std::string_view environment;
    std::optional<int> rank;
    std::optional<int> local_rank;
    std::string job;
    std::string step;
  };
  for (const Row& row :
       {Row{"A=1\0RANK=3\0LOCAL_RANK=1\0SLURM_JOB_ID=99\0"sv, 3, 1, "99", ""},
        Row{"SLURM_PROCID=5\0SLURM_LOCALID=2"sv, 5, 2, "", ""},
        Row{"OMPI_COMM_WORLD_RANK=6\0"sv, 6, {}, "", ""},
        // A step belongs to Slurm's job, and a job of mpirun alone has Open MPI's name.
        Row{"SLURM_STEP_ID=2\0SLURM_JOB_ID=99\0PMIX_NAMESPACE=7"sv, {}, {}, "99", "2"},
        Row{"PMIX_NAMESPACE=1754595329\0"sv, {}, {}, "1754595329", ""},
        // torchrun's, where no --rdzv_id is given.
        Row{"TORCHELASTIC_RUN_ID=none\0PBS_JOBID=12.pbs"sv, {}, {}, "12.pbs", ""},
        // torchrun's RANK precedes the variables that the scheduler set for the launcher, and so do
        // those of an mpirun in a batch script.
        Row{"SLURM_PROCID=0\0RANK=3\0"sv, 3, {}, "", ""},
        Row{"SLURM_PROCID=0\0SLURM_LOCALID=0\0OMPI_COMM_WORLD_RANK=6\0"
            "OMPI_COMM_WORLD_LOCAL_RANK=2\0"sv,
            6, 2, "", ""},
        Row{"SLURM_PROCID=0\0PMI_RANK=6\0MPI_LOCALRANKID=2\0"sv, 6, 2, "", ""},
        // Malformed ones are ignored.
        Row{"RANK=\0"sv, {}, {}, "", ""}, Row{"RANK=two\0"sv, {}, {}, "", ""},
        Row{"RANK=-1\0"sv, {}, {}, "", ""}, Row{"RANK=1x\0"sv, {}, {}, "", ""},
        Row{"NOT_RANK=1\0RANKS=1\0RANK"sv, {}, {}, "", ""}, Row{"", {}, {}, "", ""}}) {
    CAPTURE(row.environment);
    const WorkerFacts facts = worker_facts_from("", row.environment);
    CHECK(facts.rank == row.rank);
    CHECK(facts.local_rank == row.local_rank);
    CHECK(facts.job_id == row.job);
    CHECK(facts.step_id == row.step);
  }
}

TEST_CASE("A long job name is cut, and a command line, which has spaces between its words") {
  const std::string job(10'000, 'j');  // an incident repeats it for each worker
  const std::string shown = job.substr(0, kMaxJobIdBytesShown);
  CHECK(worker_facts_from("", "SLURM_JOB_ID=" + job).job_id == shown);
  CHECK(worker_facts_from("", "SLURM_STEP_ID=" + job).step_id == shown);
  CHECK(worker_facts_claimed({.job_id = job}).job_id == shown);
  CHECK(worker_facts_from("python\0train.py\0--lr\0"sv, "").cmdline == "python train.py --lr");
  CHECK(worker_facts_from(std::string(100'000, 'x'), "").cmdline.size() == kMaxCmdlineBytesShown);
}

TEST_CASE("The rank of a worker in the middle of an exec is found") {
  // The child executes itself 300 times: with a single look a few of a hundred find no environment.
  char shell[] = "/bin/sh";
  char option[] = "-c";
  char script[] =
      R"([ "$1" -gt 0 -a ! -e "$2" ] || exec /bin/sleep 600; exec /bin/sh -c "$0" "$0" $(($1 - 1)) "$2")";
  char times[] = "300";
  const testing::TempFolder folder;
  std::string enough = folder.path("enough");
  char rank[] = "RANK=3";
  char* const argv[] = {shell, option, script, script, times, enough.data(), nullptr};
  char* const environment[] = {rank, nullptr};
  // The time of a reading that has used up all its looks, because the machine was too busy.
  constexpr auto kAllLooks = std::chrono::milliseconds{19};
  pid_t pid = 0;
  REQUIRE(::posix_spawn(&pid, shell, nullptr, nullptr, argv, environment) == 0);
  const Instant until = Instant::now() + testing::kBound;
  int given_up = 0;
  for (bool has_settled = false; !has_settled;) {
    const Instant begun = Instant::now();
    const WorkerFacts facts = read_worker_facts(pid);
    given_up += facts.rank != 3 && Instant::now() - begun < kAllLooks ? 1 : 0;
    has_settled = facts.cmdline == "/bin/sleep 600";
    REQUIRE(::waitpid(pid, nullptr, WNOHANG) == 0);  // it lives
    REQUIRE(Instant::now() < until);
    if (until - Instant::now() < testing::kBound * 3 / 4) {
      testing::write_file(enough, "");  // the machine is busy: it executes itself less often
    }
  }
  CHECK(given_up == 0);
  REQUIRE(::kill(pid, SIGKILL) == 0);
  REQUIRE(::waitpid(pid, nullptr, 0) == pid);
}

TEST_CASE("Of the wanted variables those are known that have a value") {
  const std::vector<std::string> wanted{"ONE", "TWO", "THREE"};
  const WorkerFacts facts = worker_facts_from("", "THREE=3\0TWO=\0ONE=1\0FOUR=4"sv, wanted);
  CHECK(facts.variables == std::vector<std::string>{"ONE", "THREE"});
}
