// SPDX-License-Identifier: MIT
#include "timer_client/cli/records/incident_record.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "timer_client/cli/records/clock_differences.hpp"
#include "timer_client/src/json_fields.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

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
  std::map<std::pair<std::string, std::string>, std::size_t> index;
  for (const Record& record : records) {
    if (record.incident.empty() || (record.event != "incident" && record.event != "expired")) {
      continue;
    }
    const auto [at, is_new] = index.try_emplace({record.host, record.incident}, all.size());
    if (is_new) {
      all.push_back({record.incident, record.host, record.job_id, record.time_us});
    }
    Outline& outline = all[at->second];
    outline.job_id = outline.job_id.empty() ? record.job_id : outline.job_id;
  }
  return all;
}

bool is_same(const Outline& a, const Outline& b) {
  return a.id == b.id && a.host == b.host;
}

// After our incident's time if that is positive; nothing when they are too far apart.
Integer apart_us(const Outline& ours, const Outline& other, std::int64_t clocks_us) {
  if (is_same(ours, other) || other.job_id != ours.job_id || !ours.time_us || !other.time_us) {
    return std::nullopt;
  }
  const std::int64_t apart = *other.time_us - *ours.time_us;
  const std::int64_t most = kSameHangUs + (other.host == ours.host ? 0 : clocks_us);
  return std::abs(apart) <= most ? Integer(apart) : std::nullopt;
}

// The one of each other host that is nearest in time.
std::vector<Outline> related_elsewhere(const std::vector<Outline>& all, const Outline& ours,
                                       std::int64_t clocks_us) {
  std::map<std::string, std::pair<std::int64_t, const Outline*>> nearest;
  for (const Outline& other : all) {
    const Integer apart = other.host == ours.host ? std::nullopt : apart_us(ours, other, clocks_us);
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

// Puts the times of the hosts whose clocks are apart to where most others are.
void take_as_most_have_it(Hang& hang) {
  std::vector<const Incident*> incidents;
  for (const Incident& incident : hang.elsewhere) {
    incidents.push_back(&incident);
  }
  if (hang.incident) {
    incidents.push_back(&*hang.incident);
  }
  hang.clocks = clocks_apart(incidents, hang.clocks_us);
  std::map<std::string, std::int64_t> ahead;
  for (const ClockApart& clock : hang.clocks) {
    ahead[clock.host] = clock.ahead_us;
  }
  const auto correct = [&ahead](const std::string& host, Integer& time_us) {
    const auto at = ahead.find(host);
    if (time_us && at != ahead.end()) {
      *time_us -= at->second;
    }
  };
  const auto correct_fellow = [&](Fellow& fellow) {
    correct(fellow.worker.host.empty() ? hang.host : fellow.worker.host, fellow.deadline_us);
  };
  for (Incident& incident : hang.elsewhere) {
    correct(incident.host, incident.time_us);
  }
  if (hang.incident) {
    correct(hang.incident->host, hang.incident->time_us);
  }
  std::for_each(hang.expired.begin(), hang.expired.end(), correct_fellow);
  if (hang.before) {
    correct_fellow(*hang.before);
  }
}

// `nameless`: the host that needs no name.
Hang gather(const std::vector<Record>& records, const std::string& host, const std::string& id,
            const std::string& nameless, std::int64_t clocks_us) {
  Hang hang;
  hang.host = nameless;
  hang.clocks_us = clocks_us;
  const std::vector<Outline> all = outlines(records);
  const auto ours = std::find_if(all.begin(), all.end(),
                                 [&](const Outline& o) { return o.id == id && o.host == host; });
  if (ours == all.end()) {
    return hang;
  }
  hang.job_id = ours->job_id;
  const std::vector<Outline> elsewhere = related_elsewhere(all, *ours, clocks_us);
  const auto is_ours = [&](const Record& record) {
    return record.incident == id && record.host == host;
  };
  std::set<std::pair<std::string, std::string>> taken_incidents{{host, id}};
  for (const Outline& other : elsewhere) {
    taken_incidents.emplace(other.host, other.id);
  }
  std::vector<std::string> before;  // incidents of this host
  for (const Outline& other : all) {
    if (other.host == ours->host && apart_us(*ours, other, clocks_us).value_or(0) < 0) {
      before.push_back(other.id);
    }
  }
  dom::parser parser;
  dom::object object;
  for (const Record& record : records) {
    const bool taken =
        !record.incident.empty() && taken_incidents.contains({record.host, record.incident});
    if (record.event == "expired") {
      Fellow fellow{
          record.id,
          record.incident,
          record.scope,
          {record.host == nameless ? "" : record.host, record.pid, record.rank, record.comm},
          deadline_us(record)};
      if (taken) {
        hang.expired.push_back(std::move(fellow));
      } else if (record.host == host &&
                 std::find(before.begin(), before.end(), record.incident) != before.end() &&
                 (!hang.before || fellow.deadline_us < hang.before->deadline_us)) {
        hang.before = std::move(fellow);
      }
    } else if (taken && record.event == "incident" &&
               parser.parse(record.raw).get_object().get(object) == simdjson::SUCCESS) {
      Incident incident = read_incident(record, object);
      if (is_ours(record)) {
        hang.incident = std::move(incident);
      } else {
        hang.elsewhere.push_back(std::move(incident));
      }
    }
  }
  take_as_most_have_it(hang);
  const auto deadline = [](const Fellow& fellow) {
    return fellow.deadline_us.value_or(std::numeric_limits<std::int64_t>::max());
  };
  std::stable_sort(hang.expired.begin(), hang.expired.end(),
                   [&](const Fellow& a, const Fellow& b) { return deadline(a) < deadline(b); });
  return hang;
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

Hang gather_hang(const std::vector<Record>& records, const std::string& host,
                 const std::string& id) {
  return gather(records, host, id, host, kClocksUs);
}

Hang gather_whole_hang(const std::vector<Record>& records, std::int64_t clocks_us) {
  const Record* first = nullptr;
  for (const Record& record : records) {
    if (record.event == "expired" &&
        (first == nullptr || deadline_us(record) < deadline_us(*first))) {
      first = &record;
    }
  }
  if (first == nullptr) {
    return {};
  }
  Hang hang = gather(records, first->host, first->incident, {}, clocks_us);
  // Another one is the first where the clock of that host was behind.
  if (!hang.expired.empty() && hang.expired[0].worker.host != first->host) {
    const Fellow other = hang.expired[0];
    hang = gather(records, other.worker.host, other.incident, {}, clocks_us);
  }
  return hang;
}

}  // namespace filetimer::cli
