// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/text.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/text/page.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// So much fits on a screen.
constexpr std::size_t kGroupsShown = 8;  // the largest is among them
constexpr std::size_t kWorkersNamed = 8;
constexpr std::size_t kScopesNamed = 4;  // of one worker
constexpr std::size_t kHostsNamed = 8;
constexpr std::size_t kRangesListed = 16;  // every second rank of many would fill the page
// Times that differ by less are printed as one.
constexpr double kSameTimeShare = 0.005;

// Returns " for 29.6 s", or " for 12.0 s to 29.6 s" if the workers entered the scope apart; empty:
// it is not known.
std::string time_in_scope(const ScopeGroup& group) {
  if (!group.shortest_s) {
    return {};
  }
  const std::string longest = seconds_text(*group.longest_s);
  const bool is_range = *group.longest_s - *group.shortest_s > kSameTimeShare * *group.longest_s;
  return is_range ? fmt::format(" for {} to {}", seconds_text(*group.shortest_s), longest)
                  : " for " + longest;
}

// Returns "ranks 0, 1, 3 in `exchange` for 29.6 s, this one among them".
std::string group_text(const Incident& incident, const ScopeGroup& group) {
  const bool is_one = group.workers.size() == 1;
  const bool is_odd = &group == incident.groups.data() && incident.has_odd_group();
  return joined({fmt::format("{} {}{}", workers_text(group.workers), in_scope(group.scope),
                             time_in_scope(group)),
                 !is_among(group.workers, incident.shown.worker) ? ""
                 : is_one                                        ? "this one"
                                                                 : "this one among them",
                 !is_odd  ? ""
                 : is_one ? "the odd one out"
                          : "the odd ones out"});
}

// The expiries of one worker, which expires once for each scope that is over its time.
using Expiries = std::vector<const ExpiredWorker*>;

// Returns those of all workers, the first to expire first.
std::vector<Expiries> by_worker(const Incident& incident) {
  std::map<std::tuple<std::string_view, Integer, Integer>, std::size_t> known;
  std::vector<Expiries> workers;
  for (const ExpiredWorker& one : incident.expired) {
    const auto [at, is_new] =
        known.try_emplace({one.machine, one.worker.pid, one.worker.rank}, workers.size());
    if (is_new) {
      workers.emplace_back();
    }
    workers[at->second].push_back(&one);
  }
  return workers;
}

// Returns "rank 2 (pid 12, t), in `load` (a-3), this one, in `step` (a-4)".
std::string expiries_text(const Incident& incident, const Expiries& expiries) {
  std::vector<std::string> scopes;
  for (const ExpiredWorker* const one : expiries) {
    scopes.push_back(fmt::format("{} ({}){}", in_scope(one->scope), one->id,
                                 incident.is_shown(one->machine, one->id) ? ", this one" : ""));
  }
  return joined({worker_text(expiries[0]->worker), listed(scopes, kScopesNamed)});
}

// Adds the groups, and what is not in them.
void add_groups(Page& page, const Incident& incident) {
  std::size_t shown = 0;
  std::size_t workers = 0;  // in the groups that are left out
  const ScopeGroup* const largest = incident.groups.empty() ? nullptr : &incident.largest_group();
  for (const ScopeGroup& group : incident.groups) {
    if (incident.groups.size() <= kGroupsShown || shown + 1 < kGroupsShown || &group == largest) {
      ++shown;
      page.item(2, group_text(incident, group));
    } else {
      workers += group.workers.size();
    }
  }
  if (shown < incident.groups.size()) {
    page.item(
        2, fmt::format("and {} more in {} other places", workers, incident.groups.size() - shown));
  }
  if (!incident.has_records) {
    page.item(2, "The incident record is not in these logs.");
  } else if (!incident.missing.empty()) {
    page.item(2, fmt::format("The incident records of these hosts are not in these logs: {}.",
                             listed(incident.missing, kHostsNamed)));
  }
  if (incident.may_be_two_jobs) {
    page.item(2,
              "Two workers have one rank, and no record says which job they are of: none is "
              "called the odd one out.");
  }
  if (incident.omitted_scopes > 0) {
    page.item(2, fmt::format("{} did not fit into the record",
                             counted(incident.omitted_scopes, "more scope")));
  }
  if (incident.omitted_workers > 0) {
    page.item(2, fmt::format("{}, of which the record says no more",
                             counted(incident.omitted_workers, "more worker")));
  }
}

}  // namespace

std::string worker_text(const WorkerName& worker) {
  const std::string process = worker.pid ? fmt::format("pid {}", *worker.pid) : "";
  const std::string rank = worker.rank ? fmt::format("rank {}", *worker.rank) : "";
  const std::string& what = rank.empty() ? process : rank;
  const std::string more = joined({rank.empty() ? "" : process, worker.comm});
  const std::string text = what.empty()   ? (more.empty() ? "a worker" : more)
                           : more.empty() ? what
                                          : fmt::format("{} ({})", what, more);
  return worker.host.empty() ? text : fmt::format("{} on {}", text, worker.host);
}

std::string workers_text(const std::vector<WorkerName>& workers) {
  std::vector<std::int64_t> ranks;
  for (const WorkerName& worker : workers) {
    if (worker.rank) {
      ranks.push_back(*worker.rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> texts;
  std::size_t named = 0;
  for (std::size_t begin = 0; begin < ranks.size() && texts.size() < kRangesListed;) {
    std::size_t last = begin;
    while (last + 1 < ranks.size() && ranks[last] < ranks[last + 1] &&
           ranks[last] + 1 == ranks[last + 1]) {
      ++last;
    }
    if (last - begin < 2) {  // two neighbours read better one by one
      last = begin;
    }
    texts.push_back(last == begin ? fmt::format("{}", ranks[begin])
                                  : fmt::format("{}-{}", ranks[begin], ranks[last]));
    begin = last + 1;
    named = begin;
  }
  if (!texts.empty()) {
    texts[0].insert(0, ranks.size() == 1 ? "rank " : "ranks ");
  }
  for (const WorkerName& worker : workers) {
    if (!worker.rank && texts.size() < kRangesListed) {
      texts.push_back(worker_text(worker));
      ++named;
    }
  }
  return fmt::format(
      "{}{}", fmt::join(texts, ", "),
      named < workers.size() ? fmt::format(" and {} more", workers.size() - named) : "");
}

std::string signal_text(simdjson::dom::object sent) {
  const std::string name = text_at(sent, "name");
  const Integer number = integer_at(sent, "signal");
  return name.empty() && number ? fmt::format("signal {}", *number) : name;
}

std::string in_scope(const std::string& scope) {
  return scope.empty() ? "in no scope" : "in " + backquoted(scope);
}

std::string times_text(const Scope& scope) {
  if (scope.kind == Scope::Kind::kEnded) {
    return seconds_text(scope.end_s - scope.begin_s);
  }
  const std::string elapsed = seconds_text(std::min(scope.known_s, scope.end_s) - scope.begin_s);
  return joined({scope.timeout_s ? fmt::format("{} of {}", elapsed, seconds_text(*scope.timeout_s))
                                 : elapsed + ", no deadline",
                 scope.is_paused ? "paused" : ""});
}

void add_ranks_at_expiry(Page& page, const Incident& incident) {
  page.heading("Ranks at time of expiry");
  add_groups(page, incident);
  std::vector<std::string> texts;
  for (const Expiries& expiries : by_worker(incident)) {
    texts.push_back(expiries_text(incident, expiries));
  }
  if (!texts.empty()) {
    page.item(2, fmt::format("First to expire: {}.", texts[0]));
    texts.erase(texts.begin());
  }
  if (!texts.empty()) {
    page.item(2, fmt::format("Expired, too: {}.", listed(texts, kWorkersNamed, "; ")));
  }
  if (incident.machines > 1) {
    page.item(2,
              fmt::format("Order and times are those of the clocks of {} hosts, which may differ.",
                          incident.machines));
  }
}

}  // namespace filetimer::cli
