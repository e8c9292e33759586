// What must hold of every log. Each rule compares records with each other; docs/records.md says
// what their fields mean.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>

#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "tests/chaos/rules.hpp"

namespace filetimer::chaos {
namespace {

// Times in records are rounded to microseconds.
constexpr double kRounding = 2e-6;
// A deadline is computed from a timeout that was converted from text or milliseconds.
constexpr double kTimeoutRounding = 1e-3;
constexpr double kIncidentWindow = 2;  // seconds in which expiries are of one incident
constexpr double kIncidentPast = 600;  // seconds of which an incident lists ended scopes
constexpr double kRejectedPeriod = 1;  // seconds between two `rejected` records
constexpr double kTolerated = 1;       // seconds of missed time that are not given back
constexpr std::size_t kWarningsInPeriod = 16;
constexpr double kWarningPeriod = 10;  // seconds
// A stop may shorten the waits of kills that end this long before `server_stopped`.
constexpr double kEndOfServer = 40;

// Required fields: s text, i integer, n number, b flag, l list, o object, N number or null. A star:
// the record is about a worker.
const std::map<std::string_view, std::string_view> kFields = {
    {"server_started",
     "version:s dir:s fifo:s log:s settings:o adopted_scopes:i ended_scopes:i may:o limits:o"},
    {"server_stopped",
     "reason:s requests:i expired:i killed:i rejected:i lost_records:i left:l left_count:i"},
    {"incident",
     "incident:s expired:l workers:i open_scopes:l in_no_scope:l omitted:i ended_scopes:l "
     "ended_omitted:i"},
    {"expired",
     "* id:s incident:s scope:s timeout_s:N elapsed_s:n overdue_ms:n acquired_mono_ns:i "
     "deadline_mono_ns:i "
     "signal:i dir:s open_scopes:l omitted:i"},
    {"evidence", "* id:s"},
    {"peer_evidence", "* incident:s"},
    {"evidence_command", "* id:s incident:s scope:s result:s output:s output_bytes:i"},
    {"killed", "* id:s incident:s scope:s verdict:s signals:l dead_after_ms:N"},
    {"released_late", "* id:s scope:s late_ms:n reason:s"},
    {"warning_ended", "* id:s scope:s result:s after_s:n"},
    {"left_open", "* scope:s timeout_s:N elapsed_s:n acquired_mono_ns:i reason:s"},
    {"worker_ended", "* dir:s scopes:l omitted:i"},
    {"warned", "* scope:s reason:s"},
    {"deferred", "reason:s"},
    {"slow", "* scope:s kind:s median_s:n others_median_s:n factor:n ranks:i scopes:i"},
    {"hook", "* id:s on:s scope:s result:s"},
    {"rendezvous", "name:s round:i world:i waited_s:n joined:l missing:l"},
    {"rendezvous_timeout", "name:s round:i world:i waited_s:n joined:l missing:l left:l reason:s"},
    {"rejected", "count:i reason:s line:s"},
};
constexpr std::string_view kOfAll =
    "schema:i event:s time:s mono_ns:i host:s boot_id:s server_pid:i";
constexpr std::string_view kOfWorker = "pid:i start_time:i uid:i comm:s";

bool has_type(const Element& element, char type) {
  switch (type) {
    case 's':
      return element.is_string();
    case 'i':
      return element.is_int64() || element.is_uint64();
    case 'n':
      return element.is_number();
    case 'N':
      return element.is_number() || element.is_null();
    case 'b':
      return element.is_bool();
    case 'l':
      return element.is_array();
    default:
      return element.is_object();
  }
}

struct Scope {
  std::string boot;
  std::int64_t pid, start, acquired;
  std::string name;
  auto operator<=>(const Scope&) const = default;
};

// The records of one process of a server, in order.
struct Run {
  const JsonRecord* started = nullptr;
  const JsonRecord* stopped = nullptr;
  std::vector<const JsonRecord*> records;

  [[nodiscard]] JsonFields settings() const {
    return started != nullptr ? started->object("settings") : JsonFields();
  }
};

class LogJudge {
 public:
  LogJudge(const std::vector<JsonRecord>& lines, std::vector<Violation>& found)
      : lines_(lines), found_(found) {}

  void run() {
    collect();
    for (auto& [key, server] : servers_) {
      judge_server(server);
    }
    for (const auto& [id, expired] : expired_) {
      judge_expired(*expired);
    }
    for (const auto& [id, killed] : killed_) {
      judge_killed(*killed);
    }
    for (const auto& [id, incident] : incidents_) {
      judge_incident(*incident);
    }
    for (const JsonRecord* record : records_) {
      judge_other(*record);
    }
    judge_outcomes();
  }

 private:
  template <class... Args>
  void report(std::string_view promise, const JsonRecord& record, fmt::format_string<Args...> text,
              Args&&... args) {
    found_.push_back(
        {std::string(promise),
         fmt::format("{} ({}, pid {}, {})", fmt::format(text, std::forward<Args>(args)...),
                     record.text("event"), record.integer("pid"), record.place())});
  }

  static std::string run_key(const JsonRecord& record) {
    return fmt::format("{} {}", record.text("boot_id"), record.integer("server_pid"));
  }
  static Scope scope_of(const JsonRecord& record) {
    return {std::string(record.text("boot_id")), record.integer("pid"),
            record.integer("start_time"), record.integer("acquired_mono_ns"),
            std::string(record.text("scope"))};
  }
  static bool same_worker(const JsonRecord& a, const JsonRecord& b) {
    return a.integer("pid") == b.integer("pid") &&
           a.integer("start_time") == b.integer("start_time") &&
           a.text("boot_id") == b.text("boot_id") && a.integer("uid") == b.integer("uid");
  }
  static double mono(const JsonRecord& record) {
    return static_cast<double>(record.integer("mono_ns")) / 1e9;
  }
  [[nodiscard]] Run& run_of(const JsonRecord& record) { return servers_[run_key(record)]; }
  // Returns whether the record may come while its server ends.
  [[nodiscard]] bool is_near_end(const JsonRecord& record) {
    const Run& run = run_of(record);
    return run.stopped != nullptr && mono(*run.stopped) - mono(record) < kEndOfServer;
  }
  [[nodiscard]] bool is_first_of_kill(const JsonRecord& expired) const {
    return !expired.list<JsonFields>("open_scopes").empty();
  }
  // Returns whether the server of this record ended in order and lost no record.
  [[nodiscard]] bool is_complete(const Run& run) const {
    return run.started != nullptr && run.stopped != nullptr &&
           run.stopped->integer("lost_records") == 0;
  }

  void collect();
  bool check_fields(const JsonRecord& record);
  void check_fields(const JsonRecord& record, std::string_view fields);
  void add(const JsonRecord& record);
  void judge_server(Run& server);
  void judge_stop(Run& server);
  void judge_expired(const JsonRecord& expired);
  void judge_open_scopes(const JsonRecord& expired);
  void judge_killed(const JsonRecord& killed);
  void judge_signals(const JsonRecord& killed, const JsonRecord& expired);
  void judge_verdict(const JsonRecord& killed, const JsonRecord& expired);
  void judge_incident(const JsonRecord& incident);
  void judge_other(const JsonRecord& record);
  void judge_released_late(const JsonRecord& record);
  void judge_evidence(const JsonRecord& record);
  void judge_hook(const JsonRecord& record);
  void judge_warned(const JsonRecord& record);
  void judge_warning_ended(const JsonRecord& record);
  void judge_worker_ended(const JsonRecord& record);
  void judge_rendezvous(const JsonRecord& record);
  void judge_outcomes();

  using ById = std::map<std::string, const JsonRecord*, std::less<>>;
  const JsonRecord* find(const ById& records, std::string_view id) const {
    const auto found = records.find(id);
    return found == records.end() ? nullptr : found->second;
  }

  const std::vector<JsonRecord>& lines_;
  std::vector<Violation>& found_;
  std::vector<const JsonRecord*> records_;
  std::map<std::string, Run> servers_;
  ById expired_, killed_, incidents_, evidence_, warned_, warning_ended_, released_late_, hooks_,
      commands_;
  std::map<Scope, const JsonRecord*> verdicts_;
  bool is_cut_ = false;  // the beginning of the log is missing
};

void LogJudge::collect() {
  std::set<std::string_view> known;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const JsonRecord& line = lines_[i];
    if (!line.is_object()) {
      // A killed server may leave half a line. The next server ends it before its first record.
      const bool is_last = i + 1 == lines_.size();
      const bool is_torn = !is_last && !servers_.contains(run_key(lines_[i + 1]));
      if (!is_last && !is_torn) {
        report("strict-lines", line, "not a JSON object: {:.80}", line.line());
      }
      continue;
    }
    if (!known.insert(line.line()).second) {
      continue;  // written twice, when a write failed after its line was complete
    }
    if (check_fields(line)) {
      add(line);
    }
  }
  for (const auto& [key, run] : servers_) {
    is_cut_ = is_cut_ || run.started == nullptr;
  }
}

bool LogJudge::check_fields(const JsonRecord& record) {
  const std::size_t before = found_.size();
  check_fields(record, kOfAll);
  const auto fields = kFields.find(record.text("event"));
  if (fields == kFields.end() || record.integer("schema") != 1) {
    report("record-fields", record, "an unknown event or schema");
    return false;
  }
  check_fields(record, fields->second);
  return found_.size() == before;
}

void LogJudge::check_fields(const JsonRecord& record, std::string_view fields) {
  while (!fields.empty()) {
    const std::string_view field = fields.substr(0, fields.find(' '));
    fields.remove_prefix(std::min(field.size() + 1, fields.size()));
    if (field == "*") {
      check_fields(record, kOfWorker);
      continue;
    }
    const std::string_view name = field.substr(0, field.size() - 2);
    Element element;
    if (!record.get(name, element) || !has_type(element, field.back())) {
      report("record-fields", record, "'{}' is missing or of another type", name);
    }
  }
}

void LogJudge::add(const JsonRecord& record) {
  Run& run = run_of(record);
  const std::string_view event = record.text("event");
  if (run.stopped != nullptr) {
    if (event != "server_started" && run.stopped->integer("mono_ns") <= record.integer("mono_ns")) {
      report("server-life", record, "a record of a server that has stopped");
    }
    run = {};  // another server with the pid of an earlier one
  }
  // The moment of an incident is that of its first verdict.
  if (!run.records.empty() && event != "incident" &&
      run.records.back()->text("event") != "incident" &&
      record.integer("mono_ns") < run.records.back()->integer("mono_ns")) {
    report("time-forward", record, "earlier than the record before it of the same server");
  }
  run.records.push_back(&record);
  records_.push_back(&record);
  const auto once = [&](ById& by_id, std::string_view key) {
    const std::string id(record.text(key));
    if (!by_id.emplace(id, &record).second) {
      report("one-to-one", record, "a second '{}' record of {}", event, id);
    }
  };
  if (event == "server_started") {
    run.started = &record;
  } else if (event == "server_stopped") {
    run.stopped = &record;
  } else if (event == "expired") {
    once(expired_, "id");
  } else if (event == "killed") {
    once(killed_, "id");
  } else if (event == "incident") {
    once(incidents_, "incident");
  } else if (event == "evidence") {
    once(evidence_, "id");
  } else if (event == "released_late") {
    once(released_late_, "id");
  } else if (event == "warning_ended") {
    once(warning_ended_, "id");
  } else if (event == "hook") {
    once(hooks_, "id");
  } else if (event == "evidence_command") {
    once(commands_, "incident");
  } else if (event == "warned" && record.has("id")) {
    once(warned_, "id");
  }
  if (event == "expired" || event == "left_open") {
    const auto [known, is_new] = verdicts_.emplace(scope_of(record), &record);
    if (!is_new &&
        known->second->integer("tid") == record.integer("tid", known->second->integer("tid"))) {
      report("one-verdict", record, "scope '{}' has the verdict of {} already",
             record.text("scope"), known->second->place());
    }
  }
}

void LogJudge::judge_server(Run& server) {
  const JsonRecord* last_rejected = nullptr;
  std::map<std::int64_t, std::vector<double>> warnings;
  for (const JsonRecord* record : server.records) {
    if (record->text("event") == "rejected") {
      if (last_rejected != nullptr && server.stopped == nullptr &&
          mono(*record) - mono(*last_rejected) < kRejectedPeriod - kTimeoutRounding) {
        report("limits", *record, "less than {} s after the last one", kRejectedPeriod);
      }
      last_rejected = record;
    } else if (record->text("event") == "warned" && record->has("soft_mono_ns")) {
      const double noticed = static_cast<double>(record->integer("acquired_mono_ns")) / 1e9 +
                             record->number("elapsed_s");
      auto& times = warnings[record->integer("pid")];
      std::erase_if(times, [&](double time) { return time < noticed - kWarningPeriod; });
      times.push_back(noticed);
      if (times.size() > kWarningsInPeriod) {
        report("limits", *record, "more than {} warnings of a worker in {} s", kWarningsInPeriod,
               kWarningPeriod);
      }
    }
  }
  if (server.stopped != nullptr && server.started != nullptr) {
    judge_stop(server);
  }
}

// The counts of `server_stopped` are those of the records.
void LogJudge::judge_stop(Run& server) {
  const JsonRecord& stopped = *server.stopped;
  std::int64_t expired = 0;
  std::int64_t rejected = 0;
  std::set<std::pair<std::int64_t, std::string>> dead;
  for (const JsonRecord* record : server.records) {
    const std::string_view event = record->text("event");
    expired += event == "expired" ? 1 : 0;
    rejected += event == "rejected" ? record->integer("count") : 0;
    if (event == "killed" && record->text("verdict") == "dead") {
      dead.emplace(record->integer("pid"), record->raw("signals"));
    }
  }
  const auto compare = [&](std::string_view key, std::int64_t counted) {
    if (stopped.integer(key) != counted && stopped.integer("lost_records") == 0) {
      report("counts", stopped, "{} is {}, but the records say {}", key, stopped.integer(key),
             counted);
    }
  };
  compare("expired", expired);
  compare("killed", static_cast<std::int64_t>(dead.size()));
  compare("rejected", rejected);
  const auto left = static_cast<std::int64_t>(stopped.list<JsonFields>("left").size());
  if (left > stopped.integer("left_count") || stopped.integer("left_count") < 0) {
    report("counts", stopped, "{} scopes are listed as left, left_count is {}", left,
           stopped.integer("left_count"));
  }
}

void LogJudge::judge_expired(const JsonRecord& expired) {
  const std::int64_t acquired = expired.integer("acquired_mono_ns");
  const std::int64_t deadline = expired.integer("deadline_mono_ns");
  const double judged_after = expired.number("elapsed_s");
  const double overdue = expired.number("overdue_ms") / 1e3;
  const double from_acquire = static_cast<double>(deadline - acquired) / 1e9;
  const double timeout = expired.number("timeout_s");
  const bool is_idle = expired.text("scope") == "(idle)";
  if (std::isnan(timeout)) {
    report("not-early", expired, "a scope without a timeout expired");
  }
  if (overdue < 0) {
    report("not-early", expired, "judged {} s before its deadline", -overdue);
  }
  if (from_acquire + kTimeoutRounding < timeout) {
    report("not-early", expired, "its deadline is {} s after its opening, its timeout is {} s",
           from_acquire, timeout);
  }
  if (std::abs(from_acquire + overdue - judged_after) > kRounding) {
    report("record-times", expired, "elapsed_s {} is not deadline + overdue_ms - acquired ({})",
           judged_after, from_acquire + overdue);
  }
  const double judged = static_cast<double>(acquired) / 1e9 + judged_after;
  if (judged > mono(expired) + kRounding) {
    report("record-times", expired, "judged after the record was made");
  }
  const Run& run = run_of(expired);
  if (run.started != nullptr) {
    if (!is_idle && timeout > run.settings().number("max_timeout_s") + kRounding) {
      report("record-times", expired, "timeout_s {} is above --max-timeout", timeout);
    }
    if (run.started->text("dir") != expired.text("dir")) {
      report("record-links", expired, "dir is not that of its server");
    }
  }
  if (is_first_of_kill(expired)) {
    judge_open_scopes(expired);
  }
  const JsonRecord* incident = find(incidents_, expired.text("incident"));
  if (incident == nullptr) {
    if (is_complete(run)) {
      report("one-to-one", expired, "there is no incident {}", expired.text("incident"));
    }
    return;
  }
  const double behind = judged - mono(*incident);
  if (behind < -kRounding || behind > kIncidentWindow + kRounding) {
    report("record-links", expired, "judged {} s after the beginning of its incident", behind);
  }
  const auto listed = incident->list<std::string_view>("expired");
  if (&expired < incident && std::ranges::find(listed, expired.text("id")) == listed.end()) {
    report("record-links", expired, "its incident was written later and does not list {}",
           expired.text("id"));
  }
}

// The expired scope is among the open scopes of its worker, with the same times.
void LogJudge::judge_open_scopes(const JsonRecord& expired) {
  double before = HUGE_VAL;
  bool has_it = expired.integer("omitted") > 0 || expired.text("scope") == "(idle)";
  for (const JsonFields& scope : expired.list<JsonFields>("open_scopes")) {
    const double elapsed = scope.number("elapsed_s");
    if (elapsed > before + kRounding) {
      report("record-times", expired, "open_scopes are not in order");
    }
    before = elapsed;
    has_it = has_it || (scope.text("scope") == expired.text("scope") &&
                        std::abs(elapsed - expired.number("elapsed_s")) < kRounding &&
                        scope.integer("tid") == expired.integer("tid") &&
                        scope.raw("timeout_s") == expired.raw("timeout_s") &&
                        scope.raw("code_timeout_s") == expired.raw("code_timeout_s") &&
                        !scope.flag("paused"));
  }
  if (!has_it) {
    report("record-links", expired, "open_scopes lack the expired scope '{}' with its values",
           expired.text("scope"));
  }
}

void LogJudge::judge_killed(const JsonRecord& killed) {
  const JsonRecord* expired = find(expired_, killed.text("id"));
  if (expired == nullptr) {
    if (!is_cut_) {
      report("one-to-one", killed, "no scope expired as {}", killed.text("id"));
    }
    return;
  }
  for (const char* key : {"incident", "scope", "boot_id", "rank", "job_id"}) {
    if (killed.raw(key) != expired->raw(key) && killed.has(key) && expired->has(key)) {
      report("record-links", killed, "{} is not that of {}", key, expired->place());
    }
  }
  if (!same_worker(killed, *expired)) {
    report("record-links", killed, "another worker than in {}", expired->place());
  }
  if (&killed < expired) {
    report("signal-after-record", killed, "written before its verdict in {}", expired->place());
  }
  judge_signals(killed, *expired);
  judge_verdict(killed, *expired);
}

void LogJudge::judge_signals(const JsonRecord& killed, const JsonRecord& expired) {
  const JsonFields settings = run_of(killed).settings();
  const auto signals = killed.list<JsonFields>("signals");
  double before = mono(expired);
  for (const JsonFields& signal : signals) {
    const double sent = static_cast<double>(signal.integer("mono_ns")) / 1e9;
    if (sent < before || sent > mono(killed)) {
      report("signal-after-record", killed,
             "a signal was sent before its verdict was recorded, or after its outcome");
    }
    before = sent;
    const auto pids = signal.list<std::int64_t>("pids");
    const bool has_server = std::ranges::any_of(
        pids, [&](std::int64_t pid) { return pid <= 1 || pid == killed.integer("server_pid"); });
    if (has_server || std::set(pids.begin(), pids.end()).size() != pids.size()) {
      report("targets", killed, "signal targets have the server, init, or a process twice");
    }
    if (settings.text("kill") == "process" && pids.size() > 1) {
      report("targets", killed, "several targets with --kill process");
    }
    if (pids.empty()) {
      report("targets", killed, "a signal to nobody");
    }
  }
  if (signals.empty()) {
    return;
  }
  if (settings.flag("dry_run")) {
    report("targets", killed, "a signal in a dry run");
  }
  // The scope that decides may be another one that expired with it.
  const std::int64_t first = signals.front().integer("signal");
  const JsonRecord* deciding = nullptr;
  for (const auto& [id, other] : expired_) {
    if (same_worker(*other, expired) && other->integer("signal") == first &&
        (deciding == nullptr || other == &expired)) {
      deciding = other;
    }
  }
  if (deciding == nullptr || first <= 0) {
    report("signals", killed, "no expired scope of the worker asks for signal {}", first);
    return;
  }
  const bool is_final = first == SIGKILL || !deciding->has("grace_s");
  if (signals.size() > (is_final ? 1U : 2U)) {
    report("signals", killed, "{} signals", signals.size());
  } else if (signals.size() == 2) {
    const double grace =
        static_cast<double>(signals[1].integer("mono_ns") - signals[0].integer("mono_ns")) / 1e9;
    if (signals[1].integer("signal") != SIGKILL) {
      report("signals", killed, "the second signal is {}", signals[1].integer("signal"));
    }
    // A server that stops shortens the grace periods.
    if (grace + kTimeoutRounding < deciding->number("grace_s") && !is_near_end(killed)) {
      report("signals", killed, "SIGKILL came after {} s of a grace period of {} s", grace,
             deciding->number("grace_s"));
    }
  }
}

void LogJudge::judge_verdict(const JsonRecord& killed, const JsonRecord& expired) {
  const Run& run = run_of(killed);
  const std::string_view verdict = killed.text("verdict");
  const auto signals = killed.list<JsonFields>("signals");
  const double dead_after = killed.number("dead_after_ms") / 1e3;
  const std::int64_t last = signals.empty() ? 0 : signals.back().integer("signal");
  const bool was_stopping = is_near_end(killed);
  const bool was_resumed = &run != &run_of(expired);
  if (dead_after < 0 ||
      (!signals.empty() &&
       static_cast<double>(signals.front().integer("mono_ns")) / 1e9 + dead_after >
           mono(killed) + kTimeoutRounding)) {
    report("record-times", killed, "dead_after_ms is {}", dead_after * 1e3);
  }
  const auto expect = [&](bool holds, std::string_view what) {
    if (!holds) {
      report("outcomes", killed, "{}, but {}", verdict, what);
    }
  };
  if (verdict == "dead") {
    expect(!signals.empty(), "there was no signal");
    expect(dead_after >= 0, "dead_after_ms is null");
  } else if (verdict == "already_gone") {
    expect(signals.empty() && std::isnan(dead_after), "there was a signal");
  } else if (verdict == "unkillable") {
    expect(last == SIGKILL && std::isnan(dead_after), "there was no SIGKILL, or the worker died");
    expect(was_stopping || signals.empty() ||
               mono(killed) - static_cast<double>(signals.back().integer("mono_ns")) / 1e9 >=
                   run.settings().number("kill_wait_s", 0),
           "--kill-wait had not passed");
  } else if (verdict == "spared") {
    const bool is_released = released_late_.contains(killed.text("id"));
    expect(killed.has("reason"), "no reason is given");
    expect(last != SIGKILL && !(dead_after >= 0), "the worker got SIGKILL or died of a signal");
    expect(!signals.empty() || expired.integer("signal") == 0 || run.settings().flag("dry_run") ||
               is_released || was_stopping || was_resumed || !is_complete(run),
           "it was to be signalled, and was not released");
    if (signals.empty() || !expired.has("grace_s")) {
      return;
    }
    // SIGKILL follows the grace period, unless the scope is released, another scope of the worker
    // that may not be left late expires, or the server stops.
    const bool was_replaced = std::ranges::any_of(killed_, [&](const auto& other) {
      return other.second != &killed && same_worker(*other.second, killed) &&
             other.second > &killed;
    });
    expect(is_released || was_replaced || was_stopping || was_resumed,
           "it survived its signal, and SIGKILL did not follow");
  } else {
    report("record-fields", killed, "an unknown verdict '{}'", verdict);
  }
}

void LogJudge::judge_incident(const JsonRecord& incident) {
  const auto listed = incident.list<std::string_view>("expired");
  const bool is_whole = incident.integer("omitted") == 0;
  std::set<std::int64_t> workers;
  std::map<std::int64_t, double> last;
  for (const char* list : {"open_scopes", "in_no_scope"}) {
    for (const JsonFields& scope : incident.list<JsonFields>(list)) {
      const std::int64_t pid = scope.integer("pid");
      const double elapsed = scope.number("elapsed_s", 0);
      const bool is_new = workers.insert(pid).second;
      if (!is_new && (list == std::string_view("in_no_scope") || elapsed > last[pid] + kRounding)) {
        report("record-links", incident,
               "worker {} is listed twice, or its scopes are not in order", pid);
      }
      last[pid] = elapsed;
    }
  }
  if (is_whole && static_cast<std::int64_t>(workers.size()) != incident.integer("workers")) {
    report("counts", incident, "{} workers are listed, workers is {}", workers.size(),
           incident.integer("workers"));
  }
  if (listed.empty() || incident.integer("read_late") > incident.integer("workers")) {
    report("counts", incident, "no expiry, or more workers read late than there are");
  }
  for (const JsonFields& ended : incident.list<JsonFields>("ended_scopes")) {
    for (const Element& each : ended.list<Element>("ended")) {
      double ago = 0;
      double took = 0;
      if (each.at(0).get(ago) != simdjson::SUCCESS || each.at(1).get(took) != simdjson::SUCCESS ||
          took < 0 || ago > kIncidentPast + 1) {
        report("record-times", incident, "an ended scope of {} s ago took {} s", ago, took);
      }
    }
  }
  for (const std::string_view id : listed) {
    const JsonRecord* expired = find(expired_, id);
    if (expired == nullptr) {
      if (is_complete(run_of(incident))) {
        report("one-to-one", incident, "no scope expired as {}", id);
      }
      continue;
    }
    if (expired->text("incident") != incident.text("incident")) {
      report("record-links", incident, "{} is of another incident", id);
    }
    if (!workers.contains(expired->integer("pid")) && is_whole) {
      report("record-links", incident, "the worker of {} is missing", id);
    }
    // The scope as it was read: with the times of the verdict, unless it was released meanwhile.
    for (const JsonFields& scope : incident.list<JsonFields>("open_scopes")) {
      const double opened = mono(incident) - scope.number("elapsed_s");
      const double due = mono(incident) + scope.number("remaining_s");
      if (scope.integer("pid") == expired->integer("pid") &&
          scope.text("scope") == expired->text("scope") &&
          std::abs(opened - static_cast<double>(expired->integer("acquired_mono_ns")) / 1e9) <
              kRounding &&
          (scope.raw("timeout_s") != expired->raw("timeout_s") ||
           due > static_cast<double>(expired->integer("deadline_mono_ns")) / 1e9 +
                     kTimeoutRounding)) {
        report("record-links", incident, "the scope of {} has other times", id);
      }
    }
  }
}

void LogJudge::judge_other(const JsonRecord& record) {
  const std::string_view event = record.text("event");
  if (event == "released_late") {
    judge_released_late(record);
  } else if (event == "evidence" || event == "peer_evidence" || event == "evidence_command") {
    judge_evidence(record);
  } else if (event == "hook") {
    judge_hook(record);
  } else if (event == "warned") {
    judge_warned(record);
  } else if (event == "warning_ended") {
    judge_warning_ended(record);
  } else if (event == "worker_ended") {
    judge_worker_ended(record);
  } else if (event == "rendezvous" || event == "rendezvous_timeout") {
    judge_rendezvous(record);
  } else if (event == "left_open") {
    const double elapsed =
        mono(record) - static_cast<double>(record.integer("acquired_mono_ns")) / 1e9;
    if (record.number("elapsed_s") > elapsed + kRounding ||
        record.number("elapsed_s") < -kRounding) {
      report("record-times", record, "elapsed_s is {}, it was opened {} s ago",
             record.number("elapsed_s"), elapsed);
    }
  } else if (event == "deferred") {
    const bool is_of_all = !record.has("pid");
    if (is_of_all && !(record.number("given_s") > kTolerated && record.integer("scopes") > 0)) {
      report("record-times", record, "given_s is {} for {} scopes", record.number("given_s"),
             record.integer("scopes"));
    }
    if (!is_of_all && record.number("remaining_s") > kRounding && !record.flag("paused")) {
      report("record-times", record, "deferred {} s before the deadline",
             record.number("remaining_s"));
    }
  } else if (event == "rejected" && record.integer("count") < 1) {
    report("counts", record, "count is {}", record.integer("count"));
  } else if (event == "server_started" && run_of(record).started != &record && !is_cut_) {
    report("server-life", record, "a second start of one server");
  }
}

void LogJudge::judge_released_late(const JsonRecord& record) {
  const JsonRecord* expired = find(expired_, record.text("id"));
  const double late = record.number("late_ms") / 1e3;
  if (expired == nullptr) {
    if (!is_cut_) {
      report("one-to-one", record, "no scope expired as {}", record.text("id"));
    }
    return;
  }
  if (!same_worker(record, *expired) || record.text("scope") != expired->text("scope") ||
      &record < expired) {
    report("record-links", record, "not of the scope in {}, or before it", expired->place());
  }
  const double since =
      mono(record) - static_cast<double>(expired->integer("deadline_mono_ns")) / 1e9;
  if (late < 0 || late > since + kTimeoutRounding) {
    report("record-times", record, "late_ms is {}, the deadline was {} s ago", late * 1e3, since);
  }
  const JsonRecord* killed = find(killed_, record.text("id"));
  if (killed != nullptr && killed < &record && killed->text("verdict") != "spared") {
    report("one-verdict", record, "released after the outcome '{}' in {}", killed->text("verdict"),
           killed->place());
  }
}

void LogJudge::judge_evidence(const JsonRecord& record) {
  const JsonFields settings = run_of(record).settings();
  const bool is_of_peer = record.text("event") == "peer_evidence";
  const bool is_command = record.text("event") == "evidence_command";
  if ((is_command && !settings.flag("evidence_command", true)) ||
      (is_of_peer && settings.text("peer_evidence") == "none") ||
      (!is_command && !is_of_peer && settings.text("evidence") == "none")) {
    report("record-links", record, "the settings switch this record off");
  }
  const JsonRecord* first = nullptr;
  for (const auto& [id, expired] : expired_) {
    const bool is_meant = is_of_peer || is_command
                              ? expired->text("incident") == record.text("incident")
                              : id == record.text("id");
    if (is_meant && (first == nullptr || expired < first)) {
      first = expired;
    }
  }
  if (first == nullptr || first > &record) {
    if (!is_cut_) {
      report("one-to-one", record, "there is no verdict before it");
    }
    return;
  }
  if (!is_of_peer && !same_worker(record, *first)) {
    report("record-links", record, "another worker than in {}", first->place());
  }
  const JsonRecord* killed = find(killed_, record.text("id"));
  const auto signals =
      killed != nullptr ? killed->list<JsonFields>("signals") : std::vector<JsonFields>();
  if (!is_command && !signals.empty() &&
      record.integer("mono_ns") > signals.front().integer("mono_ns")) {
    report("record-links", record, "collected after the signal in {}", killed->place());
  }
  if (record.number("gathered_ms") < 0 || record.number("duration_ms") < 0 ||
      record.number("held_ms") < 0) {
    report("record-times", record, "a negative duration");
  }
}

void LogJudge::judge_hook(const JsonRecord& record) {
  const bool is_on_expiry = record.text("on") == "expiry";
  const JsonRecord* about = find(is_on_expiry ? killed_ : warned_, record.text("id"));
  if (about == nullptr || about > &record) {
    if (!is_cut_) {
      report("hooks", record, "there is no {} before it with id {}",
             is_on_expiry ? "outcome" : "warning", record.text("id"));
    }
    return;
  }
  if (!same_worker(record, *about) || record.text("scope") != about->text("scope") ||
      (is_on_expiry && record.text("incident") != about->text("incident"))) {
    report("hooks", record, "not of the worker, scope or incident in {}", about->place());
  }
  if (!run_of(record).settings().flag(is_on_expiry ? "on_expiry" : "on_warning", true)) {
    report("hooks", record, "the server has no such hook");
  }
  const std::string_view result = record.text("result");
  const bool has_run = record.has("hook_pid");
  if ((result == "exited") > record.has("exit_status") ||
      (result == "signalled") > record.has("signal") ||
      (result == "dropped" || result == "failed") == has_run ||
      record.number("duration_ms", 0) < 0 || (record.has("exit_status") && record.has("signal"))) {
    report("hooks", record, "its fields do not fit its result '{}'", result);
  }
}

void LogJudge::judge_warned(const JsonRecord& record) {
  if (!record.has("id")) {
    const double most = run_of(record).settings().number("max_timeout_s");
    const double granted = record.number("granted_s");
    const bool is_cut = record.has("asked_s");
    if (is_cut &&
        (record.number("asked_s", HUGE_VAL) <= granted || std::abs(granted - most) > kRounding)) {
      report("record-times", record, "{} s were granted with --max-timeout {}", granted, most);
    }
    return;
  }
  const double from_acquire =
      static_cast<double>(record.integer("soft_mono_ns") - record.integer("acquired_mono_ns")) /
      1e9;
  const double overdue = record.number("overdue_ms") / 1e3;
  if (overdue < 0 || std::abs(from_acquire + overdue - record.number("elapsed_s")) > kRounding) {
    report("record-times", record, "elapsed_s {} is not soft deadline + overdue_ms - acquired ({})",
           record.number("elapsed_s"), from_acquire + overdue);
  }
  const double soft = record.number("soft_s");
  if (soft < 0 || soft > from_acquire + kTimeoutRounding) {
    report("record-times", record, "soft_s is {}, its soft deadline {} s after its opening", soft,
           from_acquire);
  }
}

void LogJudge::judge_warning_ended(const JsonRecord& record) {
  const JsonRecord* warned = find(warned_, record.text("id"));
  if (warned == nullptr || warned > &record) {
    if (!is_cut_) {
      report("one-to-one", record, "no warning {} before it", record.text("id"));
    }
    return;
  }
  if (!same_worker(record, *warned) || record.text("scope") != warned->text("scope")) {
    report("record-links", record, "not of the scope in {}", warned->place());
  }
  const double since = mono(record) - static_cast<double>(warned->integer("soft_mono_ns")) / 1e9;
  if (record.number("after_s") < 0 || record.number("after_s") > since + kRounding) {
    report("record-times", record, "after_s is {}, the soft deadline was {} s ago",
           record.number("after_s"), since);
  }
  const auto verdict = verdicts_.find(scope_of(*warned));
  if (verdict != verdicts_.end() && record.text("result") == "released") {
    report("one-verdict", record, "released, and a verdict in {}", verdict->second->place());
  }
}

void LogJudge::judge_worker_ended(const JsonRecord& record) {
  for (const JsonFields& scope : record.list<JsonFields>("scopes")) {
    const double total = scope.number("total_s");
    const double longest = scope.number("longest_s");
    const auto count = static_cast<double>(scope.integer("count"));
    double in_histogram = 0;
    double highest = 0;
    for (const Element& bucket : scope.list<Element>("histogram_ns")) {
      double from = 0;
      double number = 0;
      (void)!bucket.at(0).get(from);
      (void)!bucket.at(1).get(number);
      in_histogram += number;
      if (number < 1 || from < highest) {
        report("record-times", record, "histogram of '{}' is not in order", scope.text("scope"));
      }
      highest = from;
    }
    const double slack = 1e-9 * (count + 1);
    if (count < 1 || in_histogram != count || total > longest * count + slack ||
        total + slack < longest || scope.number("last_s") > longest + slack ||
        scope.number("first_s") > longest + slack || highest / 1e9 > longest + slack ||
        highest * 1.125 + 64 < longest * 1e9) {
      report("record-times", record, "the statistics of '{}' contradict each other",
             scope.text("scope"));
    }
  }
}

void LogJudge::judge_rendezvous(const JsonRecord& record) {
  const auto joined = static_cast<std::int64_t>(record.list<Element>("joined").size());
  const auto missing = static_cast<std::int64_t>(record.list<Element>("missing").size());
  const bool is_complete = record.text("event") == "rendezvous";
  if (record.integer("round") < 1 || record.number("waited_s") < 0 ||
      joined + missing > record.integer("world") ||
      is_complete != (joined == record.integer("world"))) {
    report("counts", record, "{} joined, {} are missing of {}", joined, missing,
           record.integer("world"));
  }
}

// Each verdict has an outcome, evidence and a hook, unless its server was killed or still runs.
void LogJudge::judge_outcomes() {
  std::map<std::string_view, const JsonRecord*> last_start;  // by directory
  for (const auto& [key, run] : servers_) {
    if (run.started != nullptr) {
      const JsonRecord*& last = last_start[run.started->text("dir")];
      last = last == nullptr || last < run.started ? run.started : last;
    }
  }
  for (const auto& [id, expired] : expired_) {
    const JsonRecord* killed = find(killed_, id);
    const Run& run = run_of(*expired);
    const auto last = last_start.find(expired->text("dir"));
    const bool is_over = last != last_start.end() && is_complete(run_of(*last->second));
    if (killed == nullptr) {
      if (is_over && (run.stopped == nullptr || run.stopped->integer("lost_records") == 0)) {
        report("one-to-one", *expired, "{} has no outcome", id);
      }
      continue;
    }
    if (&run != &run_of(*killed) || !is_first_of_kill(*expired) || !is_complete(run)) {
      continue;
    }
    const bool was_signalled = !killed->list<JsonFields>("signals").empty();
    if (was_signalled && run.settings().text("evidence") != "none" && !evidence_.contains(id)) {
      report("one-to-one", *expired, "{} has no evidence", id);
    }
    if (run.settings().flag("on_expiry") && !hooks_.contains(id)) {
      report("hooks", *expired, "the hook of {} has no record", id);
    }
  }
}

}  // namespace

void judge_log(const std::vector<JsonRecord>& lines, std::vector<Violation>& found) {
  LogJudge(lines, found).run();
}

}  // namespace filetimer::chaos
