// Everything that the log says about one expiry, taken together from its records: `expired`,
// `evidence`, `killed`, `released_late`, and the `incident` that it was part of.
// What a record lacks is empty. Texts are as the records have them: printing makes them safe.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.hpp"
#include "timer_client/cli/log_reader.hpp"

namespace filetimer::cli {

using Integer = std::optional<std::int64_t>;
using Number = std::optional<double>;

struct Worker {
  std::string host;
  std::string comm;
  std::string cmdline;
  std::string job_id;
  Integer pid;
  Integer start_time;  // clock ticks since boot
  Integer uid;
  Integer rank;
  Integer local_rank;
};

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

// An expiry of the same incident.
struct Fellow {
  std::string id;
  Integer pid;
  Integer rank;
  std::string comm;
  Integer deadline_mono_ns;
};

struct Incident {
  std::vector<OpenScope> open_scopes;
  Integer workers;
  std::int64_t omitted = 0;
};

struct ThreadEvidence {
  Integer tid;
  std::string comm;
  std::string state;
  std::string wchan;
  std::string syscall;
  std::string syscall_fd;
  Number cpu_s;
  std::vector<std::string> stack;
};

struct ChildProcess {
  Integer pid;
  std::string comm;
  std::string state;
};

struct Evidence {
  std::string state;
  std::string state_name;
  std::string wchan;
  std::string syscall;
  std::string syscall_fd;
  Number cpu_user_s;
  Number cpu_system_s;
  Number rss_bytes;
  std::vector<ThreadEvidence> threads;
  std::int64_t threads_omitted = 0;
  std::vector<ChildProcess> children;
  std::vector<std::string> devices;
  Number gathered_ms;
  std::string missing;
};

struct SignalSent {
  std::string name;
  Integer mono_ns;
  std::vector<std::int64_t> pids;
};

struct Outcome {
  std::string verdict;
  std::string reason;
  std::vector<SignalSent> signals;
  Number dead_after_ms;
  std::vector<std::string> cancelled;
};

struct LateRelease {
  Number late_ms;
  std::string reason;
};

struct Expiry {
  std::string id;
  std::string incident_id;
  Worker worker;
  std::string scope;

  bool has_verdict = false;  // the `expired` record was found; the fields up to open_scopes are its
  Integer time_us;
  Integer mono_ns;
  Number timeout_s;
  Number elapsed_s;
  Number overdue_ms;
  Number grace_s;
  Integer tid;
  Integer deadline_mono_ns;
  std::vector<OpenScope> open_scopes;

  std::optional<Incident> incident;
  std::vector<Fellow> fellows;  // of the incident, this one included, the first to expire first
  std::optional<Evidence> evidence;
  std::optional<Outcome> outcome;
  std::optional<LateRelease> late_release;
};

// Which expiry `wanted` means: an id, the unique beginning of one, or `last`. An error says which
// there are. `where` names the logs in it.
Result<std::string> find_expiry(const std::vector<Record>& records, std::string_view wanted,
                                std::string_view where);

// `records` in their order, `id` as find_expiry() gave it.
Expiry gather_expiry(const std::vector<Record>& records, const std::string& id);

}  // namespace filetimer::cli
