// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/whereabouts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "timer_client/cli/text/phrases.hpp"

namespace filetimer::cli {
namespace {

// Workers that enter a scope together do so within moments; a gap of more than a second and a
// tenth of the time tells one that came later.
constexpr double kSameEntryS = 1.0;
constexpr double kSameEntryShare = 0.1;

// Every second rank of many, or as many processes without one, would fill the page.
constexpr std::size_t kRangesListed = 16;

struct Place {
  WorkerAt worker;
  std::string scope;
  Number elapsed_s;
  Number remaining_s;
};

// Which worker, and which of its threads.
using ThreadKey = std::tuple<std::string, Integer, Integer, Integer>;

// The worker that a key is of: by the pid, which every worker has; by the rank only where a record
// lacks it.
ThreadKey key_of(const WorkerAt& worker, const Integer& tid) {
  return {worker.host, worker.pid, worker.pid ? Integer{} : worker.rank, tid};
}

bool is_deeper(const OpenScope& open, const Place& than) {
  // Of scopes opened at one time the last one listed is the innermost.
  return open.elapsed_s && open.elapsed_s <= than.elapsed_s;
}

// Whether a thread at `one` says more about a hang than one at `other`: its deadline comes first.
bool is_nearer_to_its_end(const Place& one, const Place& other) {
  if (one.remaining_s && other.remaining_s) {
    return *one.remaining_s < *other.remaining_s;
  }
  return one.remaining_s || (!other.remaining_s && one.elapsed_s > other.elapsed_s);
}

// `later_s`: how long after the moment that is told of the incident was recorded.
void add_places(const Incident& incident, const std::string& host, double later_s,
                std::vector<Place>& places) {
  std::map<ThreadKey, Place> threads;
  for (const OpenScope& open : incident.open_scopes) {
    Place place{
        {host, open.pid, open.rank, open.comm}, open.scope, open.elapsed_s, open.remaining_s};
    const auto [at, is_new] = threads.try_emplace(key_of(place.worker, open.tid), place);
    if (!is_new && is_deeper(open, at->second)) {
      at->second = std::move(place);
    }
  }
  std::map<ThreadKey, Place> workers;
  for (auto& [key, place] : threads) {
    const auto [at, is_new] = workers.try_emplace(key_of(place.worker, {}), place);
    if (!is_new && is_nearer_to_its_end(place, at->second)) {
      at->second = std::move(place);
    }
  }
  for (auto& [key, place] : workers) {
    if (place.elapsed_s) {
      *place.elapsed_s = std::max(*place.elapsed_s - later_s, 0.0);
    }
    places.push_back(std::move(place));
  }
  for (WorkerAt worker : incident.in_no_scope) {
    worker.host = host;
    places.push_back({std::move(worker), {}, {}, {}});
  }
}

std::vector<Place> all_places(const Hang& hang) {
  std::vector<Place> places;
  if (hang.incident) {
    const std::string& host = hang.incident->host;
    add_places(*hang.incident, host == hang.host ? "" : host, 0, places);
  }
  for (const Incident& other : hang.elsewhere) {
    const bool timed = hang.incident && hang.incident->time_us && other.time_us;
    const double later_s =
        timed ? static_cast<double>(*other.time_us - *hang.incident->time_us) / 1e6 : 0;
    add_places(other, other.host, std::max(later_s, 0.0), places);
  }
  return places;
}

// `moments_s`: by how much those who entered together may seem to have done so one after the other.
bool entered_together(const Number& longer, const Number& shorter, double moments_s) {
  if (!longer || !shorter) {
    return longer == shorter;
  }
  return *longer - *shorter <= std::max(moments_s, kSameEntryShare * *longer);
}

bool has_ranks(const ScopeGroup& group) {
  return std::any_of(group.workers.begin(), group.workers.end(),
                     [](const WorkerAt& worker) { return worker.rank.has_value(); });
}

bool is_listed(const Fellow& fellow, const std::vector<ScopeGroup>& groups) {
  return std::any_of(groups.begin(), groups.end(), [&](const ScopeGroup& group) {
    return is_among(group.workers, fellow.worker);
  });
}

// By how much `later`, of another host, expired after the first one at the least; negative: perhaps
// before it.
std::int64_t lead_us(const Hang& hang, const Fellow& later) {
  const Fellow& first = hang.expired[0];
  return first.deadline_us && later.deadline_us
             ? *later.deadline_us - *first.deadline_us -
                   hang.doubt_us(first.worker.host, later.worker.host)
             : 0;
}

}  // namespace

std::vector<ScopeGroup> scope_groups(const Hang& hang) {
  std::vector<Place> all = all_places(hang);
  std::sort(all.begin(), all.end(), [](const Place& a, const Place& b) {
    return std::pair(a.scope, b.elapsed_s) < std::pair(b.scope, a.elapsed_s);
  });
  std::int64_t apart_us = hang.clocks_us;
  for (const EntryApart& entry : hang.entries) {
    apart_us = std::max(apart_us, std::abs(entry.later_us) + hang.clocks_us);
  }
  const double moments_s = std::max(kSameEntryS, static_cast<double>(apart_us) / 1e6);
  std::vector<ScopeGroup> groups;
  for (Place& one : all) {
    if (groups.empty() || groups.back().scope != one.scope ||
        !entered_together(groups.back().shortest_s, one.elapsed_s, moments_s)) {
      groups.push_back({one.scope, one.elapsed_s, one.elapsed_s, {}});
    }
    groups.back().shortest_s = one.elapsed_s;
    groups.back().workers.push_back(std::move(one.worker));
  }
  std::stable_sort(groups.begin(), groups.end(), [](const ScopeGroup& a, const ScopeGroup& b) {
    return std::tuple(!has_ranks(a), a.workers.size(), b.longest_s) <
           std::tuple(!has_ranks(b), b.workers.size(), a.longest_s);
  });
  return groups;
}

bool has_odd_one_out(const std::vector<ScopeGroup>& groups) {
  if (groups.size() < 2 || groups[0].workers.size() >= groups[1].workers.size() ||
      has_ranks(groups[0]) != has_ranks(groups[1])) {
    return false;
  }
  const std::size_t most = std::max_element(groups.begin(), groups.end(), [](auto& a, auto& b) {
                             return a.workers.size() < b.workers.size();
                           })->workers.size();
  return 2 * groups[0].workers.size() <= most;
}

bool has_odd_one_out(const Hang& hang, const std::vector<ScopeGroup>& groups) {
  return has_odd_one_out(groups) && !may_be_of_two_jobs(hang, groups) &&
         (hang.expired.empty() || is_listed(hang.expired[0], groups));
}

bool may_be_of_two_jobs(const Hang& hang, const std::vector<ScopeGroup>& groups) {
  constexpr std::string_view kNoId = "none";  // torchrun's, where none is given
  const auto tells = [](const Incident& incident) { return incident.tells_jobs; };
  if (!hang.job_id.empty() && hang.job_id != kNoId && hang.incident && tells(*hang.incident) &&
      std::all_of(hang.elsewhere.begin(), hang.elsewhere.end(), tells)) {
    return false;
  }
  std::set<std::int64_t> ranks;
  for (const ScopeGroup& group : groups) {
    for (const WorkerAt& worker : group.workers) {
      if (worker.rank && !ranks.insert(*worker.rank).second) {
        return true;
      }
    }
  }
  return false;
}

bool are_together(const Hang& hang, const std::vector<ScopeGroup>& groups) {
  const auto is_whole = [](const Incident& one) { return one.omitted == 0 && one.unlisted == 0; };
  return hang.incident && is_whole(*hang.incident) &&
         std::all_of(hang.elsewhere.begin(), hang.elsewhere.end(), is_whole) &&
         std::all_of(hang.expired.begin(), hang.expired.end(),
                     [&](const Fellow& fellow) { return is_listed(fellow, groups); }) &&
         std::count_if(groups.begin(), groups.end(), [&](const ScopeGroup& group) {
           return has_ranks(group) == has_ranks(groups[0]);
         }) == 1;
}

bool is_among(const std::vector<WorkerAt>& workers, const WorkerAt& wanted) {
  return std::any_of(workers.begin(), workers.end(), [&](const WorkerAt& at) {
    return at.host == wanted.host &&
           (at.pid && wanted.pid ? at.pid == wanted.pid : at.rank && at.rank == wanted.rank);
  });
}

const Fellow* next_elsewhere(const Hang& hang) {
  const Fellow* next = nullptr;
  for (const Fellow& one : hang.expired) {
    if (one.worker.host != hang.expired[0].worker.host &&
        (next == nullptr || lead_us(hang, one) < lead_us(hang, *next))) {
      next = &one;
    }
  }
  return next;
}

bool may_be_first(const Hang& hang, const Fellow& fellow) {
  return &fellow == &hang.expired[0] ||
         (fellow.worker.host != hang.expired[0].worker.host && lead_us(hang, fellow) < 0);
}

bool is_within_clocks(const Hang& hang, const Fellow& fellow) {
  const Fellow& first = hang.expired[0];
  return fellow.worker.host != first.worker.host && first.deadline_us && fellow.deadline_us &&
         *fellow.deadline_us - *first.deadline_us < hang.clocks_us;
}

std::string worker_text(const WorkerAt& worker) {
  const std::string process = worker.pid ? fmt::format("pid {}", *worker.pid) : "";
  const std::string rank = worker.rank ? fmt::format("rank {}", *worker.rank) : "";
  const std::string& what = rank.empty() ? process : rank;
  const std::string more = joined({rank.empty() ? "" : process, worker.comm}, ", ");
  const std::string text = what.empty()   ? (more.empty() ? "a worker" : more)
                           : more.empty() ? what
                                          : fmt::format("{} ({})", what, more);
  return joined({text, worker.host.empty() ? "" : "on " + worker.host}, " ");
}

std::string workers_text(const std::vector<WorkerAt>& workers) {
  std::vector<std::int64_t> ranks;
  for (const WorkerAt& worker : workers) {
    if (worker.rank) {
      ranks.push_back(*worker.rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> texts;
  std::size_t told = 0;
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
    told = begin;
  }
  if (!texts.empty()) {
    texts[0].insert(0, ranks.size() == 1 ? "rank " : "ranks ");
  }
  for (const WorkerAt& worker : workers) {
    if (!worker.rank && texts.size() < kRangesListed) {
      texts.push_back(worker_text(worker));
      ++told;
    }
  }
  return fmt::format(
      "{}{}", fmt::join(texts, ", "),
      told < workers.size() ? fmt::format(" and {} more", workers.size() - told) : "");
}

}  // namespace filetimer::cli
