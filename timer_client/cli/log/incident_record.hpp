// An `incident` record: where the workers of one host were when the first of some of them expired.
// What a record lacks is empty. Texts are as the records have them: printing makes them safe.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "timer_client/cli/log/log_reader.hpp"

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

// Of the workers of one job only: those of another wait for nobody of this one.
struct Incident {
  std::string id;
  std::string host;
  Integer time_us;
  std::vector<OpenScope> open_scopes;
  std::vector<WorkerAt> in_no_scope;
  std::int64_t unlisted = 0;  // workers of whom the record says no more, or not whose they are
  std::int64_t omitted = 0;   // open scopes
  bool tells_jobs = false;    // else some may be of another one
};

// The jobs of workers, by their pids, as far as other records of this host tell them.
using JobsOfPids = std::map<std::int64_t, std::string>;

// Nothing when `record` cannot be read. A worker whose job is not told counts as one of `job_id`
// where the record tells no worker's.
std::optional<Incident> read_incident(const Record& record, const std::string& job_id,
                                      const JobsOfPids& jobs);

// Of an `expired` record.
std::vector<OpenScope> read_open_scopes(const simdjson::dom::object& record);

}  // namespace filetimer::cli
