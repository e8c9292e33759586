// SPDX-License-Identifier: MIT
#include "timer_client/src/job_environment.hpp"

#include <array>
#include <cstdlib>
#include <span>

namespace filetimer {
namespace {

constexpr std::array<const char*, 5> kRank{"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK",
                                           "PMIX_RANK", "PMI_RANK"};
constexpr std::array<const char*, 4> kLocalRank{"LOCAL_RANK", "SLURM_LOCALID",
                                                "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"};
constexpr std::array<const char*, 5> kJob{"SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID",
                                          "LSB_JOBID", "JOB_ID"};

std::string first_value(std::span<const char* const> names) {
  for (const char* const name : names) {
    if (const char* const value = std::getenv(name); value != nullptr && *value != '\0') {
      return value;
    }
  }
  return {};
}

}  // namespace

JobEnvironment job_environment() {
  return {first_value(kRank), first_value(kLocalRank), first_value(kJob)};
}

}  // namespace filetimer
