// The environment variables in which launchers (torchrun, Slurm, Open MPI, PMI, batch systems) name
// the job of a process and its rank. The first variable of each list that is set counts.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>

namespace filetimer {

inline constexpr std::array<const char*, 5> kRankVariables{
    "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
inline constexpr std::array<const char*, 4> kLocalRankVariables{
    "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"};
// Open MPI's PMIX_NAMESPACE is last, because the name of a batch system that started mpirun is
// better.
inline constexpr std::array<const char*, 6> kJobVariables{
    "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "PMIX_NAMESPACE"};
inline constexpr std::array<const char*, 1> kStepVariables{"SLURM_STEP_ID"};

}  // namespace filetimer
