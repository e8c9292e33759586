// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/incident.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <tuple>

#include "common/text.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// Ranks that wait for each other have deadlines within a minute. Expiries of one job that are
// further apart are separate incidents.
constexpr std::int64_t kSameIncidentUs = 60'000'000;
// The clocks of two hosts may be so far apart before a run of the job is taken for the next one.
constexpr std::int64_t kClockSlackUs = 1'000'000;
static_assert(kIncidentSpanUs == 2 * (kSameIncidentUs + kClockSlackUs));  // either way
// Workers that enter a scope together do so within moments; a gap of more than a second and a tenth
// of the time tells one that came later.
constexpr double kSameEntryS = 1.0;
constexpr double kSameEntryShare = 0.1;

std::string host_of(const std::string& machine) {
  return machine.substr(0, machine.rfind('\n'));
}

// The clock of a record and of its deadline are one, so the difference holds on any clock.
Integer deadline_of(const Record& record) {
  const Integer deadline_ns = record.integer("deadline_mono_ns");
  if (!record.time_us || !record.mono_ns || !deadline_ns) {
    return record.time_us;
  }
  constexpr std::int64_t kFarNs = std::int64_t{1} << 61;  // a record may hold any number
  return *record.time_us - (std::clamp(*record.mono_ns, -kFarNs, kFarNs) -
                            std::clamp(*deadline_ns, -kFarNs, kFarNs)) /
                               1000;
}

std::int64_t apart_us(const ExpiredWorker& a, const ExpiredWorker& b) {
  return a.time_us && b.time_us ? std::abs(*a.time_us - *b.time_us)
                                : std::numeric_limits<std::int64_t>::max();
}

// Returns whether `later` entered its scope after `earlier` had expired: then a run of the job has
// ended between them. A rank that ran before may wait as late as that for one that was killed.
bool is_of_next_run(const ExpiredWorker& later, const ExpiredWorker& earlier, std::int64_t slack) {
  const bool may_wait = earlier.is_dead && earlier.worker.rank && later.worker.rank &&
                        later.started_us && later.started_us < earlier.deadline_us;
  return !may_wait && later.entered_us && earlier.deadline_us &&
         *later.entered_us - *earlier.deadline_us > slack;
}

// Returns whether the workers are of two jobs. Where no job is known, two runtime directories of
// one machine are taken for those of servers around a COMMAND each.
bool are_of_two_jobs(const ExpiredWorker& a, const ExpiredWorker& b) {
  const bool is_known = !a.job_id.empty() && a.job_id != kNoJobId;
  return a.job_id != b.job_id || (!is_known && a.machine == b.machine && a.dir != b.dir &&
                                  !a.dir.empty() && !b.dir.empty());
}

bool is_one_incident(const ExpiredWorker& a, const ExpiredWorker& b) {
  const std::int64_t slack = a.machine == b.machine ? 0 : kClockSlackUs;
  const bool is_one_expiry = a.machine == b.machine && a.id == b.id && !a.id.empty();
  return !are_of_two_jobs(a, b) &&
         (is_one_expiry || (apart_us(a, b) <= kSameIncidentUs + slack &&
                            !is_of_next_run(a, b, slack) && !is_of_next_run(b, a, slack)));
}

// --- where the workers were ---

// Returns a key of a worker and one of its threads. The worker is known by its pid, and by its rank
// only where a record lacks the pid.
auto key_of(const WorkerName& worker, const Integer& tid) {
  return std::tuple(worker.host, worker.pid, worker.pid ? Integer{} : worker.rank, tid);
}

// The last one listed of scopes that were opened at one time is the innermost.
bool is_deeper(const WorkerAt& scope, const WorkerAt& than) {
  return scope.elapsed_s && scope.elapsed_s <= than.elapsed_s;
}

// Returns whether a scope is in time and was renewed, as a heartbeat is, after the thread of
// `other` had entered its scope: its own thread runs.
bool has_beaten_since(const WorkerAt& scope, const WorkerAt& other) {
  return scope.timeout_s && scope.elapsed_s > scope.timeout_s && scope.remaining_s > 0 &&
         *scope.timeout_s - *scope.remaining_s < other.elapsed_s;
}

// Returns whether a scope of no known thread, as that of `timer_client run`, may have the other one
// inside.
bool may_surround(const WorkerAt& scope, const WorkerAt& other) {
  return !scope.tid && other.tid && scope.elapsed_s >= other.elapsed_s;
}

// Returns whether a thread in `one` says more about the incident than one in `other`: its deadline
// is next, unless one of the two is known to run, or may be around the other.
bool is_nearer_to_its_end(const WorkerAt& one, const WorkerAt& other) {
  if (has_beaten_since(one, other) != has_beaten_since(other, one)) {
    return has_beaten_since(other, one);
  }
  if (may_surround(one, other) || may_surround(other, one)) {
    return may_surround(other, one);
  }
  if (one.remaining_s && other.remaining_s) {
    return *one.remaining_s < *other.remaining_s;
  }
  return one.remaining_s || (!other.remaining_s && one.elapsed_s > other.elapsed_s);
}

// Returns one entry a key: the one that is the best of those with that key.
template <class Key, class IsBetter>
std::vector<WorkerAt> best_of(const std::vector<WorkerAt>& all, const Key& key,
                              const IsBetter& is_better) {
  return mapped(grouped(all, key), [&](const std::vector<WorkerAt>& group) {
    const WorkerAt* best = &group[0];
    for (const WorkerAt& one : group) {
      best = is_better(one, *best) ? &one : best;
    }
    return *best;
  });
}

bool has_ranks(const ScopeGroup& group) {
  return std::any_of(group.workers.begin(), group.workers.end(),
                     [](const WorkerName& worker) { return worker.rank.has_value(); });
}

bool entered_together(const Number& longer, const Number& shorter) {
  return longer && shorter ? *longer - *shorter <= std::max(kSameEntryS, kSameEntryShare * *longer)
                           : longer == shorter;
}

std::vector<ScopeGroup> groups_of(std::vector<WorkerAt> workers) {
  workers = best_of(
      workers, [](const WorkerAt& at) { return key_of(at.worker, at.tid); }, is_deeper);
  workers = best_of(
      workers, [](const WorkerAt& at) { return key_of(at.worker, {}); }, is_nearer_to_its_end);
  std::stable_sort(workers.begin(), workers.end(), [](const WorkerAt& a, const WorkerAt& b) {
    return std::tie(a.scope, b.elapsed_s) < std::tie(b.scope, a.elapsed_s);
  });
  std::vector<ScopeGroup> groups;
  for (WorkerAt& one : workers) {
    if (groups.empty() || groups.back().scope != one.scope ||
        !entered_together(groups.back().shortest_s, one.elapsed_s)) {
      groups.push_back({one.scope, one.elapsed_s, one.elapsed_s, {}});
    }
    groups.back().shortest_s = one.elapsed_s;
    groups.back().workers.push_back(std::move(one.worker));
  }
  std::stable_sort(groups.begin(), groups.end(), [](const ScopeGroup& a, const ScopeGroup& b) {
    return std::tuple(!has_ranks(a), a.workers.size(), b.longest_s) <
           std::tuple(!has_ranks(b), b.workers.size(), a.longest_s);
  });
  return groups;
}

// Removes processes in no scope but one of each rank that has none in a scope. The children of a
// rank, such as the workers of a data loader, are mostly idle, and say nothing of where the rank
// is.
void remove_idle_children(std::vector<WorkerAt>& workers) {
  std::set<std::pair<std::string, Integer>> counted;  // by host and rank
  for (const WorkerAt& at : workers) {
    if (at.worker.rank && !at.scope.empty()) {
      counted.emplace(at.worker.host, at.worker.rank);
    }
  }
  std::erase_if(workers, [&](const WorkerAt& at) {
    return at.worker.rank && at.scope.empty() &&
           !counted.emplace(at.worker.host, at.worker.rank).second;
  });
}

bool has_two_of_one_rank(const std::vector<ScopeGroup>& groups) {
  std::set<std::int64_t> ranks;
  for (const ScopeGroup& group : groups) {
    for (const WorkerName& worker : group.workers) {
      if (worker.rank && !ranks.insert(*worker.rank).second) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

std::string machine_of(const Record& record) {
  return fmt::format("{}\n{}", record.host, record.boot_id);
}

WorkerName worker_in(dom::object fields) {
  return {{}, integer_at(fields, "pid"), integer_at(fields, "rank"), text_at(fields, "comm")};
}

ExpiredWorker read_expired(const Record& record) {
  ExpiredWorker expired{.worker = worker_in(record.fields),
                        .machine = machine_of(record),
                        .server = record.integer("server_pid"),
                        .dir = record.text("dir"),
                        .id = std::string(record.id),
                        .incident = std::string(record.incident),
                        .job_id = std::string(record.job_id),
                        .scope = std::string(record.scope),
                        .time_us = record.time_us,
                        .deadline_us = deadline_of(record)};
  expired.worker.host = record.host;
  const double overdue_s = record.number("overdue_ms").value_or(0) / 1e3;
  if (record.integer("deadline_mono_ns") && record.mono_ns && record.time_us) {
    const double after_s =
        static_cast<double>(*expired.deadline_us - *record.time_us) / 1e6 + overdue_s;
    expired.time_us =
        *record.time_us + (std::abs(after_s) <= kFarFromRecordS ? std::llround(after_s * 1e6) : 0);
  }
  constexpr double kFarS = 1e9;
  const double open_s = record.number("elapsed_s").value_or(kFarS) - overdue_s;
  if (expired.deadline_us && std::abs(open_s) < kFarS) {
    expired.entered_us = *expired.deadline_us - static_cast<std::int64_t>(open_s * 1e6);
  }
  const Integer start_time = record.integer("start_time");  // in hundredths of a second
  if (record.time_us && record.mono_ns && start_time) {
    const double ran_s =
        static_cast<double>(*record.mono_ns) / 1e9 - static_cast<double>(*start_time) / 1e2;
    expired.started_us = *record.time_us - std::llround(std::clamp(ran_s, -kFarS, kFarS) * 1e6);
  }
  return expired;
}

bool is_among(const std::vector<WorkerName>& workers, const WorkerName& wanted) {
  return std::any_of(workers.begin(), workers.end(), [&](const WorkerName& at) {
    return at.host == wanted.host &&
           (at.pid && wanted.pid ? at.pid == wanted.pid : at.rank && at.rank == wanted.rank);
  });
}

// --- Incident ---

bool Incident::has_odd_group() const {
  if (may_be_two_jobs || groups.size() < 2 ||
      groups[0].workers.size() >= groups[1].workers.size() ||
      has_ranks(groups[0]) != has_ranks(groups[1]) ||
      (!expired.empty() && std::ranges::none_of(groups, [&](const ScopeGroup& group) {
        return is_among(group.workers, expired[0].worker);
      }))) {
    return false;
  }
  return 2 * groups[0].workers.size() <= largest_group().workers.size();
}

const ScopeGroup& Incident::largest_group() const {
  return *std::ranges::max_element(groups, {},
                                   [](const ScopeGroup& group) { return group.workers.size(); });
}

const ExpiredWorker* Incident::cause() const {
  const bool has_odd = has_odd_group();
  const ExpiredWorker* odd = nullptr;
  for (const ExpiredWorker& one : expired) {
    if (!has_odd || one.was_released || !is_among(groups[0].workers, one.worker)) {
      continue;
    }
    // The innermost of its scopes says where the worker is; the outer ones expired with it.
    const bool is_innermost = one.scope == groups[0].scope;
    if (odd == nullptr ||
        (is_innermost && odd->scope != groups[0].scope && is_among({odd->worker}, one.worker))) {
      odd = &one;
    }
  }
  return odd != nullptr ? odd : expired.empty() ? nullptr : &first();
}

const ExpiredWorker& Incident::first() const {
  const auto found = std::ranges::find(expired, false, &ExpiredWorker::was_released);
  return found == expired.end() ? expired.front() : *found;
}

// --- IncidentRecords ---

void IncidentRecords::take(const Record& record) {
  // Of records that are further away it keeps those of the expiry itself, of those near it, whose
  // kills may take long, and earlier warnings of its worker.
  const bool is_near = !record.time_us || !key_.time_us ||
                       std::abs(*record.time_us - *key_.time_us) <= kIncidentSpanUs;
  const bool is_warning_of_worker =
      (record.event == "warned" || record.event == "deferred") && record.host == key_.host &&
      (!record.pid || record.pid == key_.pid) && (is_near || *record.time_us < *key_.time_us);
  const auto is_of_near_expiry = [&] {
    return !record.id.empty() && std::ranges::any_of(expired_, [&](const ExpiredWorker& one) {
      return one.id == record.id && one.machine == machine_of(record);
    });
  };
  const bool is_wanted =
      is_near || is_warning_of_worker || key_.is_of(record) || is_of_near_expiry();
  if (!is_wanted || known_.contains(record.line)) {
    return;
  }
  const std::string& line = lines_.emplace_back(record.line);
  known_.insert(line);
  if (key_.is_of(record)) {
    const std::string incident(shown_.incident.empty() ? record.incident : shown_.incident);
    if (shown_.machine.empty() || record.event == "expired") {
      shown_ = read_expired(record);
    }
    shown_.incident = incident;  // not every record of the expiry has it
  }
  if (record.event == "incident" && !record.incident.empty()) {
    records_.try_emplace({machine_of(record), std::string(record.incident)}, line);
  } else if (is_near && record.event == "expired") {
    const ExpiredWorker& expired = expired_.emplace_back(read_expired(record));
    jobs_.try_emplace({expired.machine, record.pid}, expired.job_id);
  } else if (record.event == "released_late" || record.text("verdict") == "dead") {
    const auto note = [&](ExpiredWorker& one) {
      if (one.id == record.id && one.machine == machine_of(record)) {
        (record.event == "released_late" ? one.was_released : one.is_dead) = true;
      }
    };
    note(shown_);
    std::ranges::for_each(expired_, note);
  }
}

void IncidentRecords::each(const std::function<void(const Record&)>& call) const {
  for (const std::string& line : lines_) {
    if (const auto record = parse_record(line)) {
      call(*record);
    }
  }
}

std::optional<Record> IncidentRecords::record_of(const ExpiredWorker& expired) const {
  const auto found = records_.find({expired.machine, expired.incident});
  return found == records_.end() ? std::nullopt : parse_record(found->second);
}

// Adds the job's own workers: those of another job wait for none of this one. A worker that is
// among them already stays as it is.
bool IncidentRecords::add_workers(const ExpiredWorker& expired, const std::string& host,
                                  const Integer& moment_us, Incident& incident,
                                  std::vector<WorkerAt>& workers) const {
  const auto record = record_of(expired);
  if (!record) {
    return false;
  }
  std::set<Integer> listed;  // pids, by another server of the host
  for (const WorkerAt& at : workers) {
    if (at.worker.pid && at.worker.host == host) {
      listed.insert(at.worker.pid);
    }
  }
  std::vector<WorkerAt> all;
  for (const char* list : {"open_scopes", "in_no_scope"}) {
    for (const dom::object fields : objects_at(record->fields, list)) {
      all.push_back({.worker = worker_in(fields),
                     .job_id = text_at(fields, "job_id"),
                     .tid = integer_at(fields, "tid"),
                     .scope = text_at(fields, "scope"),
                     .elapsed_s = number_at(fields, "elapsed_s"),
                     .timeout_s = number_at(fields, "timeout_s"),
                     .remaining_s = number_at(fields, "remaining_s")});
    }
  }
  const bool tells_jobs =
      std::any_of(all.begin(), all.end(), [](const WorkerAt& at) { return !at.job_id.empty(); });
  // A record that another host made before the moment that is shown stays as it is: its workers may
  // be dead since.
  const double later_s =
      moment_us && record->time_us
          ? std::max(static_cast<double>(*record->time_us - *moment_us) / 1e6, 0.0)
          : 0;
  std::set<std::pair<Integer, Integer>>
      counted;  // by pid and rank: all but those that may be of another job
  for (WorkerAt& at : all) {
    const auto known = jobs_.find({expired.machine, at.worker.pid});
    const std::string job =
        at.job_id.empty() && at.worker.pid && known != jobs_.end() ? known->second : at.job_id;
    if (job.empty() && tells_jobs && !incident.shown.job_id.empty()) {
      continue;  // it may be another job's
    }
    counted.emplace(at.worker.pid, at.worker.rank);
    if ((job.empty() || job == incident.shown.job_id) && !listed.contains(at.worker.pid)) {
      at.worker.host = host;
      at.elapsed_s = at.elapsed_s ? std::max(*at.elapsed_s - later_s, 0.0) : at.elapsed_s;
      workers.push_back(std::move(at));
    }
  }
  incident.may_be_two_jobs = incident.may_be_two_jobs || !tells_jobs ||
                             incident.shown.job_id.empty() || incident.shown.job_id == kNoJobId;
  if (!incident.may_be_two_jobs) {
    remove_idle_children(workers);
  }
  incident.omitted_scopes += count_at(record->fields, "omitted");
  incident.omitted_workers += std::max<std::int64_t>(
      count_at(record->fields, "workers") - static_cast<std::int64_t>(counted.size()), 0);
  return true;
}

Incident IncidentRecords::combine(OddWorker wanted) const {
  Incident incident = combine_at(shown_);
  if (incident.has_odd_group() || incident.expired.empty()) {
    return incident;
  }
  Incident first = combine_at(incident.first());
  const bool is_wanted =
      first.has_odd_group() &&
      (wanted == OddWorker::kAny || is_among(first.groups[0].workers, first.shown.worker));
  return std::move(is_wanted ? first : incident);
}

Incident IncidentRecords::combine_at(const ExpiredWorker& around) const {
  Incident incident;
  incident.shown = shown_;
  // The expiry of each server whose incident record counts: `around`, or else the nearest. A
  // warning names no incident, but may have led to one.
  std::map<std::pair<std::string, Integer>, const ExpiredWorker*> nearest;  // by machine and pid
  std::map<std::string, std::set<std::string>> machines{{shown_.worker.host, {shown_.machine}}};
  for (const ExpiredWorker& one : expired_) {
    if (is_one_incident(one, around)) {
      incident.expired.push_back(one);
      machines[one.worker.host].insert(one.machine);
      const auto at = nearest.try_emplace({one.machine, one.server}, &one).first;
      at->second = apart_us(one, around) < apart_us(*at->second, around) ? &one : at->second;
    }
  }
  nearest.try_emplace({shown_.machine, shown_.server}, &shown_);
  const std::pair own(around.machine, around.server);
  if (const auto at = nearest.try_emplace(own, &around).first; !around.incident.empty()) {
    at->second = &around;
  }
  for (const auto& [host, its_machines] : machines) {
    incident.machines += its_machines.size();
  }
  std::ranges::stable_sort(incident.expired, {}, [](const ExpiredWorker& one) {
    return one.deadline_us.value_or(std::numeric_limits<std::int64_t>::max());
  });
  const auto host_name = [&](const ExpiredWorker& one) {
    constexpr std::size_t kBootShown = 8;
    const std::string host = host_of(one.machine);
    return incident.machines == 1 ? std::string()
           : machines[host].size() == 1
               ? host
               : fmt::format("{} (boot {})", host, one.machine.substr(host.size() + 1, kBootShown));
  };
  const auto ours = record_of(around);
  const Integer moment_us = ours ? ours->time_us : around.time_us;
  std::vector<WorkerAt> workers;
  std::map<std::string, bool> has_record;  // by host
  const auto add = [&](const ExpiredWorker& one) {
    const std::string host = host_name(one);
    has_record[host] |= add_workers(one, host, moment_us, incident, workers);
  };
  add(*nearest.extract(own).mapped());  // first: it is of the moment that is shown
  for (const auto& [server, expired] : nearest) {
    add(*expired);
  }
  for (const auto& [host, has] : has_record) {
    if (!has) {
      incident.missing.push_back(host);
    }
  }
  for (ExpiredWorker& one : incident.expired) {
    one.worker.host = host_name(one);
  }
  incident.groups = groups_of(std::move(workers));
  incident.may_be_two_jobs = incident.may_be_two_jobs && has_two_of_one_rank(incident.groups);
  incident.shown.worker.host = host_name(shown_);
  return incident;
}

ExpiryKey cause_of(const IncidentRecords& records) {
  const Incident incident = records.combine(OddWorker::kAny);
  const ExpiredWorker* const cause = incident.cause();
  return cause == nullptr
             ? records.key()
             : ExpiryKey{host_of(cause->machine), cause->id, cause->worker.pid, cause->time_us};
}

}  // namespace filetimer::cli
