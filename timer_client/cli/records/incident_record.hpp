// What the log says about hangs rather than about one expiry: the `incident` records, which of them
// belong together, and who expired in them. A training that hangs writes several: one a host, and
// on one host another one when ranks expire later than those that they waited for.
// What a record lacks is empty. Texts are as the records have them: printing makes them safe.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "timer_client/cli/records/log_reader.hpp"

namespace simdjson::dom {
class object;
}

namespace filetimer::cli {

struct OpenScope {
  Integer pid;
  Integer rank;
  Integer tid;
  std::string comm;
  std::string scope;
  Number elapsed_s;
  Number timeout_s;
  Number remaining_s;
};

struct WorkerAt {
  std::string host;  // empty: Hang::host
  Integer pid;
  Integer rank;
  std::string comm;
};

// One that expired in an incident.
struct Fellow {
  std::string id;
  std::string incident;
  std::string scope;
  WorkerAt worker;
  Integer deadline_us;  // wall clock: the only one that hosts share
};

struct Incident {
  std::string id;
  std::string host;
  Integer time_us;
  std::vector<OpenScope> open_scopes;
  std::vector<WorkerAt> in_no_scope;
  std::int64_t workers = 0;
  std::int64_t omitted = 0;
};

// A host whose clock is not where those of most others are.
struct ClockApart {
  std::string host;
  std::string scope;  // the workers of all hosts are taken to have entered it together
  std::int64_t ahead_us = 0;
};

// Incidents of one job this close together are one hang: the deadlines of those who wait for each
// other differ by less than this, or nobody would take the one for the cause of the other.
inline constexpr std::int64_t kSameHangUs = 60'000'000;
// How far the clocks of two hosts may be apart that are kept by NTP or PTP, and then some.
inline constexpr std::int64_t kClocksUs = 1'000'000;

// An incident and what happened around it. Times of hosts in `clocks` are given as most other
// hosts' clocks would have had them.
struct Hang {
  std::string host;  // the one that needs no name; empty: all are named
  std::string job_id;
  std::optional<Incident> incident;
  std::vector<Incident> elsewhere;  // of the same job, on other hosts, at about the same time
  std::vector<Fellow> expired;      // in all of these, the first to expire first
  std::optional<Fellow> before;     // the first to expire on this host shortly before the incident
  std::vector<ClockApart> clocks;
  std::int64_t clocks_us = kClocksUs;  // how far other clocks may be apart
};

// Of the incident `id` of `host`, as seen from there. `records` in their order.
Hang gather_hang(const std::vector<Record>& records, const std::string& host,
                 const std::string& id);
// Of the incident whose deadline came first, as seen from nowhere. `records` are of one hang.
Hang gather_whole_hang(const std::vector<Record>& records, std::int64_t clocks_us);

// Of an `incident` or an `expired` record.
std::vector<OpenScope> read_open_scopes(const simdjson::dom::object& record);

}  // namespace filetimer::cli
