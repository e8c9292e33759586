// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/hang_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <set>
#include <tuple>
#include <vector>

#include "timer_client/cli/log/whereabouts.hpp"
#include "timer_client/cli/log/whereabouts_page.hpp"
#include "timer_client/cli/text/page.hpp"
#include "timer_client/cli/text/phrases.hpp"
#include "timer_client/cli/text/record_time.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kOddOnesNamed = 4;
// Hangs of one job on different hosts that are this close together may be one.
constexpr std::int64_t kClocksSeenUs = 600'000'000;

std::string in_scope(const std::string& scope) {
  return scope.empty() ? "in no scope" : "in " + backquoted(scope);
}

std::string counted(std::size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// ", 5.00 s before rank 8 (pid 108, t) on node01", where the clocks of both agree as far as is
// known.
std::string lead_text(const Hang& hang) {
  const Fellow& first = hang.expired[0];
  const Fellow* next = next_elsewhere(hang);
  if (next == nullptr || !next->deadline_us || !first.deadline_us || may_be_first(hang, *next) ||
      hang.doubt_us(first.worker.host, next->worker.host) != hang.clocks_us) {
    return "";
  }
  const auto lead_us = static_cast<double>(*next->deadline_us - *first.deadline_us);
  return fmt::format(", {} before {}", seconds_text(lead_us / 1e6), worker_text(next->worker));
}

std::string verdict_without_odd_one(const Hang& hang, bool together) {
  const Fellow& first = hang.expired[0];
  const Fellow* next = next_elsewhere(hang);
  if (next == nullptr || !may_be_first(hang, *next)) {
    return fmt::format("{}, {}: the first to expire{}.{}", worker_text(first.worker),
                       in_scope(first.scope), lead_text(hang),
                       together ? " Nobody was elsewhere than the others." : "");
  }
  const auto candidates = std::count_if(hang.expired.begin(), hang.expired.end(),
                                        [&](const Fellow& one) { return may_be_first(hang, one); });
  return fmt::format("{} or {}{}: {}{}.", worker_text(first.worker), worker_text(next->worker),
                     candidates > 2 ? fmt::format(" or {} more", candidates - 2) : "",
                     !is_within_clocks(hang, *next) ? "clocks do not tell who expired first"
                     : candidates > 2               ? "they expired at about the same time"
                                                    : "both expired at about the same time",
                     together ? ", and nobody was elsewhere than the others" : "");
}

std::string verdict(const Hang& hang, const std::vector<ScopeGroup>& groups) {
  if (!has_odd_one_out(hang, groups)) {
    return verdict_without_odd_one(hang, are_together(hang, groups));
  }
  const std::vector<WorkerAt>& odd = groups[0].workers;
  const Fellow* next = next_elsewhere(hang);
  const bool is_sure = next == nullptr || !may_be_first(hang, *next);
  const auto both = std::find_if(hang.expired.begin(), hang.expired.end(), [&](const Fellow& one) {
    return may_be_first(hang, one) && is_among(odd, one.worker);
  });
  if (both != hang.expired.end()) {
    return fmt::format(
        "{}, {}: {}, and {} to expire{}.", worker_text(both->worker), in_scope(both->scope),
        odd.size() == 1 ? "the odd one out" : fmt::format("one of the {} odd ones out", odd.size()),
        is_sure ? "the first" : "among the first", lead_text(hang));
  }
  const Fellow& first = hang.expired[0];
  std::vector<std::string> names;
  for (const WorkerAt& worker : odd) {
    names.push_back(worker_text(worker));
  }
  return fmt::format("{}, {}: {} out. {} expired {}, {}, and may have waited for {}.",
                     listed(names, kOddOnesNamed, "; "), in_scope(groups[0].scope),
                     odd.size() == 1 ? "the odd one" : "the odd ones", worker_text(first.worker),
                     is_sure ? "first" : "among the first", in_scope(first.scope),
                     odd.size() == 1 ? "it" : "them");
}

std::set<std::string> hosts_of(const Hang& hang) {
  std::set<std::string> hosts;
  for (const Fellow& fellow : hang.expired) {
    hosts.insert(fellow.worker.host);
  }
  return hosts;
}

std::size_t count_workers(const Hang& hang) {
  std::set<std::tuple<std::string, Integer, Integer>> workers;
  for (const auto& [id, incident, scope, worker, deadline_us] : hang.expired) {
    workers.emplace(worker.host, worker.pid, worker.rank);
  }
  return workers.size();
}

// A clock that is off by more than a hang takes makes two of one.
void add_neighbour(Page& page, const Hang& hang, const std::deque<Hang>& all) {
  const std::set<std::string> hosts = hosts_of(hang);
  for (const Hang& other : all) {
    const Integer here = hang.expired[0].deadline_us;
    const Integer there = other.expired[0].deadline_us;
    if (&other == &hang || other.job_id != hang.job_id || !here || !there ||
        std::abs(*there - *here) > kClocksSeenUs) {
      continue;
    }
    std::vector<std::string> common;
    std::ranges::set_intersection(hosts, hosts_of(other), std::back_inserter(common));
    if (common.empty()) {
      page.item(2,
                fmt::format("Other hosts of this job hung {} {}: if their clocks are off by that, "
                            "it was one hang, and who was first is not known.",
                            seconds_text(std::abs(static_cast<double>(*there - *here)) / 1e6),
                            *there > *here ? "later" : "earlier"));
    }
  }
}

void add_hang(Page& page, const Hang& hang, const std::deque<Hang>& all) {
  const Fellow& first = hang.expired[0];
  page.heading(joined({"Who hung first", hang.job_id.empty() ? "" : "job " + hang.job_id,
                       first.deadline_us ? day_of(*first.deadline_us) + " " +
                                               time_of_day(*first.deadline_us) + " UTC"
                                         : ""},
                      ", "));
  const std::vector<ScopeGroup> groups = scope_groups(hang);
  page.item(2, verdict(hang, groups));
  add_doubts(page, hang);
  add_neighbour(page, hang, all);
  add_places(page, hang, groups);
  page.item(2, fmt::format("{} on {} expired; `timer_client show {}` with the same logs has more.",
                           counted(count_workers(hang), "worker"),
                           counted(hosts_of(hang).size(), "host"), first.id));
}

void add_clock_steps(Page& page, const ClockSteps& clocks) {
  if (clocks.steps().empty()) {
    return;
  }
  page.heading("Clocks that were set");
  if (clocks.omitted() > 0) {
    page.item(2, fmt::format("{} earlier times, and:", clocks.omitted()));
  }
  for (const ClockSteps::Step& step : clocks.steps()) {
    // A suspended host looks like one whose clock is set forward: both leave CLOCK_MONOTONIC
    // behind.
    page.item(2,
              fmt::format("{}: {} {} at {}{}; times before that do not compare with those after.",
                          step.host, seconds_text(std::abs(static_cast<double>(step.by_us)) / 1e6),
                          step.by_us > 0 ? "forward" : "back", long_time(step.time_us),
                          step.by_us > 0 ? ", unless it was suspended for that long" : ""));
  }
}

}  // namespace

std::string hangs_page(const HangFinder& finder, bool colour) {
  if (finder.hangs().empty()) {
    return {};
  }
  Page page(colour);
  if (finder.omitted() > 0) {
    page.heading(fmt::format("{} not told here (`--since` chooses)",
                             counted(finder.omitted(), "earlier hang")));
  }
  for (const Hang& hang : finder.hangs()) {
    add_hang(page, hang, finder.hangs());
  }
  add_clock_steps(page, finder.clock_steps());
  return page.text();
}

}  // namespace filetimer::cli
