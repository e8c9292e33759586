// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/expiry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "common/json_fields.hpp"
#include "timer_client/cli/log/log_view.hpp"
#include "timer_client/cli/text/phrases.hpp"

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

void read_worker(dom::object record, Worker& worker) {
  fill(worker.host, text_at(record, "host"));
  fill(worker.comm, text_at(record, "comm"));
  fill(worker.cmdline, text_at(record, "cmdline"));
  fill(worker.job_id, text_at(record, "job_id"));
  fill(worker.step_id, text_at(record, "step_id"));
  fill(worker.pid, integer_at(record, "pid"));
  fill(worker.start_time, integer_at(record, "start_time"));
  fill(worker.uid, integer_at(record, "uid"));
  fill(worker.rank, integer_at(record, "rank"));
  fill(worker.local_rank, integer_at(record, "local_rank"));
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

Outcome read_killed(dom::object record) {
  Outcome outcome{.verdict = text_at(record, "verdict"),
                  .reason = text_at(record, "reason"),
                  .stuck = {text_at(record, "state"), text_at(record, "wchan"),
                            texts_at(record, "kernel_stack"), texts_at(record, "devices")},
                  .signals = {},
                  .dead_after_ms = number_at(record, "dead_after_ms"),
                  .cancelled = texts_at(record, "cancelled")};
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

// What the worker did at that moment, of a record that says so.
std::string doing_then(const Record& record, dom::object object) {
  const std::string doing = text_at(object, "doing");
  return !doing.empty() || record.wchan.empty()
             ? doing
             : fmt::format("{} in {}", record.state_name, record.wchan);
}

bool is_before_a_verdict(std::string_view event) {
  return event == "warned" || event == "deferred";
}

// Such a record names no expiry. It is of this one when it is of this worker (or of the whole
// server) and of this scope (or of none), and came while the scope was open.
bool came_before(const Record& record, dom::object object, const Expiry& expiry) {
  const Worker& worker = expiry.worker;
  if (!is_before_a_verdict(record.event) || record.host != worker.host ||
      (record.pid &&
       (record.pid != worker.pid || integer_at(object, "start_time") != worker.start_time)) ||
      (!record.scope.empty() && record.scope != expiry.scope) || !record.mono_ns ||
      !expiry.mono_ns || !expiry.elapsed_s) {
    return false;
  }
  const double before_s =
      (static_cast<double>(*expiry.mono_ns) - static_cast<double>(*record.mono_ns)) / 1e9;
  return before_s >= 0 && before_s <= *expiry.elapsed_s;
}

// Whether `id` is an expiry of the same worker in the same incident.
bool is_of_this_worker(const std::string& id, const Expiry& expiry) {
  return expiry.worker.pid &&
         std::any_of(expiry.hang.expired.begin(), expiry.hang.expired.end(),
                     [&](const Fellow& fellow) {
                       return fellow.id == id && fellow.incident == expiry.incident_id &&
                              fellow.worker.host.empty() && fellow.worker.pid == expiry.worker.pid;
                     });
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
  } else if (record.event == "hook") {
    expiry.steps.push_back({record.mono_ns, record.event, in_few_words(record)});
  }
}

// The last few, the latest first.
std::string latest_of(const std::vector<const ExpiryKey*>& keys) {
  std::vector<std::string> latest;
  for (auto key = keys.rbegin(); key != keys.rend() && latest.size() < kIdsListed; ++key) {
    latest.push_back((*key)->id);
  }
  return fmt::format("{}{}", fmt::join(latest, ", "), keys.size() > latest.size() ? ", ..." : "");
}

}  // namespace

void ExpiryIds::take(const Record& record) {
  if (record.id.empty()) {
    return;
  }
  const bool is_new = known_.insert(fmt::format("{} {}", record.host, record.id)).second;
  known_.insert(" " + record.id);  // what names no host is of the one that has it
  if (is_new) {
    keys_.push_back({record.host, record.id, record.pid, record.time_us});
    last_ = record.event == "expired" ? keys_.size() - 1 : last_;
  }
}

Result<ExpiryKey> ExpiryIds::find(std::string_view wanted, const std::optional<std::string>& host,
                                  std::string_view where) const {
  const std::string place = host ? fmt::format("{}, host '{}'", where, *host) : std::string(where);
  std::vector<const ExpiryKey*> all;
  std::vector<const ExpiryKey*> whole;
  std::vector<const ExpiryKey*> begun;
  for (const ExpiryKey& key : keys_) {
    if (!host || key.host == *host) {
      all.push_back(&key);
      (key.id == wanted ? whole : begun).push_back(&key);
    }
  }
  std::erase_if(begun, [&](const ExpiryKey* key) { return !key->id.starts_with(wanted); });
  if (all.empty()) {
    return failure(fmt::format("no expiry in {}", place));
  }
  if (wanted == "last") {
    const bool is_here = last_ && (!host || keys_[*last_].host == *host);
    return is_here ? keys_[*last_] : *all.back();
  }
  if (whole.size() > 1) {
    std::vector<std::string> hosts;
    for (const ExpiryKey* key : whole) {
      hosts.push_back(key->host);
    }
    return failure(fmt::format("'{}' is an expiry of {} hosts in {}: {}; choose one with --host",
                               wanted, whole.size(), place, listed(hosts, kIdsListed)));
  }
  const std::vector<const ExpiryKey*>& candidates = whole.empty() ? begun : whole;
  if (candidates.empty()) {
    return failure(
        fmt::format("no expiry '{}' in {}; the latest: {}", wanted, place, latest_of(all)));
  }
  if (candidates.size() > 1) {
    return failure(fmt::format("'{}' begins {} expiries in {}: {}", wanted, candidates.size(),
                               place, latest_of(candidates)));
  }
  return *candidates[0];
}

bool is_of(const Record& record, const ExpiryKey& expiry) {
  return record.id == expiry.id && (record.host.empty() || record.host == expiry.host);
}

bool concerns(const Record& record, const ExpiryKey& expiry) {
  if (is_of(record, expiry)) {
    return true;
  }
  const bool is_of_host = record.host == expiry.host;
  if (is_of_host && is_before_a_verdict(record.event)) {
    return !record.pid || record.pid == expiry.pid;
  }
  // Twice the time: the incident may have begun that long before this expiry of it.
  constexpr std::int64_t kNearUs = 2 * (kSameHangUs + kClocksUs);
  if (record.time_us && expiry.time_us && std::abs(*record.time_us - *expiry.time_us) > kNearUs) {
    return false;
  }
  return record.event == "incident" || record.event == "expired" ||
         (is_of_host && record.event == "evidence" && record.pid == expiry.pid);
}

Expiry gather_expiry(const std::vector<Record>& records, const ExpiryKey& key) {
  Expiry expiry;
  expiry.id = key.id;
  dom::parser parser;
  dom::object object;
  const auto parse = [&](const Record& record) {
    return parser.parse(record.raw).get_object().get(object) == simdjson::SUCCESS;
  };
  std::string job_id;  // as the verdict has it: later records may know more
  for (const Record& record : records) {
    if (is_of(record, key) && parse(record)) {
      read_record_of(record, object, expiry);
      job_id = record.event == "expired" || !expiry.has_verdict ? record.job_id : job_id;
    }
  }
  for (const Record& record : records) {
    if (is_before_a_verdict(record.event) && parse(record) && came_before(record, object, expiry)) {
      const std::string doing = doing_then(record, object);
      expiry.steps.push_back({record.mono_ns, record.event,
                              in_few_words(record) + (doing.empty() ? "" : "; it was " + doing)});
    }
  }
  if (!expiry.incident_id.empty()) {
    expiry.hang = gather_hang(records, expiry.worker.host, expiry.incident_id, job_id);
  }
  // Of scopes of one worker that expired together the first one's records say what all share.
  for (const Record& record : records) {
    if (record.host == key.host && record.id != key.id && is_of_this_worker(record.id, expiry) &&
        parse(record)) {
      if (record.event == "evidence" && !expiry.evidence) {
        expiry.evidence = read_evidence(object);
      } else if (record.event == "expired" && expiry.open_scopes.empty()) {
        expiry.open_scopes = read_open_scopes(object);
      }
    }
  }
  return expiry;
}

}  // namespace filetimer::cli
