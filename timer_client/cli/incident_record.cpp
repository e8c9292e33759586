// SPDX-License-Identifier: MIT
#include "timer_client/cli/incident_record.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "timer_client/src/json_fields.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

// Incidents of one job this close together are one hang: the deadlines of those who wait for each
// other differ by less than this, or nobody would take the one for the cause of the other.
constexpr std::int64_t kSameHangUs = 60'000'000;

Incident read_incident(const Record& record, dom::object object) {
  Incident incident{.id = record.incident,
                    .host = record.host,
                    .time_us = record.time_us,
                    .open_scopes = read_open_scopes(object),
                    .in_no_scope = {},
                    .workers = count_at(object, "workers"),
                    .omitted = count_at(object, "omitted")};
  for (const dom::object worker : objects_at(object, "in_no_scope")) {
    incident.in_no_scope.push_back(
        {{}, integer_at(worker, "pid"), integer_at(worker, "rank"), text_at(worker, "comm")});
  }
  return incident;
}

// The clock of a record and of its deadline are one, so the difference holds on any clock.
Integer deadline_us(const Record& record) {
  if (!record.time_us || !record.mono_ns || !record.deadline_mono_ns) {
    return record.time_us;
  }
  constexpr std::int64_t kFarNs = std::int64_t{1} << 61;  // a record may hold any number
  const std::int64_t mono = std::clamp(*record.mono_ns, -kFarNs, kFarNs);
  const std::int64_t deadline = std::clamp(*record.deadline_mono_ns, -kFarNs, kFarNs);
  return *record.time_us - (mono - deadline) / 1000;
}

// What is known of an incident without having read its long record.
struct Outline {
  std::string id;
  std::string host;
  std::string job_id;
  Integer time_us;
};

std::vector<Outline> outlines(const std::vector<Record>& records) {
  std::vector<Outline> all;
  std::map<std::string, std::size_t> index;
  for (const Record& record : records) {
    if (record.incident.empty() || (record.event != "incident" && record.event != "expired")) {
      continue;
    }
    const auto [at, is_new] = index.try_emplace(record.incident, all.size());
    if (is_new) {
      all.push_back({record.incident, record.host, record.job_id, record.time_us});
    }
    Outline& outline = all[at->second];
    outline.job_id = outline.job_id.empty() ? record.job_id : outline.job_id;
  }
  return all;
}

// After our incident's time if that is positive; nothing when they are too far apart.
Integer apart_us(const Outline& ours, const Outline& other) {
  if (other.id == ours.id || other.job_id != ours.job_id || !ours.time_us || !other.time_us) {
    return std::nullopt;
  }
  const std::int64_t apart = *other.time_us - *ours.time_us;
  return std::abs(apart) <= kSameHangUs ? Integer(apart) : std::nullopt;
}

// The one of each other host that is nearest in time.
std::vector<Outline> related_elsewhere(const std::vector<Outline>& all, const Outline& ours) {
  std::map<std::string, std::pair<std::int64_t, const Outline*>> nearest;
  for (const Outline& other : all) {
    const Integer apart = other.host == ours.host ? std::nullopt : apart_us(ours, other);
    if (apart) {
      const std::pair candidate(std::abs(*apart), &other);
      const auto [at, is_new] = nearest.try_emplace(other.host, candidate);
      if (!is_new && candidate.first < at->second.first) {
        at->second = candidate;
      }
    }
  }
  std::vector<Outline> related;
  for (const auto& [host, found] : nearest) {
    related.push_back(*found.second);
  }
  return related;
}

}  // namespace

std::vector<OpenScope> read_open_scopes(const dom::object& record) {
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

Hang gather_hang(const std::vector<Record>& records, const std::string& id) {
  Hang hang;
  const std::vector<Outline> all = outlines(records);
  const auto ours =
      std::find_if(all.begin(), all.end(), [&](const Outline& o) { return o.id == id; });
  if (ours == all.end()) {
    return hang;
  }
  const std::vector<Outline> elsewhere = related_elsewhere(all, *ours);
  const auto is_taken = [&](const std::string& incident) {
    return incident == id || std::any_of(elsewhere.begin(), elsewhere.end(),
                                         [&](const Outline& o) { return o.id == incident; });
  };
  std::vector<std::string> before;  // incidents of this host
  for (const Outline& other : all) {
    if (other.host == ours->host && apart_us(*ours, other).value_or(0) < 0) {
      before.push_back(other.id);
    }
  }
  dom::parser parser;
  dom::object object;
  for (const Record& record : records) {
    const bool taken = !record.incident.empty() && is_taken(record.incident);
    if (record.event == "expired") {
      Fellow fellow{
          record.id,
          record.incident,
          record.scope,
          {record.host == ours->host ? "" : record.host, record.pid, record.rank, record.comm},
          deadline_us(record)};
      if (taken) {
        hang.expired.push_back(std::move(fellow));
      } else if (std::find(before.begin(), before.end(), record.incident) != before.end() &&
                 (!hang.before || fellow.deadline_us < hang.before->deadline_us)) {
        hang.before = std::move(fellow);
      }
    } else if (taken && record.event == "incident" &&
               parser.parse(record.raw).get_object().get(object) == simdjson::SUCCESS) {
      Incident incident = read_incident(record, object);
      if (record.incident == id) {
        hang.incident = std::move(incident);
      } else {
        hang.elsewhere.push_back(std::move(incident));
      }
    }
  }
  const auto deadline = [](const Fellow& fellow) {
    return fellow.deadline_us.value_or(std::numeric_limits<std::int64_t>::max());
  };
  std::stable_sort(hang.expired.begin(), hang.expired.end(),
                   [&](const Fellow& a, const Fellow& b) { return deadline(a) < deadline(b); });
  return hang;
}

}  // namespace filetimer::cli
