// Who a worker is to the people who started it: command line, rank, job. `cmdline` and `environ`
// take the memory lock of the process and may block for as long as it holds it, so these are read
// on the side thread (side_thread.hpp), once, when a worker is first seen.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace filetimer {

struct WorkerFacts {
  std::string cmdline;  // arguments joined by spaces; empty: unknown
  std::optional<int> rank;
  std::optional<int> local_rank;
  std::string job_id;   // empty: unknown
  std::string step_id;  // likewise; not on a page
};

// Looks again, for 20 ms at most, while there is no environment: a worker is often seen first when
// it is about to become the program that is to be watched.
WorkerFacts read_worker_facts(pid_t pid);

// From the bytes of /proc/PID/cmdline and /proc/PID/environ. The variables that are looked at, in
// this order: RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK; LOCAL_RANK,
// SLURM_LOCALID, OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID; SLURM_JOB_ID, TORCHELASTIC_RUN_ID,
// PBS_JOBID, LSB_JOBID, JOB_ID, PMIX_NAMESPACE; SLURM_STEP_ID.
WorkerFacts worker_facts_from(std::string_view cmdline, std::string_view environ_block);

// What a page of a worker that has ended says of it.
WorkerFacts worker_facts_claimed(std::string_view rank, std::string_view local_rank,
                                 std::string_view job_id);

}  // namespace filetimer
