// SPDX-License-Identifier: MIT
#include "timer_client/cli/expiry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "timer_client/cli/json_fields.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

constexpr std::size_t kIdsListed = 5;

// Keeps what an earlier record of this expiry has said.
void fill(std::string& place, std::string value) {
  place = place.empty() ? std::move(value) : place;
}
template <class Value>
void fill(std::optional<Value>& place, std::optional<Value> value) {
  place = place ? place : value;
}

std::int64_t count_at(dom::object object, std::string_view key) {
  return std::max<std::int64_t>(integer_at(object, key).value_or(0), 0);
}

void read_worker(dom::object record, Worker& worker) {
  fill(worker.host, text_at(record, "host"));
  fill(worker.comm, text_at(record, "comm"));
  fill(worker.cmdline, text_at(record, "cmdline"));
  fill(worker.job_id, text_at(record, "job_id"));
  fill(worker.pid, integer_at(record, "pid"));
  fill(worker.start_time, integer_at(record, "start_time"));
  fill(worker.uid, integer_at(record, "uid"));
  fill(worker.rank, integer_at(record, "rank"));
  fill(worker.local_rank, integer_at(record, "local_rank"));
}

std::vector<OpenScope> read_open_scopes(dom::object record) {
  std::vector<OpenScope> scopes;
  for (const dom::object scope : objects_at(record, "open_scopes")) {
    scopes.push_back({.pid = integer_at(scope, "pid"),
                      .rank = integer_at(scope, "rank"),
                      .tid = integer_at(scope, "tid"),
                      .comm = text_at(scope, "comm"),
                      .scope = text_at(scope, "scope"),
                      .elapsed_s = number_at(scope, "elapsed_s"),
                      .timeout_s = number_at(scope, "timeout_s"),
                      .remaining_s = number_at(scope, "remaining_s")});
  }
  return scopes;
}

std::vector<std::string> read_texts(dom::object record, std::string_view key) {
  std::vector<std::string> texts;
  for (const dom::element element : elements_at(record, key)) {
    if (std::string text = as_text(element); !text.empty()) {
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

void read_expired(dom::object record, Expiry& expiry) {
  expiry.has_verdict = true;
  expiry.timeout_s = number_at(record, "timeout_s");
  expiry.elapsed_s = number_at(record, "elapsed_s");
  expiry.overdue_ms = number_at(record, "overdue_ms");
  expiry.grace_s = number_at(record, "grace_s");
  expiry.tid = integer_at(record, "tid");
  expiry.deadline_mono_ns = integer_at(record, "deadline_mono_ns");
  expiry.open_scopes = read_open_scopes(record);
}

Incident read_incident(dom::object record) {
  return {.open_scopes = read_open_scopes(record),
          .workers = integer_at(record, "workers"),
          .omitted = count_at(record, "omitted")};
}

Evidence read_evidence(dom::object record) {
  Evidence evidence{.state = text_at(record, "state"),
                    .state_name = text_at(record, "state_name"),
                    .wchan = text_at(record, "wchan"),
                    .syscall = text_at(record, "syscall"),
                    .syscall_fd = text_at(record, "syscall_fd"),
                    .cpu_user_s = number_at(record, "cpu_user_s"),
                    .cpu_system_s = number_at(record, "cpu_system_s"),
                    .rss_bytes = number_at(record, "rss_bytes"),
                    .threads = {},
                    .threads_omitted = count_at(record, "threads_omitted"),
                    .children = {},
                    .devices = read_texts(record, "devices"),
                    .gathered_ms = number_at(record, "gathered_ms"),
                    .missing = text_at(record, "missing")};
  for (const dom::object thread : objects_at(record, "threads")) {
    evidence.threads.push_back({.tid = integer_at(thread, "tid"),
                                .comm = text_at(thread, "comm"),
                                .state = text_at(thread, "state"),
                                .wchan = text_at(thread, "wchan"),
                                .syscall = text_at(thread, "syscall"),
                                .syscall_fd = text_at(thread, "syscall_fd"),
                                .cpu_s = number_at(thread, "cpu_s"),
                                .stack = read_texts(thread, "stack")});
  }
  for (const dom::object child : objects_at(record, "children")) {
    evidence.children.push_back({.pid = integer_at(child, "pid"),
                                 .comm = text_at(child, "comm"),
                                 .state = text_at(child, "state")});
  }
  return evidence;
}

Outcome read_killed(dom::object record) {
  Outcome outcome{.verdict = text_at(record, "verdict"),
                  .reason = text_at(record, "reason"),
                  .signals = {},
                  .dead_after_ms = number_at(record, "dead_after_ms"),
                  .cancelled = read_texts(record, "cancelled")};
  for (const dom::object sent : objects_at(record, "signals")) {
    SignalSent signal{
        .name = text_at(sent, "name"), .mono_ns = integer_at(sent, "mono_ns"), .pids = {}};
    if (const Integer number = integer_at(sent, "signal"); signal.name.empty() && number) {
      signal.name = fmt::format("signal {}", *number);
    }
    for (const dom::element pid : elements_at(sent, "pids")) {
      if (const auto number = as_integer(pid)) {
        signal.pids.push_back(*number);
      }
    }
    outcome.signals.push_back(std::move(signal));
  }
  return outcome;
}

void read_record_of(const Record& record, dom::object object, Expiry& expiry) {
  read_worker(object, expiry.worker);
  fill(expiry.scope, record.scope);
  fill(expiry.incident_id, record.incident);
  if (record.event == "expired") {
    read_expired(object, expiry);
    expiry.time_us = record.time_us;
    expiry.mono_ns = record.mono_ns;
  } else if (record.event == "evidence") {
    expiry.evidence = read_evidence(object);
  } else if (record.event == "killed") {
    expiry.outcome = read_killed(object);
  } else if (record.event == "released_late") {
    expiry.late_release = {number_at(object, "late_ms"), text_at(object, "reason")};
  }
}

// The ids of expiries in the order in which they were first heard of.
std::vector<std::string> all_ids(const std::vector<Record>& records) {
  std::vector<std::string> ids;
  std::unordered_set<std::string_view> seen;
  for (const Record& record : records) {
    if (!record.id.empty() && seen.insert(record.id).second) {
      ids.push_back(record.id);
    }
  }
  return ids;
}

// The last few, the latest first.
std::string latest_of(const std::vector<std::string>& ids) {
  const std::size_t count = std::min(ids.size(), kIdsListed);
  const std::vector<std::string> latest(ids.rbegin(),
                                        ids.rbegin() + static_cast<std::ptrdiff_t>(count));
  return fmt::format("{}{}", fmt::join(latest, ", "), ids.size() > count ? ", ..." : "");
}

}  // namespace

Result<std::string> find_expiry(const std::vector<Record>& records, std::string_view wanted,
                                std::string_view where) {
  const std::vector<std::string> ids = all_ids(records);
  if (ids.empty()) {
    return failure(fmt::format("no expiry in {}", where));
  }
  if (wanted == "last") {
    const auto last = std::find_if(records.rbegin(), records.rend(), [](const Record& record) {
      return record.event == "expired" && !record.id.empty();
    });
    return last == records.rend() ? ids.back() : last->id;
  }
  std::vector<std::string> candidates;
  for (const std::string& id : ids) {
    if (id == wanted) {
      return id;
    }
    if (id.starts_with(wanted)) {
      candidates.push_back(id);
    }
  }
  if (candidates.empty()) {
    return failure(
        fmt::format("no expiry '{}' in {}; the latest: {}", wanted, where, latest_of(ids)));
  }
  if (candidates.size() > 1) {
    return failure(fmt::format("'{}' begins {} expiries in {}: {}", wanted, candidates.size(),
                               where, latest_of(candidates)));
  }
  return candidates[0];
}

Expiry gather_expiry(const std::vector<Record>& records, const std::string& id) {
  Expiry expiry;
  expiry.id = id;
  dom::parser parser;
  dom::object object;
  const auto parse = [&](const Record& record) {
    return parser.parse(record.raw).get_object().get(object) == simdjson::SUCCESS;
  };
  for (const Record& record : records) {
    if (record.id == id && parse(record)) {
      read_record_of(record, object, expiry);
    }
  }
  if (expiry.incident_id.empty()) {
    return expiry;
  }
  for (const Record& record : records) {
    if (record.incident != expiry.incident_id) {
      continue;
    }
    if (record.event == "incident" && parse(record)) {
      expiry.incident = read_incident(object);
    } else if (record.event == "expired") {
      expiry.fellows.push_back(
          {record.id, record.pid, record.rank, record.comm, record.deadline_mono_ns});
    }
  }
  const auto deadline = [](const Fellow& fellow) {
    return fellow.deadline_mono_ns.value_or(std::numeric_limits<std::int64_t>::max());
  };
  std::stable_sort(expiry.fellows.begin(), expiry.fellows.end(),
                   [&](const Fellow& a, const Fellow& b) { return deadline(a) < deadline(b); });
  return expiry;
}

}  // namespace filetimer::cli
