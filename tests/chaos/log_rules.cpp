// What must hold of every log. Each rule compares records with each other; docs/records.md says
// what their fields mean.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "tests/chaos/checker.hpp"
#include "tests/chaos/json_record.hpp"
#include "tests/support/records_doc.hpp"

namespace filetimer::chaos {
namespace {

// In seconds.
constexpr double kRounding = 2e-6;  // of times in records
constexpr double kTimeoutRounding =
    1e-3;                              // of a timeout that was converted from text or milliseconds
constexpr double kIncidentWindow = 2;  // in which expiries are of one incident
constexpr double kIncidentPast = 601;  // of which an incident lists ended scopes
constexpr double kRejectedPeriod = 0.5;  // between two `rejected` records: one second, less a delay
constexpr double kMissedTolerated = 0.25;  // missed time that is not given back
constexpr double kWarningPeriod = 10;      // in which a worker has at most kWarnings
constexpr double kEndOfServer = 40;        // before `server_stopped`, in which it may shorten waits
constexpr std::size_t kWarnings = 16;
constexpr std::string_view kIdle = "(idle)";  // the scope of an idle timeout

// Returns a time in nanoseconds as seconds.
double seconds(const JsonFields& fields, std::string_view key) {
  return static_cast<double>(fields.integer(key)) / 1e9;
}
double mono(const JsonFields& record) {
  return seconds(record, "mono_ns");
}
double judged_at(const JsonRecord& expired) {
  return seconds(expired, "deadline_mono_ns") + expired.number("overdue_ms") / 1e3;
}
bool is_near(double a, double b, double within = kRounding) {
  return std::abs(a - b) <= within;
}

std::string worker_id(const JsonRecord& record) {
  return fmt::format("{} {} {}", record.integer("server_pid"), record.integer("pid"),
                     record.integer("start_time"));
}

std::string scope_id(const JsonRecord& record) {
  return fmt::format("{} {} {} {} {}", record.text("boot_id"), record.integer("pid"),
                     record.integer("start_time"), record.integer("acquired_mono_ns"),
                     record.text("scope"));
}

// One process of a server.
struct Run {
  const JsonRecord* started = nullptr;
  const JsonRecord* stopped = nullptr;
  const JsonRecord* last = nullptr;
  const JsonRecord* last_rejected = nullptr;
  std::int64_t expired = 0;
  std::int64_t rejected = 0;
  std::set<std::string> dead;  // worker and signals of each kill

  [[nodiscard]] JsonFields settings() const {
    return started != nullptr ? started->object("settings") : JsonFields();
  }
  // Returns whether the server ended in order, and all its records are here.
  [[nodiscard]] bool is_complete() const {
    return started != nullptr && stopped != nullptr && stopped->integer("lost_records") == 0;
  }
};

class LogJudge {
 public:
  LogJudge(const std::vector<JsonRecord>& lines, bool has_history, std::vector<Violation>& found)
      : lines_(lines), has_history_(has_history), found_(found) {}

  std::vector<const JsonRecord*> run() {
    collect();
    for (const JsonRecord* record : records_) {
      if (const auto rule = rules_.find(record->text("event")); rule != rules_.end()) {
        (this->*rule->second)(*record);
      }
    }
    judge_outcomes();
    return records_;
  }

 private:
  using ById = std::map<std::string, const JsonRecord*, std::less<>>;
  using Rule = void (LogJudge::*)(const JsonRecord&);

  template <class... Args>
  void expect(bool holds, std::string_view promise, const JsonRecord& record,
              fmt::format_string<Args...> text, Args&&... args) {
    if (!holds) {
      found_.push_back(
          {std::string(promise),
           fmt::format("{} ({}, pid {}, {})", fmt::format(text, std::forward<Args>(args)...),
                       record.text("event"), record.integer("pid"), record.place())});
    }
  }

  static std::string run_key(const JsonRecord& record) {
    return fmt::format("{} {}", record.text("boot_id"), record.integer("server_pid"));
  }
  Run& run_of(const JsonRecord& record) { return *run_of_.at(&record); }
  // Returns whether waits may have been shortened because the server was about to end.
  bool is_near_end(const JsonRecord& record) {
    const JsonRecord* stopped = run_of(record).stopped;
    return stopped != nullptr && mono(*stopped) - mono(record) < kEndOfServer;
  }
  static const JsonRecord* find(const ById& records, std::string_view id) {
    const auto found = records.find(id);
    return found == records.end() ? nullptr : found->second;
  }
  // Returns the record of that id. It must have been written before, about the same scope.
  const JsonRecord* find_before(const JsonRecord& record, const ById& records,
                                const char* promise) {
    const JsonRecord* found = find(records, record.text("id"));
    expect(is_incomplete_ || (found != nullptr && found < &record), promise, record,
           "nothing before it has the id {}", record.text("id"));
    for (const char* key : {"incident", "scope", "rank", "job_id"}) {
      expect(found == nullptr || !record.has(key) || !found->has(key) ||
                 record.raw(key) == found->raw(key),
             "record-links", record, "{} is not that of the same id", key);
    }
    expect(found == nullptr || are_of_one_worker(record, *found), "record-links", record,
           "another worker than that of the same id");
    return found;
  }
  // Returns whether an expiry is the first one of its kill: evidence and hook are about it.
  static bool is_first_of_kill(const JsonRecord& expired) {
    return !expired.list<JsonFields>("open_scopes").empty();
  }

  void collect() {
    std::set<std::string_view> known;
    for (const JsonRecord& line : lines_) {
      if (!line.is_object()) {
        // A killed server may leave half a line. The next server ends it before its first record.
        const bool is_torn = line.is_last() || !latest_.contains(run_key(*std::next(&line))) ||
                             std::next(&line)->text("event") == "server_started";
        expect(is_torn, "whole-lines", line, "not a JSON object: {:.80}", line.line());
      } else if (known.insert(line.line()).second &&  // else written again, when a write had failed
                 has_fields(line)) {
        add(line);
      }
    }
    for (const Run& run : runs_) {
      is_incomplete_ = is_incomplete_ || run.started == nullptr ||
                       (run.stopped != nullptr && run.stopped->integer("lost_records") > 0);
    }
  }

  // docs/records.md says which fields a record has; its example has their types.
  bool has_fields(const JsonRecord& record) {
    static const testing::RecordsDoc doc = testing::read_records_doc();
    static std::map<const testing::EventDoc*, JsonRecord> examples;
    const auto known = doc.find(std::string(record.text("event")));
    expect(known != doc.end(), "record-fields", record, "an unknown event");
    if (known == doc.end()) {
      return false;
    }
    const testing::EventDoc& event = known->second;
    const JsonRecord& example =
        examples.try_emplace(&event, "records.md", 0, event.examples.front(), true).first->second;
    const std::size_t before = found_.size();
    for (const std::string& path : event.required) {
      const std::size_t list = path.find("[].");
      const std::string name = list == path.npos ? path : path.substr(list + 3);
      const auto judge = [&](const JsonFields& of, const JsonFields& usual) {
        Element field;
        Element typical;
        expect(of.get(name, field) &&
                   (!usual.get(name, typical) || field.type() == typical.type() ||
                    (field.is_number() && typical.is_number() &&
                     (!field.is_double() || name.ends_with("_s") || name.ends_with("_ms"))) ||
                    (event.or_null.contains(path) && (field.is_null() || typical.is_null()))),
               "record-fields", record, "'{}' is missing or has another type", path);
      };
      if (name.find('.') != name.npos) {
        continue;  // of an object, or deeper
      }
      if (list == path.npos) {
        judge(record, example);
        continue;
      }
      auto usual = example.list<JsonFields>(path.substr(0, list));
      usual.resize(1);
      for (const JsonFields& element : record.list<JsonFields>(path.substr(0, list))) {
        judge(element, usual.front());
      }
    }
    return found_.size() == before;
  }

  void add(const JsonRecord& record) {
    const std::string_view event = record.text("event");
    for (const char* count : {"tid", "threads_omitted", "python_threads_omitted"}) {
      expect(record.integer(count, 1) > 0, "record-fields", record, "'{}' is there, and is 0",
             count);
    }
    for (const char* text : {"job_id", "step_id", "state_name", "wchan", "syscall", "syscall_fd",
                             "doing", "missing"}) {
      expect(record.raw(text) != "\"\"", "record-fields", record, "'{}' is there, and is empty",
             text);
    }
    Run*& latest = latest_[run_key(record)];
    if (latest != nullptr && latest->stopped != nullptr) {
      expect(event == "server_started" || mono(record) > mono(*latest->stopped) + kEndOfServer,
             "server-life", record, "a record of a server that has stopped");
      latest = nullptr;  // another server with the pid of an earlier one
    } else if (latest != nullptr && latest->started != nullptr && event == "server_started") {
      expect(has_history_, "server-life", record, "a second start of a server");
      latest = nullptr;  // likewise, and the earlier one was killed
    }
    latest = latest != nullptr ? latest : &runs_.emplace_back();
    Run& run = *(run_of_[&record] = latest);
    // The time of an incident is that of its first verdict. The records of a kill are written again
    // by the server that continues it.
    const bool is_of_kill =
        event == "expired" || event == "evidence" || event == "released_late" || event == "killed";
    const bool is_of_past =
        run.started == nullptr || newest_[std::string(run.started->text("dir"))] != &run;
    if (event != "incident" && !(is_of_kill && is_of_past)) {
      expect(run.last == nullptr || mono(*run.last) <= mono(record), "time-forward", record,
             "earlier than the record before it of the same server");
      run.last = &record;
    }
    records_.push_back(&record);
    if (event == "server_started") {
      run.started = &record;
      newest_[std::string(record.text("dir"))] = &run;
    } else if (event == "server_stopped") {
      run.stopped = &record;
    } else if (event == "rejected") {
      run.rejected += record.integer("count");
      const bool is_at_the_end =
          lines_.back().text("event") == "server_stopped" ||
          (&record != &lines_.back() && std::next(&record)->text("event") == "server_stopped");
      expect(record.integer("count") > 0 &&
                 (is_at_the_end || run.last_rejected == nullptr ||
                  mono(record) - mono(*run.last_rejected) > kRejectedPeriod),
             "limits", record, "less than a second after the last one, or no count");
      run.last_rejected = &record;
    } else if (event == "expired") {
      ++run.expired;
      first_of_incident_.emplace(record.text("incident"), &record);
    } else if (event == "killed" && record.text("verdict") == "dead") {
      run.dead.insert(fmt::format("{} {}", record.integer("pid"), record.raw("signals")));
      dead_.emplace(worker_id(record), &record);
    }
    // Records of an id or of an incident, of which there is only one.
    const bool is_of_incident =
        event == "incident" || (event == "evidence_command" && !record.has("drop_in"));
    std::string id(record.text(is_of_incident ? "incident" : "id"));
    id += record.text("drop_in");
    const bool is_only_one = id.empty() || by_id_[event].emplace(id, &record).second;
    expect(is_only_one, "one-to-one", record, "a second '{}' of {}", event, id);
    if (event == "expired" || event == "left_open") {
      const auto [known, is_new] = verdicts_.emplace(scope_id(record), &record);
      const bool is_of_other_thread = known->second->has("tid") && record.has("tid") &&
                                      known->second->raw("tid") != record.raw("tid");
      const bool is_written_again = event == "left_open" && known->second->text("event") == event &&
                                    &run_of(*known->second) != &run_of(record) &&
                                    run_of(*known->second).stopped == nullptr;
      expect(is_new || is_of_other_thread || is_written_again, "one-verdict", record,
             "scope '{}' has a verdict in {}", record.text("scope"), known->second->place());
    }
  }

  // The counts are those of the records.
  void judge_stopped(const JsonRecord& record) {
    const Run& run = run_of(record);
    if (run.is_complete() && run.stopped == &record) {
      const auto dead = static_cast<std::int64_t>(run.dead.size());
      expect(record.integer("expired") == run.expired, "counts", record, "{} expired", run.expired);
      expect(record.integer("killed") == dead, "counts", record, "{} were killed", dead);
      expect(record.integer("rejected") == run.rejected, "counts", record, "{} were rejected",
             run.rejected);
    }
    const auto left = record.list<JsonFields>("left");
    expect(static_cast<std::int64_t>(left.size()) <= record.integer("left_count"), "counts", record,
           "{} scopes are listed as left, left_count is {}", left.size(),
           record.integer("left_count"));
  }

  void judge_expired(const JsonRecord& record) {
    const double from_acquire =
        seconds(record, "deadline_mono_ns") - seconds(record, "acquired_mono_ns");
    const double overdue = record.number("overdue_ms") / 1e3;
    const double elapsed = record.number("elapsed_s");
    const double timeout = record.number("timeout_s");
    const bool is_idle = record.text("scope") == kIdle;
    const Run& run = run_of(record);
    expect(overdue >= 0, "not-early", record, "judged {} s before its deadline", -overdue);
    // The deadline of a line on the pipe may have passed when the line was read.
    expect(from_acquire + kTimeoutRounding >= timeout || timeout == 0, "not-early", record,
           "its deadline is {} s after its opening, its timeout {} s", from_acquire, timeout);
    if (const JsonRecord* const warned = find(signalled_, scope_id(record)); warned != nullptr) {
      const double grace = seconds(record, "deadline_mono_ns") - seconds(*warned, "soft_mono_ns");
      expect(grace + kTimeoutRounding >= record.number("grace_s"), "signals", record,
             "it expired {} s after its signal", grace);
    }
    expect(is_near(from_acquire + overdue, elapsed), "record-times", record,
           "elapsed_s {} is not deadline + overdue_ms - acquired ({})", elapsed,
           from_acquire + overdue);
    expect(judged_at(record) <= mono(record) + kRounding, "record-times", record,
           "judged after the record was made");
    expect(is_idle || !(timeout > run.settings().number("max_timeout_s") + kRounding),
           "record-times", record, "timeout_s {} is above --max-timeout", timeout);
    expect(run.started == nullptr || run.started->text("dir") == record.text("dir"), "record-links",
           record, "dir is not that of its server");
    double before = HUGE_VAL;
    bool has_it = !is_first_of_kill(record) || record.integer("omitted") > 0 || is_idle ||
                  find(by_id_["released_late"], record.text("id")) != nullptr;  // between two looks
    for (const JsonFields& scope : record.list<JsonFields>("open_scopes")) {
      expect(scope.number("elapsed_s") <= before + kRounding, "record-times", record,
             "open_scopes are not in order");
      before = scope.number("elapsed_s");
      const bool is_same = scope.text("scope") == record.text("scope") &&
                           is_near(before, elapsed) &&
                           scope.integer("tid") == record.integer("tid") && !scope.flag("paused") &&
                           scope.raw("timeout_s") == record.raw("timeout_s") &&
                           scope.raw("code_timeout_s") == record.raw("code_timeout_s");
      has_it = has_it || is_same;
    }
    // Of scopes that expired together only the first record lists them, and a rotation may remove
    // it.
    const bool has_list =
        is_first_of_kill(record) || record.integer("omitted") > 0 || is_idle ||
        run.started == nullptr || find(by_id_["released_late"], record.text("id")) != nullptr ||
        std::ranges::any_of(by_id_["expired"], [&](const auto& other) {
          return other.second < &record && are_of_one_worker(*other.second, record) &&
                 is_near(judged_at(*other.second), judged_at(record));
        });
    expect(has_list, "record-links", record, "open_scopes is empty, and the worker's first");
    expect(has_it, "record-links", record, "open_scopes lack the expired scope with its values");
    judge_incident_of(record);
  }

  void judge_incident_of(const JsonRecord& expired) {
    const JsonRecord* incident = find(by_id_["incident"], expired.text("incident"));
    expect(incident != nullptr || !run_of(expired).is_complete(), "one-to-one", expired,
           "there is no incident {}", expired.text("incident"));
    if (incident == nullptr) {
      return;
    }
    const double behind = judged_at(expired) - mono(*incident);
    expect(behind >= -kRounding && behind <= kIncidentWindow + kRounding, "record-links", expired,
           "judged {} s after the beginning of its incident", behind);
    const auto listed = incident->list<std::string_view>("expired");
    expect(&expired > incident || std::ranges::find(listed, expired.text("id")) != listed.end(),
           "record-links", expired, "its incident was written later and does not list it");
  }

  void judge_incident(const JsonRecord& record) {
    const bool is_whole = record.integer("omitted") == 0;
    std::map<std::int64_t, double> workers;  // how long the last scope has been open
    for (const char* list : {"open_scopes", "in_no_scope"}) {
      for (const JsonFields& scope : record.list<JsonFields>(list)) {
        const double elapsed = scope.number("elapsed_s", HUGE_VAL);
        const auto [known, is_new] = workers.emplace(scope.integer("pid"), elapsed);
        expect(is_new || elapsed <= known->second + kRounding, "record-links", record,
               "worker {} is listed twice, or its scopes are not in order", known->first);
        known->second = elapsed;
      }
    }
    const auto count = static_cast<std::int64_t>(workers.size());
    expect(!is_whole || count == record.integer("workers"), "counts", record,
           "{} workers are listed, workers is {}", count, record.integer("workers"));
    expect(record.integer("read_late") <= record.integer("workers"), "counts", record,
           "more workers were read late than there are");
    for (const JsonFields& ended : record.list<JsonFields>("ended_scopes")) {
      for (const Element& each : ended.list<Element>("ended")) {
        double ago = HUGE_VAL;
        double took = -1;
        expect(each.at(0).get(ago) == simdjson::SUCCESS &&
                   each.at(1).get(took) == simdjson::SUCCESS && took >= 0 && ago < kIncidentPast,
               "record-times", record, "an ended scope of {} s ago took {} s", ago, took);
      }
    }
    const auto listed = record.list<std::string_view>("expired");
    expect(!listed.empty(), "record-links", record, "an incident without an expiry");
    expect(!run_of(record).settings().flag("evidence_command") || !run_of(record).is_complete() ||
               is_near_end(record) || find(by_id_["evidence_command"], record.text("incident")),
           "one-to-one", record, "it has no evidence command");
    for (const std::string_view id : listed) {
      const JsonRecord* expired = find(by_id_["expired"], id);
      expect(expired != nullptr || !run_of(record).is_complete(), "one-to-one", record,
             "no scope expired as {}", id);
      if (expired == nullptr) {
        continue;
      }
      expect(expired->text("incident") == record.text("incident"), "record-links", record,
             "{} is of another incident", id);
      const bool is_there = workers.contains(expired->integer("pid")) || !is_whole;
      expect(is_there || !is_near(judged_at(*expired), mono(record)), "record-links", record,
             "the worker of {} is missing", id);
      for (const JsonFields& scope : record.list<JsonFields>("open_scopes")) {
        const double opened = mono(record) - scope.number("elapsed_s");
        const double due = mono(record) + scope.number("remaining_s");
        const bool is_same = scope.integer("pid") == expired->integer("pid") &&
                             scope.text("scope") == expired->text("scope") &&
                             scope.integer("tid") == expired->integer("tid") &&
                             is_near(opened, seconds(*expired, "acquired_mono_ns"));
        // The worker may change a scope while its incident is open.
        const bool is_changed_later = judged_at(*expired) > mono(record) + kRounding;
        expect(!is_same || is_changed_later ||
                   (scope.raw("timeout_s") == expired->raw("timeout_s") &&
                    (has_missed_time_ ||
                     due < seconds(*expired, "deadline_mono_ns") + kTimeoutRounding)),
               "record-links", record, "the scope of {} has other times", id);
      }
    }
  }

  void judge_killed(const JsonRecord& record) {
    const JsonRecord* found = find_before(record, by_id_["expired"], "one-to-one");
    if (found == nullptr) {
      return;
    }
    const JsonRecord& expired = *found;
    judge_signals(record, expired);
    const Run& run = run_of(record);
    const auto signals = record.list<JsonFields>("signals");
    const std::int64_t last = signals.empty() ? 0 : signals.back().integer("signal");
    const double dead_after = record.number("dead_after_ms") / 1e3;
    const bool has_died = dead_after >= 0;
    // The next server continues a kill, and a server that stops shortens its waits.
    const bool is_cut_short = is_near_end(record) || &run != &run_of(expired) || is_incomplete_;
    const std::string_view verdict = record.text("verdict");
    const auto need = [&](bool holds, std::string_view what) {
      expect(holds, "outcomes", record, "'{}', but {}", verdict, what);
    };
    need(!(dead_after < 0) &&
             (!has_died || signals.empty() ||
              mono(signals.front()) + dead_after <= mono(record) + kTimeoutRounding),
         "dead_after_ms is no time between signal and record");
    if (verdict == "dead") {
      // When a worker died while no server ran is not known.
      need(!signals.empty() && (has_died || &run != &run_of(expired)),
           "there was no signal, or no death");
    } else if (verdict == "already_gone") {
      need(signals.empty() && !has_died, "there was a signal, or a death of one");
    } else if (verdict == "unkillable") {
      need(last == SIGKILL && !has_died, "there was no SIGKILL, or the worker died");
      need(is_cut_short || signals.empty() ||
               mono(record) - mono(signals.back()) >= run.settings().number("kill_wait_s", 0),
           "--kill-wait had not passed");
    } else {
      const bool is_released = find(by_id_["released_late"], record.text("id")) != nullptr;
      const bool is_replaced = std::ranges::any_of(by_id_["killed"], [&](const auto& other) {
        return other.second > &record && are_of_one_worker(*other.second, record);
      });
      need(verdict == "spared", "there is no such verdict");
      need(record.has("reason") && last != SIGKILL && !has_died,
           "there is no reason, or it was killed");
      const bool runs_another =
          record.text("reason").starts_with("the worker started another program");
      need(is_cut_short || is_released || runs_another || !signals.empty() ||
               expired.integer("signal") == 0 || run.settings().flag("dry_run"),
           "it was to be signalled, and was not released");
      // SIGKILL follows a grace period, unless the scope is released or another one decides.
      need(is_cut_short || is_released || is_replaced || signals.empty() ||
               !expired.has("grace_s") ||
               expired.integer("signal") != signals.front().integer("signal"),
           "it survived its signal, and SIGKILL did not follow");
    }
  }

  // Several scopes of the worker may have expired together: one of them decides. After a second
  // signal it is the one with the shortest grace period.
  const JsonRecord* deciding_expiry(const JsonRecord& record, const JsonRecord& expired,
                                    std::int64_t signal, bool has_second_signal) {
    if (!has_second_signal && expired.integer("signal") == signal) {
      return &expired;  // before all are looked at: there may be thousands
    }
    const auto grace_of = [](const JsonRecord& of) { return of.number("grace_s", 1e9); };
    const JsonRecord* deciding = nullptr;
    for (const auto& [id, other] : by_id_["expired"]) {
      const JsonRecord* const outcome = find(by_id_["killed"], id);
      const bool may_decide =
          has_second_signal ? other->integer("signal") > 0 : other->integer("signal") == signal;
      if (may_decide && other < &record && (outcome == nullptr || outcome > &expired) &&
          are_of_one_worker(*other, expired) &&
          (deciding == nullptr || (has_second_signal && grace_of(*other) < grace_of(*deciding)))) {
        deciding = other;
      }
    }
    return deciding;
  }

  void judge_signals(const JsonRecord& record, const JsonRecord& expired) {
    const JsonFields settings = run_of(record).settings();
    const auto signals = record.list<JsonFields>("signals");
    double before = mono(expired);
    for (const JsonFields& signal : signals) {
      expect(mono(signal) >= before && mono(signal) <= mono(record), "signal-after-record", record,
             "a signal before its verdict was recorded, or after the outcome");
      before = mono(signal);
      auto pids = signal.list<std::int64_t>("pids");
      std::ranges::sort(pids);
      expect(!pids.empty() && pids.front() > 1 && std::ranges::adjacent_find(pids) == pids.end() &&
                 !std::ranges::binary_search(pids, record.integer("server_pid")),
             "targets", record, "no target, a target twice, or init or the server as a target");
      expect(settings.text("kill") != "process" || pids.size() == 1, "targets", record,
             "several targets with --kill process");
    }
    if (signals.empty()) {
      return;
    }
    // The server before may have sent one.
    expect(!settings.flag("dry_run") || mono(signals.back()) < mono(*run_of(record).started),
           "signals", record, "a signal in a dry run");
    const std::int64_t first = signals.front().integer("signal");
    const bool is_asked_for = deciding_expiry(record, expired, first, false) != nullptr;
    expect(is_asked_for && first > 0, "signals", record, "no expired scope asks for {}", first);
    const JsonRecord* const deciding = deciding_expiry(record, expired, first, signals.size() == 2);
    if (deciding == nullptr) {
      return;
    }
    const bool is_only_one = first == SIGKILL || !deciding->has("grace_s");
    expect(signals.size() <= (is_only_one ? 1 : 2), "signals", record, "{} signals",
           signals.size());
    if (signals.size() == 2 && !is_only_one) {
      const double grace = mono(signals[1]) - mono(signals[0]);
      expect(signals[1].integer("signal") == SIGKILL, "signals", record,
             "the second is no SIGKILL");
      expect(grace + kTimeoutRounding >= deciding->number("grace_s") || is_near_end(record),
             "signals", record, "SIGKILL after {} s, grace_s is {}", grace,
             deciding->number("grace_s"));
    }
  }

  void judge_released_late(const JsonRecord& record) {
    if (const JsonRecord* expired = find_before(record, by_id_["expired"], "one-to-one")) {
      const double since = mono(record) - seconds(*expired, "deadline_mono_ns");
      const double late = record.number("late_ms") / 1e3;
      const JsonRecord* killed = find(by_id_["killed"], record.text("id"));
      expect(late >= 0 && late <= since + kTimeoutRounding, "record-times", record,
             "{} s late, the deadline was {} s ago", late, since);
      expect(killed == nullptr || killed > &record, "one-to-one", record,
             "released after the outcome of its kill");
    }
  }

  void judge_evidence(const JsonRecord& record) {
    const std::string_view event = record.text("event");
    const JsonFields settings = run_of(record).settings();
    expect(event != "evidence_command"      ? settings.text(event) != "none"
           : record.text("drop_in").empty() ? settings.flag("evidence_command", true)
                                            : settings.raw("evidence_drop_ins") != "[]",
           "record-links", record, "the settings switch this record off");
    for (const char* key : {"gathered_ms", "held_ms", "duration_ms"}) {
      expect(!(record.number(key) < 0), "record-times", record, "{} is negative", key);
    }
    if (event == "evidence") {
      find_before(record, by_id_["expired"], "one-to-one");
      const JsonRecord* killed = find(by_id_["killed"], record.text("id"));
      const auto signals =
          killed != nullptr ? killed->list<JsonFields>("signals") : std::vector<JsonFields>();
      expect(signals.empty() || mono(record) <= mono(signals.front()), "record-links", record,
             "collected after the signal");
      return;
    }
    const auto first = first_of_incident_.find(std::string(record.text("incident")));
    expect(is_incomplete_ || (first != first_of_incident_.end() && first->second < &record),
           "one-to-one", record, "no expiry of its incident before it");
  }

  void judge_hook(const JsonRecord& record) {
    const bool is_on_expiry = record.text("on") == "expiry";
    find_before(record, by_id_[is_on_expiry ? "killed" : "warned"], "hooks");
    expect(run_of(record).settings().flag(is_on_expiry ? "on_expiry" : "on_warning", true), "hooks",
           record, "the server has no such hook");
    const std::string_view result = record.text("result");
    const bool has_run = record.has("hook_pid");
    const bool is_known = std::string_view(" exited signalled timed_out stopped failed dropped ")
                              .find(fmt::format(" {} ", result)) != std::string_view::npos;
    expect(is_known && (result != "exited" || record.has("exit_status")) &&
               (result != "signalled" || record.has("signal")) &&
               has_run == (result != "dropped" && result != "failed") &&
               !(record.has("exit_status") && record.has("signal")) &&
               !(record.number("duration_ms") < 0),
           "hooks", record, "its fields do not fit its result '{}'", result);
  }

  void judge_warned(const JsonRecord& record) {
    const double from_acquire =
        seconds(record, "soft_mono_ns") - seconds(record, "acquired_mono_ns");
    const double overdue = record.number("overdue_ms") / 1e3;
    const double elapsed = record.number("elapsed_s");
    expect(overdue >= 0 && is_near(from_acquire + overdue, elapsed), "record-times", record,
           "elapsed_s {} is not soft deadline + overdue_ms - acquired ({})", elapsed,
           from_acquire + overdue);
    expect(
        record.number("soft_s") >= 0 && record.number("soft_s") <= from_acquire + kTimeoutRounding,
        "record-times", record, "soft_s is more than the time since its opening");
    const JsonRecord* const verdict = find(verdicts_, scope_id(record));
    expect(verdict == nullptr || verdict > &record, "record-times", record, "after its verdict");
    if (record.has("signal")) {
      signalled_.emplace(scope_id(record), &record);
      return;
    }
    auto& times = warnings_[worker_id(record)];
    times.push_back(seconds(record, "acquired_mono_ns") + elapsed);
    std::erase_if(times, [&](double time) { return time < times.back() - kWarningPeriod; });
    expect(times.size() <= kWarnings, "limits", record, "{} warnings of a worker in {} s",
           times.size(), kWarningPeriod);
  }

  void judge_left_open(const JsonRecord& record) {
    const double since = mono(record) - seconds(record, "acquired_mono_ns");
    expect(
        record.number("elapsed_s") >= -kRounding && record.number("elapsed_s") <= since + kRounding,
        "record-times", record, "elapsed_s is not between 0 and {}", since);
    const JsonRecord* const killed = find(dead_, worker_id(record));
    const JsonRecord* const expired =
        killed != nullptr ? find(by_id_["expired"], killed->text("id")) : nullptr;
    if (expired == nullptr) {
      return;
    }
    const auto signals = killed->list<JsonFields>("signals");
    if (signals.empty() || signals.back().integer("signal") != SIGKILL ||
        mono(record) < mono(signals.back())) {
      return;
    }
    const auto is_this = [&](const JsonFields& scope) {
      return scope.text("scope") == record.text("scope") &&
             is_near(judged_at(*expired) - scope.number("elapsed_s"),
                     seconds(record, "acquired_mono_ns"));
    };
    expect(std::ranges::none_of(expired->list<JsonFields>("open_scopes"), is_this), "outcomes",
           record, "left open, though the kill in {} cancels it", killed->place());
  }

  void judge_worker_ended(const JsonRecord& record) {
    for (const JsonFields& scope : record.list<JsonFields>("scopes")) {
      double counted = 0;
      double highest = -1;
      bool is_in_order = true;
      for (const Element& bucket : scope.list<Element>("histogram_ns")) {
        double from = -1;
        double number = 0;
        is_in_order = bucket.at(0).get(from) == simdjson::SUCCESS && is_in_order &&
                      bucket.at(1).get(number) == simdjson::SUCCESS && number > 0 && from > highest;
        counted += number;
        highest = from;
      }
      const auto count = static_cast<double>(scope.integer("count"));
      const double longest = scope.number("longest_s");
      const double total = scope.number("total_s");
      const double slack = 1e-9 * (count + 1);
      // A bucket is an eighth as wide as it begins, or 64 ns.
      expect(is_in_order && count > 0 && counted == count && total <= longest * count + slack &&
                 total + slack >= longest && scope.number("last_s") <= longest + slack &&
                 scope.number("first_s") <= longest + slack && highest / 1e9 <= longest + slack &&
                 longest * 1e9 <= highest * 1.125 + 64,
             "record-times", record, "the statistics of '{}' contradict each other",
             scope.text("scope"));
    }
  }

  void judge_deferred(const JsonRecord& record) {
    if (record.has("pid")) {
      expect(!(record.number("remaining_s") > kRounding) || record.flag("paused"), "record-times",
             record, "deferred {} s before the deadline", record.number("remaining_s"));
    } else {
      has_missed_time_ = true;
      expect(record.number("given_s") > kMissedTolerated && record.integer("scopes") > 0,
             "record-times", record, "given_s is {} for {} scopes", record.number("given_s"),
             record.integer("scopes"));
    }
  }

  void judge_rendezvous(const JsonRecord& record) {
    const auto joined = static_cast<std::int64_t>(record.list<Element>("joined").size());
    const auto missing = static_cast<std::int64_t>(record.list<Element>("missing").size());
    const bool has_failed = record.text("event") == "rendezvous_timeout";
    expect(record.integer("round") > 0 && record.number("waited_s") >= 0 &&
               (has_failed ? joined + missing <= record.integer("world") &&
                                 joined < record.integer("world")
                           : joined >= record.integer("world") && missing == 0),
           "counts", record, "{} joined, {} are missing of {}", joined, missing,
           record.integer("world"));
  }

  // Each verdict has an outcome, evidence and a hook, unless its server was killed or still runs.
  void judge_outcomes() {
    std::map<std::string_view, const JsonRecord*> last;  // start of a server, by directory
    for (const Run& run : runs_) {
      if (run.started != nullptr) {
        const JsonRecord*& known = last[run.started->text("dir")];
        known = std::max(known, run.started);
      }
    }
    for (const auto& [id, expired] : by_id_["expired"]) {
      const Run& run = run_of(*expired);
      const JsonRecord* killed = find(by_id_["killed"], id);
      const JsonRecord* last_start = last[expired->text("dir")];
      const bool is_over = last_start != nullptr && run_of(*last_start).is_complete();
      expect(killed != nullptr || !is_over || is_incomplete_, "one-to-one", *expired,
             "no outcome of {}", id);
      if (killed == nullptr || &run != &run_of(*killed) || !is_first_of_kill(*expired) ||
          !run.is_complete()) {
        continue;
      }
      expect(killed->list<JsonFields>("signals").empty() ||
                 run.settings().text("evidence") == "none" ||
                 find(by_id_["evidence"], id) != nullptr,
             "one-to-one", *expired, "no evidence of {}", id);
      expect(!run.settings().flag("on_expiry") || find(by_id_["hook"], id) != nullptr, "hooks",
             *expired, "no hook of {}", id);
    }
  }

  const std::map<std::string_view, Rule> rules_ = {
      {"server_stopped", &LogJudge::judge_stopped},
      {"incident", &LogJudge::judge_incident},
      {"expired", &LogJudge::judge_expired},
      {"killed", &LogJudge::judge_killed},
      {"released_late", &LogJudge::judge_released_late},
      {"evidence", &LogJudge::judge_evidence},
      {"peer_evidence", &LogJudge::judge_evidence},
      {"evidence_command", &LogJudge::judge_evidence},
      {"hook", &LogJudge::judge_hook},
      {"warned", &LogJudge::judge_warned},
      {"left_open", &LogJudge::judge_left_open},
      {"worker_ended", &LogJudge::judge_worker_ended},
      {"deferred", &LogJudge::judge_deferred},
      {"rendezvous", &LogJudge::judge_rendezvous},
      {"rendezvous_timeout", &LogJudge::judge_rendezvous},
  };
  const std::vector<JsonRecord>& lines_;
  const bool has_history_;
  std::vector<Violation>& found_;
  std::vector<const JsonRecord*> records_;
  std::deque<Run> runs_;
  std::map<std::string, const Run*> newest_;  // by directory
  std::map<std::string, Run*> latest_;        // by pid, which another server may get
  std::map<const JsonRecord*, Run*> run_of_;
  bool has_missed_time_ =
      false;  // given back so far: later readings of a scope have later deadlines
  std::map<std::string_view, ById> by_id_;                      // by event
  ById verdicts_;                                               // by scope
  std::map<std::string, const JsonRecord*> first_of_incident_;  // expired
  ById dead_;                                                   // killed, by worker
  ById signalled_;                                              // warned with a signal, by scope
  std::map<std::string, std::vector<double>> warnings_;         // by worker
  bool is_incomplete_ = false;  // the log was cut, or records were lost
};

}  // namespace

std::vector<const JsonRecord*> judge_log(const std::vector<JsonRecord>& lines, bool has_history,
                                         std::vector<Violation>& found) {
  return LogJudge(lines, has_history, found).run();
}

}  // namespace filetimer::chaos
