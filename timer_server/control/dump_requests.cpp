// SPDX-License-Identifier: MIT
#include "timer_server/control/dump_requests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "timer_server/evidence/stacks_helper.hpp"

namespace filetimer {
namespace {

// The most ranks or pids that an error names.
constexpr std::size_t kNamedInError = 16;

// Keeps the workers that are in the least common scopes: the one for which the others wait is among
// them. Returns how many it has removed.
std::size_t keep_most_unusual(std::vector<const Worker*>& meant, const ScopePolicy& scopes) {
  const std::size_t kept = std::min(meant.size(), DumpRequests::kMaxWorkers);
  const std::size_t omitted = meant.size() - kept;
  if (omitted == 0) {
    return 0;
  }
  using JobAndScope = std::pair<std::string, std::string>;  // the innermost one; empty: in none
  std::map<JobAndScope, std::vector<const Worker*>> groups;
  for (const Worker* const worker : meant) {
    const std::vector<SlotReading> open = scopes.open_scopes_of(*worker, 1);
    groups[{worker->facts->job_id, open.empty() ? "" : open.back().name}].push_back(worker);
  }
  std::vector<const std::vector<const Worker*>*> by_size;
  for (const auto& group : groups) {
    by_size.push_back(&group.second);
  }
  std::ranges::stable_sort(by_size, {}, [](const auto* group) { return group->size(); });
  meant.clear();
  for (const auto* group : by_size) {
    meant.insert(meant.end(), group->begin(), group->end());
  }
  meant.resize(kept);
  return omitted;
}

}  // namespace

Status DumpRequests::begin(const AcceptedRequest& accepted) {
  const std::optional<int> wanted_rank = accepted.question.rank;
  const std::optional<int> wanted_pid = accepted.question.worker;
  std::vector<const Worker*> meant;
  std::set<std::int64_t> known;
  core_.workers.for_each([&](const Worker& worker) {
    const pid_t pid = worker.process->pid;
    const std::optional<int> rank = worker.facts->rank;
    if (!wanted_rank || rank) {
      known.insert(wanted_rank ? *rank : pid);
    }
    if ((!wanted_rank || rank == *wanted_rank) && (!wanted_pid || pid == *wanted_pid)) {
      meant.push_back(&worker);
    }
  });
  if (known.empty()) {
    return failure(wanted_rank ? "no watched worker has a rank" : "no worker is watched");
  }
  if (meant.empty()) {
    return failure(fmt::format("no watched worker has {} {}: expected {}",
                               wanted_rank ? "rank" : "pid",
                               wanted_rank ? *wanted_rank : wanted_pid.value_or(0),
                               first_of({known.begin(), known.end()}, kNamedInError)));
  }
  if (!clients_.grant(accepted.client, accepted.granted)) {
    return {};
  }
  const auto by_rank = [](const Worker* worker) {
    const std::optional<int> rank = worker->facts->rank;
    return std::tuple(!rank, rank.value_or(0), worker->process->pid);
  };
  std::ranges::sort(meant, {}, by_rank);
  const std::size_t omitted = keep_most_unusual(meant, core_.policy);
  std::ranges::sort(meant, {}, by_rank);
  Request& request = requests_.emplace_back();
  request.client = accepted.client;
  request.omitted = omitted;
  for (const Worker* const worker : meant) {
    Asked& asked = request.workers.emplace_back();
    asked.worker = *worker;
    asked.scopes = core_.policy.open_scopes_of(*worker, kMaxScopes);
    asked.order = core_.desk.collect({.worker = worker->process,
                                      .level = most_evidence_allowed(),
                                      .use = EvidenceFor::kDump,
                                      .until = accepted.now + std::min(accepted.granted, kLimit),
                                      .limit = core_.settings.kill.evidence_timeout,
                                      .python = core_.python_dump_of(*worker)},
                                     accepted.now, [&asked](Evidence evidence, bool) {
                                       asked.evidence = std::move(evidence);
                                       asked.order.reset();
                                     });
  }
  return {};
}

void DumpRequests::withdraw(ControlClients::Id client) {
  std::erase_if(requests_, [client](const Request& each) { return each.client == client; });
}

void DumpRequests::answer_complete() {
  std::erase_if(requests_, [&](const Request& request) {
    const bool is_done =
        std::ranges::all_of(request.workers, [](const Asked& asked) { return !asked.order; });
    if (is_done) {
      clients_.finish(request.client, answer_of(request));
    }
    return is_done;
  });
}

std::string DumpRequests::answer_of(const Request& request) {
  const Instant now = Instant::now();
  JsonWriter answer = begin_answer("done");
  answer.begin_array("workers");
  for (const Asked& asked : request.workers) {
    // An object of its own: what a list has room for depends on the size of the object.
    JsonWriter json;
    write_whose_and_job(json, asked.worker);
    json.begin_array("open_scopes");
    for (const SlotReading& scope : asked.scopes) {
      json.begin_object();
      write_scope(json, scope, now);
      json.end_object();
    }
    json.end_array();
    write_evidence(json, asked.evidence);
    answer.raw({}, std::move(json).finish());
  }
  answer.end_array().field("omitted", request.omitted);
  return std::move(answer).finish();
}

}  // namespace filetimer
