// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/whereabouts_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "timer_client/cli/log/whereabouts.hpp"
#include "timer_client/cli/text/phrases.hpp"
#include "timer_client/cli/text/record_time.hpp"

namespace filetimer::cli {
namespace {

// What fits on a screen.
constexpr std::size_t kGroupsShown = 8;  // where most are among them
constexpr std::size_t kFellowsShown = 8;
constexpr std::size_t kHostsShown = 8;

// "in `exchange` for 29.6 s"
std::string place_text(const ScopeGroup& group) {
  if (group.scope.empty()) {
    return "in no scope";
  }
  std::string time;
  if (group.shortest_s) {
    const std::string shortest = seconds_text(*group.shortest_s);
    const std::string longest = seconds_text(*group.longest_s);
    time =
        shortest == longest ? " for " + longest : fmt::format(" for {} to {}", shortest, longest);
  }
  return fmt::format("in {}{}", backquoted(group.scope), time);
}

std::string odd_text(const ScopeGroup& group) {
  return group.workers.size() == 1 ? "the odd one out" : "the odd ones out";
}

std::string group_text(const ScopeGroup& group, bool is_odd,
                       const std::optional<WorkerAt>& marked) {
  const std::string mark = !marked || !is_among(group.workers, *marked) ? ""
                           : group.workers.size() == 1                  ? "this one"
                                                                        : "this one among them";
  return joined({fmt::format("{} {}", workers_text(group.workers), place_text(group)), mark,
                 is_odd ? odd_text(group) : ""},
                ", ");
}

void add_groups(Page& page, const Hang& hang, const std::vector<ScopeGroup>& groups,
                const std::optional<WorkerAt>& marked) {
  const auto add = [&](const ScopeGroup& group) {
    page.item(2, group_text(group, &group == &groups[0] && has_odd_one_out(hang, groups), marked));
  };
  if (groups.size() <= kGroupsShown) {
    std::for_each(groups.begin(), groups.end(), add);
    return;
  }
  // The outliers, which come first, and where most are.
  const ScopeGroup& most = *std::max_element(
      groups.begin(), groups.end(),
      [](const ScopeGroup& a, const ScopeGroup& b) { return a.workers.size() < b.workers.size(); });
  std::size_t shown = 0;
  std::size_t others = 0;
  for (const ScopeGroup& group : groups) {
    if (&group == &most) {
      continue;
    }
    if (shown + 1 < kGroupsShown) {
      ++shown;
      add(group);
    } else {
      others += group.workers.size();
    }
  }
  page.item(2, fmt::format("and {} more in {} other places", others, groups.size() - kGroupsShown));
  add(most);
}

void add_not_listed(Page& page, const Hang& hang) {
  std::int64_t omitted = hang.incident->omitted;
  std::int64_t unlisted = hang.incident->unlisted;
  for (const Incident& other : hang.elsewhere) {
    omitted += other.omitted;
    unlisted += other.unlisted;
  }
  if (omitted > 0) {
    page.item(2, fmt::format("{} more scopes did not fit into the record", omitted));
  }
  if (unlisted > 0) {
    page.item(2, fmt::format("{} more workers, of which the record says no more", unlisted));
  }
  std::set<std::string> missing;
  for (const Fellow& fellow : hang.expired) {
    missing.insert(fellow.worker.host);
  }
  const auto has = [&](const Incident& incident) {
    missing.erase(incident.host == hang.host ? "" : incident.host);
  };
  has(*hang.incident);
  std::for_each(hang.elsewhere.begin(), hang.elsewhere.end(), has);
  if (!missing.empty()) {
    page.item(2, fmt::format("The incident records of these hosts are not in these logs: {}.",
                             listed({missing.begin(), missing.end()}, kHostsShown)));
  }
}

// Whether the first to expire is the odd one out too: then both say the same, and the cause is
// found.
std::string first_and_odd(const Hang& hang, const std::vector<ScopeGroup>& groups) {
  if (!has_odd_one_out(hang, groups)) {
    return "";
  }
  const Fellow& first = hang.expired[0];
  const bool same = is_among(groups[0].workers, first.worker);
  if (groups[0].workers.size() > 1) {
    return same ? "one of the odd ones out" : "none of the odd ones out";
  }
  return same ? "the odd one out" : "not the odd one out";
}

// "3.00 s before"
std::string apart_text(const Incident& ours, const Incident& other) {
  if (!ours.time_us || !other.time_us) {
    return "";
  }
  const double apart_s = static_cast<double>(*other.time_us - *ours.time_us) / 1e6;
  return fmt::format("{} {}", seconds_text(std::abs(apart_s)), apart_s < 0 ? "before" : "after");
}

void add_order(Page& page, const Expiry& expiry, const std::vector<ScopeGroup>& groups) {
  const Hang& hang = expiry.hang;
  if (hang.expired.size() > 1 || (hang.incident && !hang.expired.empty())) {
    const Fellow& first = hang.expired[0];
    page.item(2, fmt::format("First to expire: {}.",
                             joined({worker_text(first.worker),
                                     first.id == expiry.id ? "this one" : first.id,
                                     first_and_odd(hang, groups)},
                                    ", ")));
    std::vector<std::string> others;
    for (const Fellow& fellow : hang.expired) {
      if (fellow.id != first.id && fellow.id != expiry.id) {
        others.push_back(fmt::format("{}, {}", worker_text(fellow.worker), fellow.id));
      }
    }
    if (!others.empty()) {
      page.item(2, fmt::format("Expired too: {}.", listed(others, kFellowsShown, "; ")));
    }
  }
  if (const auto& before = hang.before) {
    const bool timed = before->deadline_us && hang.incident && hang.incident->time_us;
    const double earlier_s =
        timed ? static_cast<double>(*hang.incident->time_us - *before->deadline_us) / 1e6 : 0;
    page.item(2, fmt::format("{} before, in another incident: {} expired in {}, {}.",
                             timed ? seconds_text(earlier_s) : "Shortly",
                             worker_text(before->worker), backquoted(before->scope), before->id));
  }
}

}  // namespace

void add_places(Page& page, const Hang& hang, const std::vector<ScopeGroup>& groups,
                const std::optional<WorkerAt>& marked) {
  if (hang.incident) {
    add_groups(page, hang, groups, marked);
    if (has_odd_one_out(groups) && may_be_of_two_jobs(hang, groups)) {
      page.item(2,
                "Two have one rank, and no record says which job they are of: nobody is called the "
                "odd one out.");
    }
    add_not_listed(page, hang);
  } else {
    page.item(2, "The incident record is not in these logs.");
  }
}

void add_doubts(Page& page, const Hang& hang) {
  std::vector<std::string> entries;
  for (const EntryApart& entry : hang.entries) {
    entries.push_back(fmt::format("{} {} {}", entry.host,
                                  seconds_text(std::abs(static_cast<double>(entry.later_us)) / 1e6),
                                  entry.later_us > 0 ? "later" : "earlier"));
  }
  if (!entries.empty()) {
    page.item(2, fmt::format("Workers entered {} at another time than the others: {}. They did, or "
                             "the clocks differ by that: who was first by less is not known.",
                             backquoted(hang.entries[0].scope), listed(entries, kHostsShown)));
  }
  const Fellow* next = next_elsewhere(hang);
  if (next != nullptr && is_within_clocks(hang, *next)) {
    page.item(2, fmt::format("{} and {} expired within {}, which is less than clocks may differ: "
                             "either may be the first.",
                             worker_text(hang.expired[0].worker), worker_text(next->worker),
                             seconds_text(static_cast<double>(hang.clocks_us) / 1e6)));
  }
}

void add_whereabouts(Page& page, const Expiry& expiry) {
  const Hang& hang = expiry.hang;
  page.heading("Where everybody was");
  const std::vector<ScopeGroup> groups =
      hang.incident ? scope_groups(hang) : std::vector<ScopeGroup>{};
  const Worker& worker = expiry.worker;
  add_places(page, hang, groups, WorkerAt{{}, worker.pid, worker.rank, worker.comm});
  if (!hang.elsewhere.empty() && hang.incident) {
    std::vector<std::string> hosts;
    for (const Incident& other : hang.elsewhere) {
      hosts.push_back(fmt::format("{} ({})", other.host.empty() ? "unknown" : other.host,
                                  joined({other.id, apart_text(*hang.incident, other)}, ", ")));
    }
    page.item(2, "Taken together with " + listed(hosts, kHostsShown) + ".");
  }
  add_order(page, expiry, groups);
  add_doubts(page, hang);
}

}  // namespace filetimer::cli
