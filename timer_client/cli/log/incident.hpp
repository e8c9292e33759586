// Incidents of a job, over all hosts that it runs on: who expired first, and where its ranks were
// at that time. A training that hangs has one incident on each host, and on one host a second one
// if ranks expire later than those that they waited for.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "timer_client/cli/log/reader.hpp"

namespace filetimer::cli {

class Page;

// Records that are further from an expiry than this do not belong to its incident.
inline constexpr std::int64_t kIncidentSpanUs = 122'000'000;

// A time that a record states and that is further from the time of the record than this is wrong.
inline constexpr double kFarFromRecordS = 1e5;

struct ExpiryKey {
  std::string host;
  std::string id;
  Integer pid;
  Integer time_us;  // of its verdict or its first record
  bool is_verdict = false;

  [[nodiscard]] bool is_of(const Record& record) const {
    return record.id == id && (record.host.empty() || record.host == host);
  }
};

struct WorkerName {
  std::string host{};  // empty: the incident is of one host
  Integer pid{};
  Integer rank{};
  std::string comm{};
};

struct ExpiredWorker {
  WorkerName worker;
  std::string machine;  // a boot of a host: hosts may share a name ("localhost"), not this
  Integer server;       // the pid of the server there: a job may have several
  std::string dir;      // the runtime directory of that server; empty: not known
  std::string id;
  std::string incident;
  std::string job_id;
  std::string scope;
  Integer time_us;            // of the verdict, after which the record is made
  Integer deadline_us;        // by the wall clock: monotonic clocks of two hosts cannot be compared
  Integer entered_us{};       // when the scope was opened
  Integer started_us{};       // when its process was started
  bool is_dead = false;       // it was killed
  bool was_released = false;  // in time, which cancelled the kill
};

// Workers in one scope, which entered it together.
struct ScopeGroup {
  std::string scope;  // the innermost that is open; empty: none
  Number shortest_s;  // how long they have been in it
  Number longest_s;
  std::vector<WorkerName> workers;
};

// The output of an evidence command.
struct CommandOutput {
  std::string host;
  std::string incident;
  std::string_view line;  // the `evidence_command` record
};

// All times are in seconds after Incident::zero_us, by the clock of the worker's host.
struct Scope {
  enum class Kind { kEnded, kOpen, kExpired };
  double begin_s = 0;
  double end_s = 0;    // infinite if no record has the end
  double known_s = 0;  // of an open scope: the verdict, or when it was last recorded as open
  bool has_end = true;
  std::string name;
  Number timeout_s{};  // not known of an ended scope; empty: no deadline
  Kind kind = Kind::kEnded;
  bool is_paused = false;
  bool is_spared = false;  // an expired scope that may have been released since
};

// An event of a worker.
struct Moment {
  enum class Kind { kWarning, kVerdict, kSignal, kDeath, kOther };
  double at_s = 0;
  Kind kind = Kind::kOther;
  std::string text;  // without the time
};

struct Worker {
  WorkerName name;
  bool is_first = false;             // to expire
  bool is_odd = false;               // is not where most others are
  std::optional<std::size_t> group;  // of Incident::groups; empty: it is not known where it was
  std::vector<Scope> scopes{};
  std::vector<Moment> moments{};  // by time
  std::string_view evidence{};    // the record with its stacks; empty: there is none
};

// The records of a job, combined. Nothing is known of a worker that no incident record lists.
struct Incident {
  ExpiredWorker shown;                 // around which it was read
  std::vector<ExpiredWorker> expired;  // the first to expire first
  // Ranks before processes without one, then the smallest group first, of equal ones the one that
  // has been there longest.
  std::vector<ScopeGroup> groups;
  std::size_t machines = 0;          // machines with at least one of its expiries
  std::vector<std::string> missing;  // hosts with expiries and without an incident record
  std::int64_t omitted_scopes = 0;   // for which a record had no room
  std::int64_t omitted_workers = 0;  // workers that a record only counts, or whose job is not known
  bool may_be_two_jobs = false;      // two workers have one rank, and no record names their jobs
  // read_incident() adds these.
  // The odd workers come first, led by the worker of cause(), then the first to expire, then all
  // others, by host and rank.
  std::vector<Worker> workers;
  std::vector<CommandOutput> outputs;
  // The first verdict by the wall clock of its host. Without a verdict, the first record.
  std::int64_t zero_us = 0;

  // Returns whether this is the expiry that is shown. Two hosts may have one id.
  [[nodiscard]] bool is_shown(std::string_view machine, std::string_view id) const {
    return machine == shown.machine && id == shown.id;
  }
  // Returns whether the first group is few, while most are in one other place. False if it is not
  // known where the first to expire was, because that one may be the odd one.
  [[nodiscard]] bool has_odd_group() const;
  // Returns the group with the most workers, of which there is one.
  [[nodiscard]] const ScopeGroup& largest_group() const;
  // Returns the expiry that pages show as the cause: that of the first odd worker to expire, in the
  // scope in which this worker was. Without an odd one, the first expiry. Null: no expiry is known.
  [[nodiscard]] const ExpiredWorker* cause() const;
  // Returns the first expiry that no release cancelled, else the first one. There is one.
  [[nodiscard]] const ExpiredWorker& first() const;
};

// A worker when an incident record was made: it has one such entry for each of its open scopes, or
// one without a scope.
struct WorkerAt {
  WorkerName worker;
  std::string job_id;
  Integer tid;
  std::string scope;  // empty: none
  Number elapsed_s;
  Number timeout_s;
  Number remaining_s;
};

enum class OddWorker { kShown, kAny };

// The records that concern one expiry and its incident, chosen once for all pages.
class IncidentRecords {
 public:
  explicit IncidentRecords(ExpiryKey key) : key_(std::move(key)) {}

  // Takes records of all hosts in the order of their times, and keeps those. One that comes twice
  // counts once: logs may have been joined.
  void take(const Record& record);

  // Calls the function with each record, which is valid until another one is parsed, except for its
  // line, which is valid as long as this.
  void each(const std::function<void(const Record&)>& call) const;
  [[nodiscard]] const ExpiryKey& key() const { return key_; }
  // Returns the incident of the expiry without its workers and outputs, as it was at that time. Or
  // as it was at the first expiry, if only then the worker that is shown, or any, was the odd one
  // out: the ranks that waited for it may have been killed since.
  [[nodiscard]] Incident combine(OddWorker wanted) const;

 private:
  [[nodiscard]] Incident combine_at(const ExpiredWorker& around) const;
  // Returns the incident record of the expiry. It is valid until another one is parsed.
  [[nodiscard]] std::optional<Record> record_of(const ExpiredWorker& expired) const;
  // Returns false if there is no incident record of the expiry.
  bool add_workers(const ExpiredWorker& expired, const std::string& host, const Integer& moment_us,
                   Incident& incident, std::vector<WorkerAt>& workers) const;

  ExpiryKey key_;
  std::deque<std::string> lines_;
  std::unordered_set<std::string_view> known_;  // of lines_
  ExpiredWorker shown_;                         // that of key_
  std::vector<ExpiredWorker> expired_;
  std::map<std::pair<std::string, Integer>, std::string> jobs_;  // by machine and pid of expired_
  // Lines of `incident` records by machine and id, parsed when they are needed: most are not.
  std::map<std::pair<std::string, std::string>, std::string_view> records_;
};

// Returns the incident of the expiry, whose workers have views of the records.
Incident read_incident(const IncidentRecords& records);
// Returns the expiry of its cause(); that of the records if no expiry is known.
ExpiryKey cause_of(const IncidentRecords& records);

// Returns what distinguishes the machine of a record: its host and boot, in a line each.
std::string machine_of(const Record& record);
// Returns what an `expired` record says.
ExpiredWorker read_expired(const Record& record);
// Returns the worker that a record or one of its objects names, without a host.
WorkerName worker_in(dom::object fields);

// Returns whether the worker is among them: by its process, else by its rank, on its host.
bool is_among(const std::vector<WorkerName>& workers, const WorkerName& wanted);

// Returns "rank 2 (pid 4711, trainer) on node08", "pid 4711 (trainer)".
std::string worker_text(const WorkerName& worker);
// Returns "ranks 0, 1, 3-7", with "pid 4711 (trainer)" for those without a rank.
std::string workers_text(const std::vector<WorkerName>& workers);

// --- as text ---

// Returns "SIGTERM" of an entry of `signals`; "signal 15" without a name.
std::string signal_text(dom::object sent);
// Returns "30.0 s of 30 s", "12 s, no deadline", and "50 ms" of a scope that has ended.
std::string times_text(const Scope& scope);

// Return the frames of a main thread, the innermost frame first. It comes first in the lists of an
// `evidence` record; of Python threads the current one, if one is. The native frames have no
// offsets, which say no more about where it hangs: "read (libc.so.6)" of "read+0xd (libc.so.6)". A
// frame without a function keeps its offset.
std::vector<std::string> python_frames_of_main_thread(dom::object evidence);
std::vector<std::string> native_frames_of_main_thread(dom::object evidence);

// Returns the functions of a kernel stack on one line, the innermost first: "do_wait < ...".
std::string kernel_stack_text(const std::vector<std::string>& frames);

// Add the Python threads, the threads with their kernel and native frames, and the children with
// those of their main threads, of an `evidence` record under a heading each, or nothing. Threads,
// and children, in the same place are one item.
void add_python_stacks(Page& page, dom::object evidence);
void add_threads_and_children(Page& page, dom::object evidence);
// Adds where the workers are: the stacks of their main threads as a tree, in which is once what
// they have in common. Adds nothing if there are none.
void add_merged_stacks(Page& page, const Incident& incident);

// --- the page ---

// The page of an expiry, whose first lines, up to an empty one, say what happened.
struct PageStyle {
  bool has_colour = false;
  bool has_all_outputs = false;  // those of all hosts, whole
};
// Returns the page of the expiry around which the incident was read. Empty: there is no record.
std::string expiry_page(const IncidentRecords& records, const Incident& incident,
                        const PageStyle& style);

}  // namespace filetimer::cli
