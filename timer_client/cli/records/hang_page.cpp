// SPDX-License-Identifier: MIT
#include "timer_client/cli/records/hang_page.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "timer_client/cli/records/page.hpp"
#include "timer_client/cli/records/phrases.hpp"
#include "timer_client/cli/records/record_time.hpp"
#include "timer_client/cli/records/whereabouts.hpp"
#include "timer_client/cli/records/whereabouts_page.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kOddOnesNamed = 4;

std::string in_scope(const std::string& scope) {
  return scope.empty() ? "in no scope" : "in " + backquoted(scope);
}

std::string counted(std::size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// ", 5.00 s before rank 8 (pid 108, t) on node01"
std::string lead_text(const Hang& hang) {
  const Fellow* next = next_elsewhere(hang);
  if (next == nullptr || is_too_close(hang) || !next->deadline_us || !hang.expired[0].deadline_us) {
    return "";
  }
  const auto lead_us = static_cast<double>(*next->deadline_us - *hang.expired[0].deadline_us);
  return fmt::format(", {} before {}", seconds_text(lead_us / 1e6), worker_text(next->worker));
}

std::string verdict(const Hang& hang, const std::vector<ScopeGroup>& groups) {
  const Fellow& first = hang.expired[0];
  if (!has_odd_one_out(groups)) {
    if (const Fellow* next = next_elsewhere(hang); next != nullptr && is_too_close(hang)) {
      return fmt::format(
          "{} or {}: both expired at about the same time, and nobody was elsewhere "
          "than the others.",
          worker_text(first.worker), worker_text(next->worker));
    }
    return fmt::format("{}, {}: the first to expire{}. Nobody was elsewhere than the others.",
                       worker_text(first.worker), in_scope(first.scope), lead_text(hang));
  }
  const std::vector<WorkerAt>& odd = groups[0].workers;
  if (is_among(odd, first.worker)) {
    return fmt::format(
        "{}, {}: {}, and {} to expire{}.", worker_text(first.worker), in_scope(first.scope),
        odd.size() == 1 ? "the odd one out" : fmt::format("one of the {} odd ones out", odd.size()),
        is_too_close(hang) ? "among the first" : "the first", lead_text(hang));
  }
  std::vector<std::string> names;
  for (const WorkerAt& worker : odd) {
    names.push_back(worker_text(worker));
  }
  return fmt::format("{}, {}: {} out. {} expired first, {}, and may have waited for {}.",
                     listed(names, kOddOnesNamed, "; "), in_scope(groups[0].scope),
                     odd.size() == 1 ? "the odd one" : "the odd ones", worker_text(first.worker),
                     in_scope(first.scope), odd.size() == 1 ? "it" : "them");
}

void add_hang(Page& page, const Hang& hang) {
  if (hang.expired.empty()) {
    return;
  }
  const Fellow& first = hang.expired[0];
  page.heading(joined({"Who hung first", hang.job_id.empty() ? "" : "job " + hang.job_id,
                       first.deadline_us ? day_of(*first.deadline_us) + " " +
                                               time_of_day(*first.deadline_us) + " UTC"
                                         : ""},
                      ", "));
  const std::vector<ScopeGroup> groups = scope_groups(hang);
  page.item(2, verdict(hang, groups));
  add_doubts(page, hang);
  add_places(page, hang, groups);
  const std::size_t hosts = 1 + hang.elsewhere.size();
  page.item(2,
            fmt::format("{} on {} expired; `timer_client show {}` with the same logs has more.",
                        counted(hang.expired.size(), "worker"), counted(hosts, "host"), first.id));
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
    page.item(2,
              fmt::format("{}: {} {} at {}; times before that do not compare with those after.",
                          step.host, seconds_text(std::abs(static_cast<double>(step.by_us)) / 1e6),
                          step.by_us > 0 ? "forward" : "back", long_time(step.time_us)));
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
    add_hang(page, hang);
  }
  add_clock_steps(page, finder.clock_steps());
  return page.text();
}

}  // namespace filetimer::cli
