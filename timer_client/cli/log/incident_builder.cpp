// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <tuple>

#include "common/text.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr double kSameScopeS = 0.05;    // two records of one scope differ by less
constexpr double kLongestScopeS = 1e9;  // 30 years: what is longer is no duration

// Records of the incident are no further from its verdict.
constexpr double kSpanS = kIncidentSpanUs / 1e6;
constexpr std::size_t kPidsNamed = 8;
constexpr double kSameExitS = 1;       // records of one exit
constexpr double kSameMomentS = 1e-3;  // a signal, or a death, in the records of several scopes
// How a worker left scopes open.
constexpr std::string_view kExitedInside = "exited inside ";
constexpr std::string_view kStartedInside = "started another program inside ";

// A host, as pages name it, and a pid.
using HostAndPid = std::pair<std::string, std::int64_t>;

bool is_duration(const Number& seconds) {
  return seconds && *seconds >= 0 && *seconds <= kLongestScopeS;
}

// Returns a time that a record has, or the time of the record if the former cannot be right.
double time_or(double record_s, double stated_s) {
  return std::abs(stated_s - record_s) <= kFarFromRecordS ? stated_s : record_s;
}

// Returns the seconds between two times of one clock, 0 if one is not there.
double seconds_between(const Integer& begin_ns, const Integer& end_ns) {
  return begin_ns && end_ns ? (static_cast<double>(*end_ns) - static_cast<double>(*begin_ns)) / 1e9
                            : 0;
}

class IncidentBuilder {
 public:
  explicit IncidentBuilder(Incident& incident) : incident_(incident) {
    std::vector<ExpiredWorker> all = incident.expired;
    all.push_back(incident.shown);
    for (const ExpiredWorker& one : all) {
      hosts_.emplace(one.machine, one.worker.host);
      incidents_.emplace(one.machine, one.incident);
      expiries_.emplace(one.machine, one.id);
    }
    const bool has_odd = incident.has_odd_group();
    for (std::size_t i = 0; i < incident.groups.size(); ++i) {
      for (const WorkerName& worker : incident.groups[i].workers) {
        add_worker(worker, i, i == 0 && has_odd);
      }
    }
    for (const ExpiredWorker& one : all) {
      add_worker(one.worker);
    }
  }

  // Notes the start time of each worker of the incident, so that take() can leave out records of
  // other processes with the same pid. Called with all records before the first take().
  void take_start(const Record& record) {
    const std::string machine = machine_of(record);
    const auto host = hosts_.find(machine);
    if (host != hosts_.end() && (expiries_.contains({machine, std::string(record.id)}) ||
                                 (record.event == "peer_evidence" &&
                                  incidents_.contains({machine, std::string(record.incident)})))) {
      starts_.try_emplace(worker_of(host->second, record.pid), record.integer("start_time"));
      servers_.emplace(machine, record.integer("server_pid"));
    }
  }

  void take(const Record& record) {
    const std::string machine = machine_of(record);
    const auto host = hosts_.find(machine);
    if (host == hosts_.end() || !record.time_us) {
      return;
    }
    incident_.zero_us = incident_.zero_us != 0 ? incident_.zero_us : *record.time_us;
    const double at_s = seconds_at(*record.time_us);
    const bool is_of_incident = incidents_.contains({machine, std::string(record.incident)});
    if (record.event == "incident" && is_of_incident) {
      take_incident(record, host->second, at_s);
    } else if (record.event == "evidence_command" && is_of_incident &&
               (record.job_id == incident_.shown.job_id || record.text("drop_in").empty())) {
      incident_.outputs.push_back({host->second, std::string(record.incident), record.line});
    } else if (record.event == "deferred" && !record.pid) {  // all deadlines of a server
      if (!servers_.contains({machine, record.integer("server_pid")})) {
        return;
      }
      for (Worker& worker : incident_.workers) {
        if (worker.name.host == host->second) {
          take_deferred(record, worker, at_s);
        }
      }
    } else if (Worker* const worker = worker_of(host->second, record.pid);
               worker != nullptr && is_same_process(*worker, record)) {
      const bool is_ours = expiries_.contains({machine, std::string(record.id)});
      if (record.event == "peer_evidence" && is_of_incident && worker->evidence.empty()) {
        worker->evidence = record.line;
      } else if (is_ours && (record.event == "evidence" || record.event == "warned")) {
        // The stacks of the expiry that is shown, else those of the worker's first one.
        const bool is_first = has_own_evidence_.insert(worker).second;
        worker->evidence =
            is_first || incident_.is_shown(machine, record.id) ? record.line : worker->evidence;
      }
      take_of_worker(record, *worker, at_s, is_ours);
    }
  }

  void finish() {
    add_ends();
    for (Worker& worker : incident_.workers) {
      // Warnings are kept from further back than the other records, for scopes that are open long.
      Number begin_s;
      for (const Scope& scope : worker.scopes) {
        if (scope.kind == Scope::Kind::kExpired) {
          begin_s = std::min(begin_s.value_or(0), scope.begin_s);
        }
      }
      std::erase_if(worker.moments,
                    [&](const Moment& moment) { return moment.at_s < begin_s.value_or(-kSpanS); });
      std::ranges::stable_sort(worker.moments, {}, &Moment::at_s);
    }
    if (!incident_.expired.empty()) {
      const WorkerName& name = incident_.first().worker;
      if (Worker* const first = worker_of(name.host, name.pid)) {
        first->is_first = true;
      }
    }
    sort_workers();
  }

 private:
  [[nodiscard]] bool is_same_process(const Worker& worker, const Record& record) const {
    const auto start = starts_.find(&worker);
    const Integer its = record.integer("start_time");
    return start == starts_.end() || !start->second || !its || its == start->second;
  }

  [[nodiscard]] double seconds_at(std::int64_t time_us) const {
    return static_cast<double>(time_us - incident_.zero_us) / 1e6;
  }

  void take_of_worker(const Record& record, Worker& worker, double at_s, bool is_ours) {
    if (record.event == "expired" && is_ours) {
      take_expired(record, worker, at_s);
    } else if (record.event == "killed" && is_ours) {
      take_killed(record, worker, at_s);
    } else if (record.event == "released_late" && is_ours) {
      worker.moments.push_back({at_s, Moment::Kind::kOther, "released " + in_few_words(record)});
      end_scopes(worker, at_s, record.scope);
    } else if (record.event == "warned") {
      take_warned(record, worker, at_s);
    } else if (record.event == "deferred") {
      take_deferred(record, worker, at_s);
    } else if (record.event == "left_open") {  // one record for each scope
      take_left_open(record, worker, at_s);
    } else if (record.event == "worker_ended" && !flag_at(record.fields, "alive")) {
      ends_.insert_or_assign(&worker, at_s);
    } else if (is_ours) {
      worker.moments.push_back({at_s, Moment::Kind::kOther,
                                joined({with_spaces(record.event), in_few_words(record)}, ": ")});
    }
  }

  // Adds the ends of workers whose death is in no other record. The record of the end of a killed
  // worker may come before that of its death.
  void add_ends() {
    for (const auto& [worker, at_s] : ends_) {
      if (std::ranges::find(worker->moments, Moment::Kind::kDeath, &Moment::kind) ==
          worker->moments.end()) {
        take_end(*worker, at_s, "ended");
      }
    }
  }

  void sort_workers() {
    const ExpiredWorker* const cause = incident_.cause();
    const WorkerName lead = cause == nullptr ? WorkerName{} : cause->worker;
    std::ranges::stable_sort(incident_.workers, {}, [&](const Worker& worker) {
      constexpr auto kLast = std::numeric_limits<std::int64_t>::max();
      const bool is_cause = worker.name.host == lead.host && worker.name.pid == lead.pid;
      return std::tuple(!worker.is_odd, !is_cause, !worker.is_first,
                        std::string_view(worker.name.host), worker.name.rank.value_or(kLast),
                        worker.name.pid.value_or(kLast));
    });
  }

  void add_worker(const WorkerName& name, std::optional<std::size_t> group = {},
                  bool is_odd = false) {
    if (name.pid &&
        index_.emplace(HostAndPid{name.host, *name.pid}, incident_.workers.size()).second) {
      incident_.workers.push_back({.name = name, .is_odd = is_odd, .group = group});
    }
  }

  Worker* worker_of(const std::string& host, const Integer& pid) {
    const auto found = pid ? index_.find({host, *pid}) : index_.end();
    return found == index_.end() ? nullptr : &incident_.workers[found->second];
  }

  // A scope is in several records: the open ones of the incident and of each expiry.
  static Scope& scope_of(Worker& worker, const std::string& scope, double begin_s) {
    const auto same = std::ranges::find_if(worker.scopes, [&](const Scope& entry) {
      return entry.kind != Scope::Kind::kEnded && entry.name == scope &&
             std::abs(entry.begin_s - begin_s) <= kSameScopeS;
    });
    if (same != worker.scopes.end()) {
      return *same;
    }
    worker.scopes.push_back({.begin_s = begin_s,
                             .end_s = std::numeric_limits<double>::infinity(),
                             .known_s = begin_s,
                             .has_end = false,
                             .name = scope,
                             .kind = Scope::Kind::kOpen});
    return worker.scopes.back();
  }

  static void add_open_scope(Worker& worker, dom::object scope, double at_s) {
    const Number elapsed_s = number_at(scope, "elapsed_s");
    const std::string name = text_at(scope, "scope");
    if (is_duration(elapsed_s) && !name.empty()) {
      Scope& entry = scope_of(worker, name, at_s - *elapsed_s);
      entry.known_s =
          entry.kind == Scope::Kind::kExpired ? entry.known_s : std::max(entry.known_s, at_s);
      entry.timeout_s = number_at(scope, "timeout_s");
      entry.is_paused = flag_at(scope, "paused");
    }
  }

  void take_incident(const Record& record, const std::string& host, double at_s) {
    for (const dom::object scope : objects_at(record.fields, "open_scopes")) {
      if (Worker* const worker = worker_of(host, integer_at(scope, "pid"))) {
        add_open_scope(*worker, scope, at_s);
      }
    }
    for (const dom::object scopes : objects_at(record.fields, "ended_scopes")) {
      Worker* const worker = worker_of(host, integer_at(scopes, "pid"));
      if (worker == nullptr) {
        continue;
      }
      for (const dom::element element : elements_at(scopes, "ended")) {
        const auto pair = value_as<dom::array>(element);
        if (!pair || pair->size() != 2) {
          continue;
        }
        const Number ago_s = value_as<double>(pair->at(0));
        const Number took_s = value_as<double>(pair->at(1));
        if (ago_s && std::abs(*ago_s) <= kLongestScopeS && is_duration(took_s)) {
          worker->scopes.push_back({.begin_s = at_s - *ago_s - *took_s,
                                    .end_s = at_s - *ago_s,
                                    .name = text_at(scopes, "scope")});
        }
      }
    }
  }

  void take_expired(const Record& record, Worker& worker, double at_s) const {
    const Number overdue_ms = record.number("overdue_ms");
    const Integer verdict_us = read_expired(record).time_us;
    const double verdict_s = verdict_us ? seconds_at(*verdict_us) : at_s;
    for (const dom::object scope : objects_at(record.fields, "open_scopes")) {
      add_open_scope(worker, scope, verdict_s);
    }
    if (const Number elapsed_s = record.number("elapsed_s"); is_duration(elapsed_s)) {
      Scope& entry = scope_of(worker, std::string(record.scope), verdict_s - *elapsed_s);
      entry.kind = Scope::Kind::kExpired;
      entry.begin_s = verdict_s - *elapsed_s;
      entry.known_s = verdict_s;
      entry.timeout_s = record.number("timeout_s");
    }
    worker.moments.push_back(
        {verdict_s, Moment::Kind::kVerdict,
         fmt::format("expired in {}{}", backquoted(record.scope),
                     overdue_ms ? ", " + seconds_text(*overdue_ms / 1e3) + " late" : "")});
  }

  void take_killed(const Record& record, Worker& worker, double at_s) {
    Number first_s;
    for (const dom::object sent : objects_at(record.fields, "signals")) {
      const auto pids = mapped(elements_at(sent, "pids"), [](dom::element pid) {
        return number_text(value_as<std::int64_t>(pid));
      });
      const double sent_s =
          time_or(at_s, at_s - seconds_between(integer_at(sent, "mono_ns"), record.mono_ns));
      first_s = first_s.value_or(sent_s);
      add_once(worker, {sent_s, Moment::Kind::kSignal,
                        joined({signal_text(sent), listed(pids, kPidsNamed)}, " to ")});
    }
    if (const Number dead_after_ms = record.number("dead_after_ms")) {
      const double dead_s = time_or(at_s, first_s.value_or(at_s) + *dead_after_ms / 1e3);
      take_end(worker, dead_s, in_few_words(record));
    } else {
      worker.moments.push_back({at_s, Moment::Kind::kOther, in_few_words(record)});
      for (Scope& entry : worker.scopes) {
        entry.is_spared =
            entry.is_spared || (record.text("verdict") == "spared" && entry.name == record.scope);
      }
    }
  }

  // The record is made when the evidence is there.
  static void take_warned(const Record& record, Worker& worker, double at_s) {
    const std::string doing = record.text("doing");
    const Integer soft_ns = record.integer("soft_mono_ns");
    const double soft_s = time_or(at_s, at_s - seconds_between(soft_ns, record.mono_ns));
    const double noticed_s =
        soft_ns ? time_or(at_s, soft_s + record.number("overdue_ms").value_or(0) / 1e3) : at_s;
    worker.moments.push_back(
        {noticed_s, Moment::Kind::kWarning,
         joined({"warned: " + in_few_words(record), doing.empty() ? "" : "it was " + doing},
                "; ")});
    if (at_s >= -kSpanS) {
      add_open_scope(worker, record.fields, noticed_s);
    }
  }

  static void take_deferred(const Record& record, Worker& worker, double at_s) {
    worker.moments.push_back({at_s, Moment::Kind::kWarning, "deferred: " + in_few_words(record)});
  }

  // Takes one of the records of an exit, which has one for each open scope.
  static void take_left_open(const Record& record, Worker& worker, double at_s) {
    add_open_scope(worker, record.fields, at_s);
    const std::string scope = backquoted(record.scope);
    const bool has_ended = record.text("reason").find("another program") == std::string::npos;
    const std::string how(has_ended ? kExitedInside : kStartedInside);
    const auto exit = std::ranges::find_if(worker.moments, [&](const Moment& moment) {
      return moment.text.starts_with(how) && at_s - moment.at_s <= kSameExitS;
    });
    if (exit == worker.moments.end()) {
      worker.moments.push_back({at_s, Moment::Kind::kDeath, how + scope});
    } else if (exit->text.find(scope) == std::string::npos) {
      exit->text += ", " + scope;
    }
    end_scopes(worker, at_s);
  }

  // Adds what each of the scopes that expired together has a record of, and that happened once.
  static void add_once(Worker& worker, Moment moment) {
    if (std::ranges::none_of(worker.moments, [&](const Moment& known) {
          return known.kind == moment.kind && known.text == moment.text &&
                 std::abs(known.at_s - moment.at_s) <= kSameMomentS;
        })) {
      worker.moments.push_back(std::move(moment));
    }
  }

  static void take_end(Worker& worker, double at_s, std::string text) {
    add_once(worker, {at_s, Moment::Kind::kDeath, std::move(text)});
    end_scopes(worker, at_s);
  }

  // Ends the expired scope `scope`, which was released late, or all scopes of a worker that has
  // ended; some of these may have ended before. A scope that expired was open until then, unless
  // its worker was spared: else there would be a record of its release.
  static void end_scopes(Worker& worker, double at_s, std::optional<std::string_view> scope = {}) {
    for (Scope& entry : worker.scopes) {
      if (scope ? entry.kind == Scope::Kind::kExpired && entry.name == *scope
                : entry.kind != Scope::Kind::kEnded) {
        entry.end_s = std::min(entry.end_s, at_s);
        entry.has_end = entry.has_end || scope || entry.known_s >= at_s ||
                        (entry.kind == Scope::Kind::kExpired && !entry.is_spared);
      }
    }
  }

  Incident& incident_;
  std::map<std::string, std::string> hosts_;                 // by machine, as lanes name them
  std::set<std::pair<std::string, std::string>> incidents_;  // machine and id
  std::set<std::pair<std::string, std::string>> expiries_;
  std::set<std::pair<std::string, Integer>> servers_;  // machine and pid
  std::map<HostAndPid, std::size_t> index_;
  // Workers stay in place until finish() sorts them.
  std::map<const Worker*, Integer> starts_;
  std::set<const Worker*> has_own_evidence_;
  std::map<Worker*, double> ends_;
};

}  // namespace

Incident read_incident(const IncidentRecords& records) {
  Incident incident = records.combine(OddWorker::kShown);
  constexpr auto kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t first_us = kNone;
  for (const ExpiredWorker& one : incident.expired) {
    first_us = std::min(first_us, one.time_us.value_or(kNone));
  }
  incident.zero_us = first_us != kNone
                         ? first_us
                         : incident.shown.time_us.value_or(records.key().time_us.value_or(0));
  IncidentBuilder builder(incident);
  records.each([&](const Record& record) { builder.take_start(record); });
  records.each([&](const Record& record) { builder.take(record); });
  builder.finish();
  return incident;
}

}  // namespace filetimer::cli
