// Where the workers of a host were when the first of them expired: grouped by the scope that each
// of them was in, so that the one that is not where the others are stands out.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "timer_client/cli/expiry.hpp"

namespace filetimer::cli {

struct WorkerAt {
  Integer pid;
  Integer rank;
  std::string comm;
};

struct ScopeGroup {
  std::string scope;  // the innermost that is open: the one opened last
  Number shortest_s;  // how long they have been in it
  Number longest_s;
  std::vector<WorkerAt> workers;
};

// The smallest group first, of equal ones the one that has been there longest. Workers in one
// scope are two groups when they entered it at clearly different times.
std::vector<ScopeGroup> scope_groups(const Incident& incident);

// Whether the first place holds a single worker and the others do not: the one to look at.
bool has_odd_one_out(const std::vector<ScopeGroup>& groups);

// "rank 2 (pid 4711, trainer)", "pid 4711 (trainer)".
std::string worker_text(const Integer& rank, const Integer& pid, const std::string& comm);
// "ranks 0, 1, 3-7", with "pid 4711 (trainer)" for those without a rank.
std::string workers_text(const std::vector<WorkerAt>& workers);

}  // namespace filetimer::cli
