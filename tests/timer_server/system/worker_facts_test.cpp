// SPDX-License-Identifier: MIT
#include "timer_server/system/worker_facts.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/files.hpp"

using namespace filetimer;
using namespace std::string_view_literals;

TEST_CASE("Rank and job come from the launcher's variables") {
  const auto facts = worker_facts_from("python\0train.py\0--lr\0"sv,
                                       "A=1\0RANK=3\0LOCAL_RANK=1\0SLURM_JOB_ID=99\0"sv);
  CHECK(facts.cmdline == "python train.py --lr");
  CHECK(facts.rank == 3);
  CHECK(facts.local_rank == 1);
  CHECK(facts.job_id == "99");
}

TEST_CASE("Slurm and Open MPI name ranks in their own way") {
  CHECK(worker_facts_from("", "SLURM_PROCID=5\0SLURM_LOCALID=2"sv).rank == 5);
  CHECK(worker_facts_from("", "SLURM_PROCID=5\0SLURM_LOCALID=2"sv).local_rank == 2);
  CHECK(worker_facts_from("", "OMPI_COMM_WORLD_RANK=6\0"sv).rank == 6);
}

TEST_CASE("A step belongs to Slurm's job, and a job of mpirun alone has Open MPI's name") {
  const auto slurm = worker_facts_from("", "SLURM_STEP_ID=2\0SLURM_JOB_ID=99\0PMIX_NAMESPACE=7"sv);
  CHECK(slurm.job_id == "99");
  CHECK(slurm.step_id == "2");
  // torchrun's, where no --rdzv_id is given.
  CHECK(worker_facts_from("", "TORCHELASTIC_RUN_ID=none\0PBS_JOBID=12.pbs"sv).job_id == "12.pbs");
  const auto open_mpi = worker_facts_from("", "PMIX_NAMESPACE=1754595329\0"sv);
  CHECK(open_mpi.job_id == "1754595329");
  CHECK(open_mpi.step_id.empty());
}

TEST_CASE("A long job name is cut, because an incident repeats it for each worker") {
  const std::string job(10'000, 'j');
  const std::string shown = job.substr(0, kMaxJobIdBytesShown);
  CHECK(worker_facts_from("", "SLURM_JOB_ID=" + job).job_id == shown);
  CHECK(worker_facts_from("", "SLURM_STEP_ID=" + job).step_id == shown);
  CHECK(worker_facts_claimed("", "", job).job_id == shown);
}

TEST_CASE(
    "torchrun's RANK takes precedence over the variables that the scheduler set for the launcher") {
  CHECK(worker_facts_from("", "SLURM_PROCID=0\0RANK=3\0"sv).rank == 3);
}

TEST_CASE("The ranks of an mpirun in a batch script of Slurm are those of mpirun") {
  const auto facts = worker_facts_from("",
                                       "SLURM_PROCID=0\0SLURM_LOCALID=0\0OMPI_COMM_WORLD_RANK=6\0"
                                       "OMPI_COMM_WORLD_LOCAL_RANK=2\0"sv);
  CHECK(facts.rank == 6);
  CHECK(facts.local_rank == 2);
  CHECK(worker_facts_from("", "SLURM_PROCID=0\0PMI_RANK=6\0MPI_LOCALRANKID=2\0"sv).rank == 6);
}

TEST_CASE("A malformed rank is ignored") {
  CHECK(!worker_facts_from("", "RANK=\0"sv).rank);
  CHECK(!worker_facts_from("", "RANK=two\0"sv).rank);
  CHECK(!worker_facts_from("", "RANK=-1\0"sv).rank);
  CHECK(!worker_facts_from("", "RANK=1x\0"sv).rank);
  CHECK(!worker_facts_from("", "NOT_RANK=1\0RANKS=1\0RANK"sv).rank);
  CHECK(!worker_facts_from("", "").rank);
}

TEST_CASE("A long command line is cut") {
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
