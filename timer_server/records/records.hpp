// The records of the log, one function for each event, with the names and units of docs/records.md.
// Does no input or output.
// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "common/json_writer.hpp"
#include "common/limits.hpp"
#include "common/run_folder.hpp"
#include "common/scope_statistics.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/scopes/workers.hpp"

namespace filetimer {

// Returns "pid 4711 (python3, rank 2)", for a message.
std::string description_of(const WorkerIdentity& worker);

// Write the keys that identify a worker on its host (with its job, too), and an open scope as it is
// at `now`.
void write_whose(JsonWriter& json, const WorkerIdentity& worker);
void write_whose_and_job(JsonWriter& json, const WorkerIdentity& worker);
void write_scope(JsonWriter& json, const SlotReading& scope, Instant now);

struct WorkerScopes {
  WorkerIdentity worker;
  std::vector<SlotReading> scopes;  // the oldest first; empty: in no scope
  EndedScopesByName ended{};        // the scopes that have ended last
  // Its pages, of which some end before the record is made.
  std::vector<std::shared_ptr<WorkerPage>> pages{};
};

// The slot of a scope on which a verdict was given.
struct PageVerdict {
  std::shared_ptr<WorkerPage> page;  // null: the scope ended before this server started
  std::size_t slot = 0;
  std::int64_t word = 0;  // the deadline that was judged
  Instant deadline{};     // with the time that the scope was given
};

// One scope whose deadline passed.
struct Expiry {
  std::string id;
  std::string incident;
  SlotReading scope;
  Instant judged;
  std::optional<Instant> released_at;  // too late, but before a signal was sent
  PageVerdict place;
};

struct SentSignal {
  int signal = 0;
  ClockReading when;
  std::vector<pid_t> pids;
  std::vector<std::uint64_t> starts{};  // the start times of these processes

  void add(const Process& process) {
    pids.push_back(process.pid);
    starts.push_back(process.start_time);
  }
};

// A scope whose soft deadline passed.
struct SoftDeadline {
  SlotReading scope;
  Instant when;     // when it passed
  Instant noticed;  // when the server noticed
  std::string reason;
  int signal = 0;           // that the worker is sent now, before its scope expires; 0: none
  std::size_t omitted = 0;  // warnings about the worker that were not recorded before this one
  std::string id{};         // of the warning
};

// The expiries of two seconds, and the scopes of all workers when the first of them was judged, or
// as soon as they could be read.
struct Incident {
  std::string id;
  ClockReading when;
  std::vector<std::string> expiries{};  // the ids of those judged before the record
  std::vector<WorkerScopes> workers{};
  std::size_t omitted = 0;    // open scopes that are not listed
  std::size_t read_late = 0;  // workers whose scopes were read for the record, after the first sync
  std::size_t ended_omitted = 0;  // ended scopes that are not listed
};

enum class KillVerdict { kDead, kAlreadyGone, kUnkillable, kSpared };
std::string_view verdict_name(KillVerdict verdict);

// Why a hook or an evidence command (commands.hpp) runs.
struct CommandOccasion {
  WorkerIdentity worker;
  std::string id;
  std::string incident;  // empty: a warning
  std::string scope;
  std::string_view verdict;  // $FILETIMER_VERDICT
  // Of the `killed` or `warned` record, which is synced before a hook starts.
  std::uint64_t record_number = 0;
};

// How it ended.
enum class HookResult {
  kExited,
  kSignalled,
  kTimedOut,
  kStopped,  // at the end of the server; an evidence command: too many others ran
  kFailed,   // could not be started
  kDropped,  // was not started
};
struct HookOutcome {
  std::string drop_in;  // the name of the evidence command in evidence.d; empty: another command
  HookResult result = HookResult::kExited;
  pid_t pid = 0;  // 0: it was not started
  std::optional<int> exit_status;
  int signal = 0;  // that ended it
  Duration took{};
  std::string reason;

  // Returns "exited, exit status 1 after 20.5 ms", for a message.
  [[nodiscard]] std::string text() const;
};

struct RejectionReport {
  std::uint64_t count = 0;  // rejections since the last report
  std::string reason;       // of the last rejection
  std::string line;         // the first kMaxRejectedBytesShown bytes of that request
  pid_t pid = 0;            // of that request; 0: unknown
};

// Makes the records of a server.
class Records {
 public:
  // `dir`: the runtime directory. Readers distinguish by it the servers that share a log.
  explicit Records(std::string dir);

  [[nodiscard]] const std::string& boot_id() const { return boot_id_; }
  [[nodiscard]] const std::string& host() const { return host_; }
  // Returns an id for the next expiry, incident or warning, unique among all servers: "k3f9a2-1",
  // "k3f9a2-i1" or "k3f9a2-w1".
  enum class Named { kExpiry, kIncident, kWarning };
  std::string next_id(Named what);

  std::string incident(const Incident& incident) const;
  // `list_bytes`: how long the list of open scopes may be; the scopes that do not fit are counted.
  std::string expired(const WorkerIdentity& worker, const Expiry& expiry,
                      std::span<const SlotReading> open_scopes,
                      std::size_t list_bytes = kMaxRecordBytesOfLists) const;
  std::string evidence(const WorkerIdentity& worker, const std::string& id,
                       const Evidence& evidence) const;
  // `omitted`: the number of peers whose evidence is not collected.
  std::string peer_evidence(const WorkerIdentity& peer, std::string_view incident,
                            const Evidence& evidence, std::size_t omitted) const;
  struct Outcome {
    KillVerdict verdict = KillVerdict::kDead;
    std::span<const SentSignal> signals{};
    std::optional<Duration> dead_after{};
    std::string_view reason{};
    std::span<const std::string> cancelled{};
    std::size_t list_bytes = kMaxRecordBytesOfLists;  // of `cancelled`
    const Evidence* held_by = nullptr;                // evidence of an unkillable worker; else null
  };
  std::string killed(const WorkerIdentity& worker, const Expiry& expiry,
                     const Outcome& outcome) const;
  // `now`: never() for a scope of another boot, whose times are not of this one.
  std::string left_open(const WorkerIdentity& worker, const SlotReading& scope, Instant now,
                        std::string_view reason) const;
  // Reports the durations of the scopes of a worker that has ended.
  std::string worker_ended(const WorkerIdentity& worker, const StatisticsByName& statistics) const;
  // Reports a deadline that was deferred because the worker is halted.
  std::string deferred(const WorkerIdentity& worker, const SlotReading& scope, Instant now,
                       std::string_view reason) const;
  // Reports that all `scopes` open scopes got the time `given`, because the server could not run.
  std::string deferred_all(Duration given, std::size_t scopes, std::string_view reason) const;
  // `evidence`: null if none is wanted, or if another record has it.
  std::string warned(const WorkerIdentity& worker, const SoftDeadline& passed,
                     const Evidence* evidence) const;
  // `expiry.released_at` must be set.
  std::string released_late(const WorkerIdentity& worker, const Expiry& expiry) const;
  std::string hook(const CommandOccasion& occasion, const HookOutcome& outcome) const;
  // `output`: the beginning of an output of `output_bytes` bytes.
  std::string evidence_command(const CommandOccasion& occasion, const HookOutcome& outcome,
                               std::string_view output, std::uint64_t output_bytes) const;
  std::string rejected(const RejectionReport& report) const;

  // Begins a record; the caller adds fields and finishes it.
  JsonWriter begin(std::string_view event, const ClockReading& now = ClockReading::now()) const;

 private:
  JsonWriter begin(std::string_view event, const WorkerIdentity& worker) const;

  const std::string dir_;
  const std::string host_ = host_name();
  const std::string boot_id_ = boot_id_text(this_boot());
  const pid_t server_pid_ = ::getpid();
  std::string run_;  // the beginning of this server's ids
  std::array<std::uint64_t, 3> named_{};
};

// Returns "SIGTERM", or "signal 35" for a signal without a name.
std::string signal_name(int signal);

}  // namespace filetimer
