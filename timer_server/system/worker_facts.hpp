// The command line, rank and job of a worker. Reading /proc/PID/cmdline and /proc/PID/environ takes
// the memory lock of the process and may block while the worker holds it. A side thread
// (side_threads.hpp) reads them once, when the server first sees the worker.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "common/page_reader.hpp"

namespace filetimer {

// How long a verdict or a warning waits for the facts of its worker.
inline constexpr Duration kFactsLimit = std::chrono::milliseconds{100};

struct WorkerFacts {
  std::string cmdline;  // arguments joined by spaces; empty: unknown
  std::optional<int> rank;
  std::optional<int> local_rank;
  std::string job_id;                    // empty: unknown
  std::string step_id;                   // empty: unknown; a page has none
  std::vector<std::string> variables{};  // those of the wanted ones that have a value
  bool are_known = false;                // they were read, or a page claims them
  // Of a process that has started another program since it was first seen; else empty.
  std::string comm{};
};

// Reads the facts of a process. `wanted`: names of variables. Reads again, for at most 20 ms, while
// the environment is empty: a process has none in the middle of an exec(), and `timer_client run`
// opens its scope just before one.
WorkerFacts read_worker_facts(pid_t pid, std::span<const std::string> wanted = {});

// Returns the facts in the bytes of /proc/PID/cmdline and /proc/PID/environ. The first variable of
// common/run_folder.hpp with a value counts.
WorkerFacts worker_facts_from(std::string_view cmdline, std::string_view environ_block,
                              std::span<const std::string> wanted = {});

// Returns the facts that the page of a worker claims.
WorkerFacts worker_facts_claimed(const PageClaims& claims);

// Adds to the facts that were read what the page of the worker claims: the ranks that the program
// may have set after its start, which /proc does not show, and a job if the environment names none.
void add_claims(WorkerFacts& facts, const WorkerFacts& claimed);

}  // namespace filetimer
