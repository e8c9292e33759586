// A hang: the incidents of one job, on whatever host, that are of one moment, and who expired in
// them. A training that hangs has several: one a host, and on one host another one when ranks
// expire later than those that they waited for.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "timer_client/cli/log/incident_record.hpp"
#include "timer_client/cli/log/log_reader.hpp"

namespace filetimer::cli {

// One that expired.
struct Fellow {
  std::string id;
  std::string incident;
  std::string scope;
  WorkerAt worker;
  Integer deadline_us;  // wall clock: the only one that hosts share
};

// A host whose workers entered an outer scope at another time than those of most hosts: they did,
// or its clock is off by as much. Nothing tells which.
struct EntryApart {
  std::string host;
  std::string scope;
  std::int64_t later_us = 0;
};

// Incidents of one job this close together may be one hang: the deadlines of those who wait for
// each other differ by less than this, or nobody would take the one for the cause of the other.
inline constexpr std::int64_t kSameHangUs = 60'000'000;
// How far the clocks of two hosts may be apart that are kept by NTP or PTP, and then some.
inline constexpr std::int64_t kClocksUs = 1'000'000;

// Times are as the hosts' own clocks had them.
struct Hang {
  std::string host;  // the one that needs no name; empty: all are named
  std::string job_id;
  std::optional<Incident> incident;  // the moment that is told of
  std::vector<Incident> elsewhere;   // on other hosts, at about the same time
  std::vector<Fellow> expired;       // the first to expire first
  std::optional<Fellow> before;      // the first to expire on this host shortly before the incident
  std::vector<EntryApart> entries;
  std::int64_t clocks_us = kClocksUs;  // how far other clocks may be apart

  // By how much the clocks of two hosts may deceive about which of two events was first, when that
  // of `earlier` seems to be. On one host not at all.
  [[nodiscard]] std::int64_t doubt_us(const std::string& earlier, const std::string& later) const;
};

// One boot of one host. Hosts may share a name ("localhost"), not this.
std::string machine_of(const Record& record);

// Of the incident `id` of `host` as it was for the job `job_id`, as seen from there. `records` in
// their order, those of other jobs too.
Hang gather_hang(const std::vector<Record>& records, const std::string& host, const std::string& id,
                 const std::string& job_id);

struct WholeHang {
  Hang hang;
  std::set<const Record*> expired;  // those of `records` that it tells of
};

// Of the job's first expiry in `records`, as seen from nowhere. Who entered the scope after that is
// of a later hang: the job has been started again. Empty when nobody expired.
WholeHang gather_whole_hang(const std::vector<const Record*>& records, const std::string& job_id,
                            std::int64_t clocks_us);

}  // namespace filetimer::cli
