// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <tuple>

#include "common/text.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/text/page.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// So much fits on a screen.
constexpr std::size_t kGroupsShown = 8;  // the largest is among them
constexpr std::size_t kWorkersNamed = 8;
constexpr std::size_t kHostsNamed = 8;
constexpr std::size_t kScopesNamed = 4;    // of one worker
constexpr std::size_t kRangesListed = 16;  // every second rank of many would fill the page
// Times that differ by less are printed as one.
constexpr double kSameTimeShare = 0.005;

// Returns "ranks 0, 1, 3 in `exchange` for 29.6 s".
std::string group_text(const ScopeGroup& group, bool is_odd, const WorkerName& shown) {
  const std::string mark = !is_among(group.workers, shown) ? ""
                           : group.workers.size() == 1     ? "this one"
                                                           : "this one among them";
  return joined({fmt::format("{} {}{}", workers_text(group.workers), in_scope(group.scope),
                             time_in_scope(group)),
                 mark, is_odd ? odd_text(group.workers.size()) : ""});
}

// Returns whether the first to expire is the odd one out, too: then both say the same, and the
// cause is found.
std::string first_and_odd(const Incident& incident) {
  if (!incident.has_odd_group()) {
    return "";
  }
  const std::vector<WorkerName>& odd = incident.groups[0].workers;
  const bool is_odd = is_among(odd, incident.expired[0].worker);
  if (odd.size() > 1) {
    return is_odd ? "one of the odd ones out" : "none of the odd ones out";
  }
  return is_odd ? "the odd one out" : "not the odd one out";
}

// The expiries of one worker, which expires once for each scope that is over its time.
using Expiries = std::vector<const ExpiredWorker*>;

// Returns those of all workers, the first to expire first.
std::vector<Expiries> by_worker(const Incident& incident) {
  std::map<std::tuple<std::string, Integer, Integer>, std::size_t> known;
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

// Two hosts may have one id; the host that is shown has no name on its page.
bool is_shown(const ExpiredWorker& one, const std::string& id) {
  return one.id == id && one.worker.host.empty();
}

// Returns "rank 2 (pid 12, t), a-3", "rank 2 (pid 12, t), this one, in `step` (a-3), in `load`
// (a-4)"
std::string expiries_text(const Expiries& expiries, const std::string& id) {
  const bool are_shown = std::any_of(expiries.begin(), expiries.end(),
                                     [&](const auto* one) { return is_shown(*one, id); });
  std::vector<std::string> scopes;
  for (const ExpiredWorker* const one : expiries) {
    scopes.push_back(fmt::format("{} ({})", in_scope(one->scope), one->id));
  }
  return joined({worker_text(expiries[0]->worker), are_shown ? "this one" : "",
                 expiries.size() > 1 ? listed(scopes, kScopesNamed)
                 : are_shown         ? ""
                                     : expiries[0]->id});
}

// Adds the groups, and what is not in them. The group of `shown` is marked.
void add_groups(Page& page, const Incident& incident, const WorkerName& shown) {
  if (!incident.has_records) {
    page.item(2, "The incident record is not in these logs.");
    return;
  }
  const std::vector<const ScopeGroup*> groups = incident.first_groups(kGroupsShown);
  const std::size_t left_out = incident.groups.size() - groups.size();
  std::size_t workers = 0;
  for (const ScopeGroup& group : incident.groups) {
    workers += group.workers.size();
  }
  for (const ScopeGroup* const group : groups) {
    workers -= group->workers.size();
  }
  for (const ScopeGroup* const group : groups) {
    if (left_out > 0 && group == groups.back()) {
      page.item(2, fmt::format("and {} more in {} other places", workers, left_out));
    }
    page.item(2,
              group_text(*group, group == &incident.groups[0] && incident.has_odd_group(), shown));
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
  if (!incident.missing.empty()) {
    page.item(2, fmt::format("The incident records of these hosts are not in these logs: {}.",
                             listed(incident.missing, kHostsNamed)));
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

std::string time_in_scope(const ScopeGroup& group) {
  if (!group.shortest_s) {
    return {};
  }
  const std::string longest = seconds_text(*group.longest_s);
  const bool is_range = *group.longest_s - *group.shortest_s > kSameTimeShare * *group.longest_s;
  return is_range ? fmt::format(" for {} to {}", seconds_text(*group.shortest_s), longest)
                  : " for " + longest;
}

std::string odd_text(std::size_t workers) {
  return workers == 1 ? "the odd one out" : "the odd ones out";
}

std::string odd_sentence(const Incident& incident) {
  if (!incident.has_odd_group()) {
    return {};
  }
  const ScopeGroup& odd = incident.groups[0];
  return fmt::format("The odd {} out: {}, {}.", odd.workers.size() == 1 ? "one" : "ones",
                     workers_text(odd.workers), in_scope(odd.scope));
}

std::string first_waited_sentence(const Incident& incident) {
  if (!incident.has_odd_group() || incident.expired.empty() ||
      is_among(incident.groups[0].workers, incident.expired[0].worker)) {
    return {};
  }
  const ExpiredWorker& first = incident.expired[0];
  return fmt::format("{} expired first, {}, and may have waited for {}.", worker_text(first.worker),
                     in_scope(first.scope), incident.groups[0].workers.size() == 1 ? "it" : "them");
}

void add_ranks_at_expiry(Page& page, const Incident& incident, const std::string& id,
                         const WorkerName& shown) {
  page.heading("Ranks at time of expiry");
  add_groups(page, incident, shown);
  if (!incident.expired.empty() && (incident.expired.size() > 1 || incident.has_records)) {
    const std::vector<Expiries> all = by_worker(incident);
    page.item(2, fmt::format("First to expire: {}.",
                             joined({expiries_text(all[0], id), first_and_odd(incident)})));
    std::vector<std::string> others;
    for (const Expiries& expiries : std::span(all).subspan(1)) {
      if (expiries.size() > 1 || !is_shown(*expiries[0], id)) {
        others.push_back(expiries_text(expiries, id));
      }
    }
    if (!others.empty()) {
      page.item(2, fmt::format("Expired, too: {}.", listed(others, kWorkersNamed, "; ")));
    }
  }
  if (!incident.other_hosts.empty()) {
    page.item(2, fmt::format("With the records of {}: order and times are those of the hosts' "
                             "clocks, which may differ.",
                             listed(incident.other_hosts, kHostsNamed)));
  }
}

}  // namespace filetimer::cli
