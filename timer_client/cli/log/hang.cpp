// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/hang.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "timer_client/cli/log/clock_differences.hpp"

namespace filetimer::cli {
namespace {

using Records = std::vector<const Record*>;

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

// When the scope was opened that expired.
Integer entered_us(const Record& record) {
  constexpr double kFarS = 1e9;
  const Integer deadline = deadline_us(record);
  const double before_s = record.elapsed_s.value_or(kFarS) - record.overdue_ms.value_or(0) / 1e3;
  return deadline && std::abs(before_s) < kFarS
             ? Integer(*deadline - static_cast<std::int64_t>(before_s * 1e6))
             : std::nullopt;
}

Integer least(const Integer& a, const Integer& b) {
  return !a || (b && *b < *a) ? b : a;
}

// What happened to the job in one incident of one machine.
struct Share {
  std::string machine;
  std::string host;  // its name, no other machine's here
  std::string incident;
  Integer time_us;
  Integer deadline_us;  // the first one
  Integer entered_us;   // likewise
  Records expired;
};

// In the order of the records. One that names no incident is a share of its own.
std::vector<Share> shares_of(const std::string& job_id, const Records& records) {
  std::vector<Share> all;
  std::map<std::pair<std::string, std::string>, std::size_t> index;
  std::map<std::string, std::set<std::string>> machines;  // by host
  for (const Record* record : records) {
    if (record->event != "expired" || record->job_id != job_id) {
      continue;
    }
    const std::string machine = machine_of(*record);
    machines[record->host].insert(machine);
    const auto [at, is_new] = index.try_emplace({machine, record->incident}, all.size());
    if (is_new || record->incident.empty()) {
      at->second = all.size();
      all.push_back({machine, record->host, record->incident, record->time_us, {}, {}, {}});
    }
    Share& share = all[at->second];
    share.deadline_us = least(share.deadline_us, deadline_us(*record));
    share.entered_us = least(share.entered_us, entered_us(*record));
    share.expired.push_back(record);
  }
  for (Share& share : all) {
    if (machines[share.host].size() > 1) {
      constexpr std::size_t kBootShown = 8;
      share.host += fmt::format(" (boot {})", share.expired.front()->boot_id.substr(0, kBootShown));
    }
  }
  return all;
}

bool is_near(const Share& a, const Share& b, std::int64_t clocks_us) {
  const std::int64_t most = kSameHangUs + (a.machine == b.machine ? 0 : clocks_us);
  return a.time_us && b.time_us && std::abs(*a.time_us - *b.time_us) <= most;
}

bool is_after(const Share& later, const Share& earlier, std::int64_t doubt_us) {
  return later.entered_us && earlier.deadline_us &&
         *later.entered_us - *earlier.deadline_us > doubt_us;
}

// Whether those of neither entered their scopes only after the others had expired: then a run of
// the job has ended between them.
bool is_one_hang(const Share& a, const Share& b, const Hang& hang) {
  return !is_after(a, b, hang.doubt_us(b.host, a.host)) &&
         !is_after(b, a, hang.doubt_us(a.host, b.host));
}

// The share of each other machine that is nearest in time.
std::map<std::string, const Share*> nearest_elsewhere(const std::vector<Share>& all,
                                                      const Share& ours, std::int64_t clocks_us) {
  std::map<std::string, const Share*> nearest;
  const auto apart = [&](const Share& share) { return std::abs(*share.time_us - *ours.time_us); };
  for (const Share& share : all) {
    if (share.machine != ours.machine && is_near(share, ours, clocks_us)) {
      const auto [at, is_new] = nearest.try_emplace(share.machine, &share);
      at->second = is_new || apart(share) < apart(*at->second) ? &share : at->second;
    }
  }
  return nearest;
}

// What is asked of all records for each share.
struct Index {
  std::map<std::pair<std::string, std::string>, const Record*> incidents;  // by machine and id
  std::map<std::string, JobsOfPids> jobs;                                  // by machine

  explicit Index(const Records& records) {
    for (const Record* record : records) {
      if (record->event == "incident" && !record->incident.empty()) {
        incidents.try_emplace({machine_of(*record), record->incident}, record);
      } else if (record->event == "expired" && record->pid) {
        jobs[machine_of(*record)][*record->pid] = record->job_id;
      }
    }
  }

  std::optional<Incident> incident_of(const Share& share, const std::string& job_id) {
    const auto found = incidents.find({share.machine, share.incident});
    std::optional<Incident> incident;
    if (found != incidents.end()) {
      incident = read_incident(*found->second, job_id, jobs[share.machine]);
    }
    if (incident) {
      incident->host = share.host;
    }
    return incident;
  }
};

Fellow fellow_of(const Record& record, const std::string& host, const Hang& hang) {
  return {record.id,
          record.incident,
          record.scope,
          {host == hang.host ? "" : host, record.pid, record.rank, record.comm},
          deadline_us(record)};
}

void find_entries_apart(Hang& hang) {
  std::vector<const Incident*> incidents;
  if (hang.incident) {
    incidents.push_back(&*hang.incident);
  }
  for (const Incident& incident : hang.elsewhere) {
    incidents.push_back(&incident);
  }
  hang.entries = entries_apart(incidents, hang.clocks_us);
}

// Fills `hang`, whose host, job and clocks are set. Takes of each machine one share, and of
// `is_whole` also the others of that hang. Returns what it has told of.
std::set<const Record*> gather(const Records& records, const std::vector<Share>& all,
                               const Share& ours, bool is_whole, Hang& hang) {
  std::map<std::string, const Share*> chosen = nearest_elsewhere(all, ours, hang.clocks_us);
  Index index(records);
  hang.incident = index.incident_of(ours, hang.job_id);
  for (const auto& [machine, share] : chosen) {
    if (auto incident = index.incident_of(*share, hang.job_id)) {
      hang.elsewhere.push_back(std::move(*incident));
    }
  }
  find_entries_apart(hang);
  for (auto at = chosen.begin(); at != chosen.end();) {
    const std::string host = at->second->host;
    if (is_one_hang(ours, *at->second, hang)) {
      ++at;
      continue;
    }
    std::erase_if(hang.elsewhere, [&](const Incident& incident) { return incident.host == host; });
    std::erase_if(hang.entries, [&](const EntryApart& entry) { return entry.host == host; });
    at = chosen.erase(at);
  }
  chosen.emplace(ours.machine, &ours);
  std::set<const Record*> told;
  for (const Share& share : all) {
    const auto at = chosen.find(share.machine);
    const bool is_chosen = at != chosen.end() && at->second == &share;
    if (at == chosen.end() || !(is_chosen || (is_near(share, ours, hang.clocks_us) &&
                                              is_one_hang(share, *at->second, hang)))) {
      continue;
    }
    const bool taken = is_chosen || is_whole;
    const bool before = share.machine == ours.machine && share.time_us < ours.time_us;
    for (const Record* record : share.expired) {
      Fellow fellow = fellow_of(*record, share.host, hang);
      if (taken) {
        hang.expired.push_back(std::move(fellow));
        told.insert(record);
      } else if (before && (!hang.before || fellow.deadline_us < hang.before->deadline_us)) {
        hang.before = std::move(fellow);
      }
    }
  }
  const auto deadline = [](const Fellow& fellow) {
    return fellow.deadline_us.value_or(std::numeric_limits<std::int64_t>::max());
  };
  std::stable_sort(hang.expired.begin(), hang.expired.end(),
                   [&](const Fellow& a, const Fellow& b) { return deadline(a) < deadline(b); });
  return told;
}

}  // namespace

std::int64_t Hang::doubt_us(const std::string& earlier, const std::string& later) const {
  const auto later_than_most = [&](const std::string& name) {
    const auto at = std::find_if(entries.begin(), entries.end(), [&](const EntryApart& entry) {
      return entry.host == (name.empty() ? host : name);
    });
    return at == entries.end() ? 0 : at->later_us;
  };
  if (earlier == later) {
    return 0;
  }
  return clocks_us + std::max<std::int64_t>(later_than_most(later), 0) +
         std::max<std::int64_t>(-later_than_most(earlier), 0);
}

std::string machine_of(const Record& record) {
  return record.host + "\n" + record.boot_id;
}

Hang gather_hang(const std::vector<Record>& records, const std::string& host, const std::string& id,
                 const std::string& job_id) {
  Records pointers;
  const Record* any = nullptr;  // of the incident
  for (const Record& record : records) {
    pointers.push_back(&record);
    const bool is_ours = record.incident == id && record.host == host;
    any = is_ours && any == nullptr ? &record : any;
  }
  Hang hang;
  hang.job_id = job_id;
  if (any == nullptr) {
    hang.host = host;
    return hang;
  }
  std::vector<Share> all = shares_of(job_id, pointers);
  const auto find_ours = [&] {
    return std::find_if(all.begin(), all.end(), [&](const Share& share) {
      return share.incident == id && share.machine == machine_of(*any);
    });
  };
  auto ours = find_ours();
  if (ours == all.end()) {  // its verdict is not in these logs
    ours = all.insert(all.end(), {machine_of(*any), host, id, any->time_us, {}, {}, {}});
  }
  hang.host = ours->host;
  gather(pointers, all, *ours, false, hang);
  return hang;
}

WholeHang gather_whole_hang(const std::vector<const Record*>& records, const std::string& job_id,
                            std::int64_t clocks_us) {
  const std::vector<Share> all = shares_of(job_id, records);
  const auto first = std::min_element(all.begin(), all.end(), [](const Share& a, const Share& b) {
    return a.deadline_us && (!b.deadline_us || *a.deadline_us < *b.deadline_us);
  });
  WholeHang whole;
  if (first == all.end()) {
    return whole;
  }
  Hang& hang = whole.hang;
  hang.job_id = job_id;
  hang.clocks_us = clocks_us;
  whole.expired = gather(records, all, *first, true, hang);
  if (!hang.incident && !hang.elsewhere.empty()) {
    const auto earliest = std::min_element(
        hang.elsewhere.begin(), hang.elsewhere.end(),
        [](const Incident& a, const Incident& b) { return a.time_us < b.time_us; });
    hang.incident = std::move(*earliest);
    hang.elsewhere.erase(earliest);
  }
  return whole;
}

}  // namespace filetimer::cli
