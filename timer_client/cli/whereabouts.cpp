// SPDX-License-Identifier: MIT
#include "timer_client/cli/whereabouts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace filetimer::cli {
namespace {

// Workers that enter a scope together do so within moments; a gap of more than a second and a
// tenth of the time tells one that came later.
constexpr double kSameEntryS = 1.0;
constexpr double kSameEntryShare = 0.1;

struct Innermost {
  WorkerAt worker;
  std::string scope;
  Number elapsed_s;
};

std::vector<Innermost> innermost_scopes(const Incident& incident) {
  std::map<std::pair<Integer, Integer>, Innermost> by_worker;
  for (const OpenScope& open : incident.open_scopes) {
    // By the pid, which every worker has; by the rank only where a record lacks it.
    const std::pair<Integer, Integer> key{open.pid, open.pid ? Integer{} : open.rank};
    const auto [at, is_new] = by_worker.try_emplace(
        key, Innermost{{open.pid, open.rank, open.comm}, open.scope, open.elapsed_s});
    // Of scopes opened at one time the last one listed is the innermost.
    if (!is_new && open.elapsed_s && open.elapsed_s <= at->second.elapsed_s) {
      at->second.scope = open.scope;
      at->second.elapsed_s = open.elapsed_s;
    }
  }
  std::vector<Innermost> all;
  for (auto& [key, innermost] : by_worker) {
    all.push_back(std::move(innermost));
  }
  return all;
}

bool entered_together(const Number& longer, const Number& shorter) {
  if (!longer || !shorter) {
    return longer == shorter;
  }
  return *longer - *shorter <= std::max(kSameEntryS, kSameEntryShare * *longer);
}

}  // namespace

std::vector<ScopeGroup> scope_groups(const Incident& incident) {
  std::vector<Innermost> all = innermost_scopes(incident);
  std::sort(all.begin(), all.end(), [](const Innermost& a, const Innermost& b) {
    return std::pair(a.scope, b.elapsed_s) < std::pair(b.scope, a.elapsed_s);
  });
  std::vector<ScopeGroup> groups;
  for (Innermost& one : all) {
    if (groups.empty() || groups.back().scope != one.scope ||
        !entered_together(groups.back().shortest_s, one.elapsed_s)) {
      groups.push_back({one.scope, one.elapsed_s, one.elapsed_s, {}});
    }
    groups.back().shortest_s = one.elapsed_s;
    groups.back().workers.push_back(std::move(one.worker));
  }
  std::stable_sort(groups.begin(), groups.end(), [](const ScopeGroup& a, const ScopeGroup& b) {
    return std::pair(a.workers.size(), b.longest_s) < std::pair(b.workers.size(), a.longest_s);
  });
  return groups;
}

bool has_odd_one_out(const std::vector<ScopeGroup>& groups) {
  return groups.size() > 1 && groups[0].workers.size() == 1 && groups[1].workers.size() > 1;
}

std::string worker_text(const Integer& rank, const Integer& pid, const std::string& comm) {
  const std::string process = pid ? fmt::format("pid {}", *pid) : std::string();
  if (rank) {
    const std::string separator = pid && !comm.empty() ? ", " : "";
    return pid || !comm.empty() ? fmt::format("rank {} ({}{}{})", *rank, process, separator, comm)
                                : fmt::format("rank {}", *rank);
  }
  if (pid) {
    return comm.empty() ? process : fmt::format("{} ({})", process, comm);
  }
  return comm.empty() ? "a worker" : comm;
}

std::string workers_text(const std::vector<WorkerAt>& workers) {
  std::vector<std::int64_t> ranks;
  std::vector<std::string> texts;
  for (const WorkerAt& worker : workers) {
    if (worker.rank) {
      ranks.push_back(*worker.rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  for (std::size_t begin = 0; begin < ranks.size();) {
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
  }
  if (!texts.empty()) {
    texts[0].insert(0, ranks.size() == 1 ? "rank " : "ranks ");
  }
  for (const WorkerAt& worker : workers) {
    if (!worker.rank) {
      texts.push_back(worker_text(worker.rank, worker.pid, worker.comm));
    }
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace filetimer::cli
