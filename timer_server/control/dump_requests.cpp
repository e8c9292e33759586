// SPDX-License-Identifier: MIT
#include "timer_server/control/dump_requests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "timer_server/control/answers.hpp"

namespace filetimer {
namespace {

// Of the ranks or pids that an error names.
constexpr std::size_t kNamedInError = 16;

std::optional<std::int64_t> rank_of(const Worker& worker) {
  return *worker.facts ? (*worker.facts)->rank : std::nullopt;
}

std::string why_none(const DumpRequests::Wanted& wanted, const std::set<std::int64_t>& known) {
  if (known.empty()) {
    return wanted.rank ? "no watched worker has a rank" : "no worker is watched";
  }
  std::string listed;
  std::size_t named = 0;
  for (const std::int64_t each : known) {
    if (named++ == kNamedInError) {
      listed += fmt::format(" and {} more", known.size() - kNamedInError);
      break;
    }
    listed += fmt::format("{}{}", listed.empty() ? "" : ", ", each);
  }
  return wanted.rank
             ? fmt::format("no watched worker has rank {}: expected {}", *wanted.rank, listed)
             : fmt::format("no watched worker has pid {}: expected {}", wanted.pid.value_or(0),
                           listed);
}

}  // namespace

Status DumpRequests::begin(WaitingClients::Id client, const Wanted& wanted, Instant until,
                           Instant now) {
  loop_thread_.check();
  Request request;
  request.client = client;
  request.until = std::min(until, now + kLimit);
  std::vector<const Worker*> meant;
  std::set<std::int64_t> known;
  context_.workers.for_each([&](const Worker& worker) {
    const auto rank = rank_of(worker);
    if (wanted.rank) {
      if (rank) {
        known.insert(*rank);
      }
    } else {
      known.insert(worker.process->pid);
    }
    const bool has_rank = !wanted.rank || rank == *wanted.rank;
    const bool has_pid = !wanted.pid || worker.process->pid == *wanted.pid;
    if (has_rank && has_pid) {
      meant.push_back(&worker);
    }
  });
  if (meant.empty()) {
    return failure(why_none(wanted, known));
  }
  std::ranges::sort(meant, {}, [](const Worker* worker) {
    const auto rank = rank_of(*worker);
    return std::tuple(!rank, rank.value_or(0), worker->process->pid);
  });
  request.omitted = meant.size() - std::min(meant.size(), kMaxWorkers);
  meant.resize(meant.size() - request.omitted);
  for (const Worker* const worker : meant) {
    auto dumped = std::make_shared<Dumped>();
    dumped->worker = WorkerIdentity::of(*worker);
    dumped->scopes = context_.scopes.open_scopes_of(*worker, kMaxScopes);
    dumped->python = context_.python_dump_of(*worker);
    request.workers.push_back(std::move(dumped));
  }
  requests_.push_back(std::move(request));
  return {};
}

void DumpRequests::withdraw(WaitingClients::Id client) {
  loop_thread_.check();
  std::erase_if(requests_, [client](const Request& each) { return each.client == client; });
}

Instant DumpRequests::advance(Instant now) {
  loop_thread_.check();
  Instant next = Instant::never();
  std::erase_if(requests_, [&](Request& request) {
    bool is_complete = true;
    for (const auto& dumped : request.workers) {
      if (now >= request.until || (dumped->collection && now >= dumped->until)) {
        finish(*dumped);
      }
      if (!dumped->is_done && !dumped->collection && collections() < kMaxCollections) {
        start(dumped, request.until, now);
      }
      is_complete = is_complete && dumped->is_done;
      next = std::min(next, dumped->collection ? dumped->until : Instant::never());
    }
    if (is_complete) {
      answers_.push_back({request.client, answer_of(request)});
    } else {
      next = std::min(next, request.until);
    }
    return is_complete;
  });
  return next;
}

void DumpRequests::start(const std::shared_ptr<Dumped>& dumped, Instant until, Instant now) {
  dumped->until = std::min(until, now + context_.evidence_timeout);
  dumped->collection =
      EvidenceCollection::start(context_.side_threads, dumped->worker.process,
                                {context_.level, dumped->until, dumped->python},
                                [weak = std::weak_ptr(dumped), token = collection_token_] {
                                  if (const auto waiting = weak.lock()) {
                                    finish(*waiting);
                                  }
                                });
}

void DumpRequests::finish(Dumped& dumped) {
  if (dumped.collection) {
    dumped.evidence = dumped.collection->take();
    dumped.collection.reset();
  }
  dumped.is_done = true;
}

std::string DumpRequests::answer_of(Request& request) {
  const Instant now = Instant::now();
  JsonWriter answer = begin_answer("done");
  answer.begin_array("workers");
  for (const auto& dumped : request.workers) {
    // An object of its own: what a list has room for depends on the size of the object.
    JsonWriter json;
    write_whose(json, dumped->worker);
    json.begin_array("open_scopes");
    for (const ScopeView& scope : dumped->scopes) {
      json.begin_object();
      write_scope(json, scope, now);
      json.end_object();
    }
    json.end_array();
    if (dumped->evidence) {
      write_evidence(json, *dumped->evidence);
    } else {
      json.field("missing", "there was no time for this worker");
    }
    answer.json_element(std::move(json).finish());
  }
  answer.end_array().field("omitted", request.omitted);
  return std::move(answer).finish();
}

}  // namespace filetimer
