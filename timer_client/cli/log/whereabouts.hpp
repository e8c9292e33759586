// Where the workers were when the first of them expired: grouped by the scope that each of them was
// in, so that the one that is not where the others are stands out.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "timer_client/cli/log/hang.hpp"

namespace filetimer::cli {

struct ScopeGroup {
  std::string scope;  // the innermost that is open; empty: none
  Number shortest_s;  // how long they have been in it
  Number longest_s;
  std::vector<WorkerAt> workers;
};

// Ranks before processes without one, then the smallest group first, of equal ones the one that has
// been there longest. Workers in one scope are two groups when they entered it at clearly different
// times. Of a worker with several threads in scopes, the thread whose deadline comes next counts.
// Elapsed times are those of hang.incident's moment. What another host recorded before it stays as
// it was recorded: whoever was there may be dead since.
std::vector<ScopeGroup> scope_groups(const Hang& hang);

// Whether the first group is the one to look at: few, while most are in one other place.
bool has_odd_one_out(const std::vector<ScopeGroup>& groups);
// Not where it is not known where the first one to expire was, for it may be the odd one, nor among
// workers who may_be_of_two_jobs().
bool has_odd_one_out(const Hang& hang, const std::vector<ScopeGroup>& groups);
// Whether two of them have one rank and nothing tells whose they are.
bool may_be_of_two_jobs(const Hang& hang, const std::vector<ScopeGroup>& groups);
// Whether it is known of all, and all are in one place.
bool are_together(const Hang& hang, const std::vector<ScopeGroup>& groups);

bool is_among(const std::vector<WorkerAt>& workers, const WorkerAt& wanted);

// The one on another host than the first to expire that is likeliest to have been before it: their
// times are of two clocks. Null: there is none.
const Fellow* next_elsewhere(const Hang& hang);
// Whether `fellow` may have been the first, as far as clocks tell.
bool may_be_first(const Hang& hang, const Fellow& fellow);
// Whether it expired so soon after the first one, on another host, that no two clocks tell.
bool is_within_clocks(const Hang& hang, const Fellow& fellow);

// "rank 2 (pid 4711, trainer) on node08", "pid 4711 (trainer)".
std::string worker_text(const WorkerAt& worker);
// "ranks 0, 1, 3-7", with "pid 4711 (trainer)" for those without a rank.
std::string workers_text(const std::vector<WorkerAt>& workers);

}  // namespace filetimer::cli
