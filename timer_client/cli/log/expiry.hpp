// Everything that the log says about one expiry, taken together from its records: `expired`,
// `evidence`, `killed`, `released_late`, `hook`, and the hang that it was part of.
// What a record lacks is empty. Texts are as the records have them: printing makes them safe.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/result.hpp"
#include "timer_client/cli/log/evidence_record.hpp"
#include "timer_client/cli/log/hang.hpp"
#include "timer_client/cli/log/incident_record.hpp"
#include "timer_client/cli/log/log_reader.hpp"

namespace filetimer::cli {

struct Worker {
  std::string host;
  std::string comm;
  std::string cmdline;
  std::string job_id;
  std::string step_id;
  Integer pid;
  Integer start_time;  // clock ticks since boot
  Integer uid;
  Integer rank;
  Integer local_rank;
};

struct SignalSent {
  std::string name;
  Integer mono_ns;
  std::vector<std::int64_t> pids;
};

// What keeps a worker that outlived SIGKILL.
struct Stuck {
  std::string state;
  std::string wchan;
  std::vector<std::string> kernel_stack;
  std::vector<std::string> devices;
};

struct Outcome {
  std::string verdict;
  std::string reason;
  Stuck stuck;
  std::vector<SignalSent> signals;
  Number dead_after_ms;
  std::vector<std::string> cancelled;
};

// A record that stands beside the verdict: a warning or a deferral before it, a hook after it.
struct Step {
  Integer mono_ns;
  std::string event;
  std::string what;
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

  Hang hang;
  std::optional<Evidence> evidence;
  std::optional<Outcome> outcome;
  std::optional<LateRelease> late_release;
  std::vector<Step> steps;
};

struct ExpiryKey {
  std::string host;
  std::string id;
  Integer pid;
  Integer time_us;  // of its first record
};

// The expiries that logs tell of, in the order in which they were first heard of.
class ExpiryIds {
 public:
  void take(const Record& record);

  // Which expiry `wanted` means: an id, the unique beginning of one, or `last`; of this host where
  // one is given. Ids are unique on one host, and likely to be so among many. An error says which
  // there are. `where` names the logs in it.
  [[nodiscard]] Result<ExpiryKey> find(std::string_view wanted,
                                       const std::optional<std::string>& host,
                                       std::string_view where) const;

 private:
  std::vector<ExpiryKey> keys_;
  std::unordered_set<std::string> known_;  // "HOST ID"
  std::optional<std::size_t> last_;        // the last verdict's
};

bool is_of(const Record& record, const ExpiryKey& expiry);
// Whether gather_expiry() has a use for the record: it is of this expiry, of this worker, or tells
// of others at that time.
bool concerns(const Record& record, const ExpiryKey& expiry);

// `records` in their order.
Expiry gather_expiry(const std::vector<Record>& records, const ExpiryKey& key);

}  // namespace filetimer::cli
