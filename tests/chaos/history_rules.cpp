// What must hold between the histories and the logs. What is not certain counts in favour of the
// server: a call has its effect at any moment between its two lines.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/chaos/checker.hpp"
#include "tests/chaos/json_record.hpp"

namespace filetimer::chaos {
namespace {

using Ns = std::int64_t;
constexpr Ns kNever = std::numeric_limits<Ns>::max() / 4;
constexpr Ns kSecond = 1'000'000'000;
constexpr Ns kClose = 2'000'000;    // times that are the same, converted and rounded
constexpr Ns kTurn = kSecond / 10;  // of the server's loop; what it finds has the time of its begin
constexpr int kMostGiven = 4;       // timeouts of missed time that are given back to a scope
constexpr Ns kUnseen = 350'000'000;  // the longest pause that may cost a short scope its time
constexpr Ns kLook = kSecond;        // how long the end of a halt may stay unnoticed
constexpr Ns kPrompt = 5 * kSecond;  // a verdict, a signal or an answer comes within
constexpr Ns kPromptUnderLoad = 20 * kSecond;
constexpr Ns kDefaultInterval = 10 * kSecond;

struct Span {
  Ns from = 0;
  Ns to = kNever;
};

struct Call {
  Ns begin = 0;
  Ns end = kNever;  // did not return
  bool ok = true;
  const JsonRecord* line = nullptr;
  const JsonRecord* result = nullptr;
};

// Returns how long at least one of the spans lasted.
Ns length_of(std::vector<Span> spans) {
  std::ranges::sort(spans, {}, &Span::from);
  Ns sum = 0;
  Ns counted = 0;  // up to here
  for (const Span& span : spans) {
    sum += std::max<Ns>(span.to - std::max(span.from, counted), 0);
    counted = std::max(counted, span.to);
  }
  return sum;
}

// A state that began and ended: `certain` lies within `possible`.
struct Halt {
  Span possible;
  Span certain;
};

struct Process {
  std::string name, role, parent;
  std::int64_t pid = 0, start = 0;
  Ns spawned = 0;           // no earlier
  Ns alive_until = kNever;  // certainly alive until
  Ns ended = kNever;        // certainly ended
  const JsonRecord* end = nullptr;
  std::set<std::int64_t> sent;        // signals of the driver
  std::optional<std::int64_t> exits;  // the code that it announced
  std::vector<Ns> leaves;             // began to exit or to start another program
  bool has_history = false;
  bool has_started_another = false;  // program
  std::vector<Halt> halts;
  std::vector<Call> calls;

  // Returns when the program that ran at this time was left.
  [[nodiscard]] Ns left(Ns at) const {
    const auto found = std::ranges::find_if(leaves, [at](Ns leave) { return leave >= at; });
    return found == leaves.end() ? kNever : *found;
  }

  // A server.
  std::string log;
  Ns ready = kNever;
  Ns asked_to_end = kNever;
  bool was_killed = false;
};

// One acquired scope.
struct Scope {
  Process* worker = nullptr;
  std::string key, name, via;
  Call open;
  std::vector<std::pair<std::string, Call>> changes;  // renew, pause, resume
  std::optional<Call> release;
  std::vector<const JsonRecord*> expired, left_open;
  bool was_signalled = false;  // at its soft deadline

  [[nodiscard]] bool may_be_watched() const {
    return open.ok && (open.result == nullptr || open.result->flag("watched", true));
  }
};

Ns when_judged(const JsonRecord& expired) {
  return expired.integer("deadline_mono_ns") + std::llround(expired.number("overdue_ms") * 1e6);
}

// What the logs say of one id.
struct Verdict {
  const Process* worker = nullptr;  // null: no process of the history
  const JsonRecord* expired = nullptr;
  const JsonRecord* killed = nullptr;
  const JsonRecord* released_late = nullptr;

  [[nodiscard]] bool is_of_one_server() const {
    return expired != nullptr && killed != nullptr &&
           expired->integer("server_pid") == killed->integer("server_pid");
  }
  [[nodiscard]] bool is_spared() const {
    return killed != nullptr && killed->text("verdict") == "spared";
  }
  [[nodiscard]] std::vector<JsonFields> signals() const {
    return killed != nullptr ? killed->list<JsonFields>("signals") : std::vector<JsonFields>();
  }
};

class HistoryJudge {
 public:
  HistoryJudge(const std::vector<JsonRecord>& lines, const std::vector<const JsonRecord*>& records,
               std::vector<Violation>& found)
      : lines_(lines), records_(records), found_(found) {}

  void run() {
    read_history();
    for (const auto& [name, process] : processes_) {
      if (process.role == "server") {
        servers_.push_back(&process);
      }
    }
    read_logs();
    for (Scope& scope : scopes_) {
      judge_scope(scope);
    }
    for (const auto& [id, verdict] : verdicts_) {
      judge_targets(verdict);
    }
    for (auto& [name, process] : processes_) {
      judge_end(process);
      for (const Call& call : process.calls) {
        judge_call(process, call);
      }
    }
    judge_records();
    drop_excused();
  }

 private:
  template <class... Args>
  void report(std::string_view promise, const std::string& subject,
              fmt::format_string<Args...> text, Args&&... args) {
    mine_.push_back(
        {subject,
         {std::string(promise),
          fmt::format("{} ({})", fmt::format(text, std::forward<Args>(args)...), subject)}});
  }
  static std::string whose(const Scope& scope) { return scope.worker->name + " " + scope.key; }

  JsonFields settings_of(const JsonRecord& record) const {
    const auto found = started_.find(record.integer("server_pid"));
    return found != started_.end() ? found->second->object("settings") : JsonFields();
  }
  Process* worker_of(const JsonRecord& record) {
    return process_of(record.integer("pid"), record.integer("start_time"),
                      record.integer("mono_ns"));
  }
  // Returns whether a kill has sent the signal (0: any) to the process, perhaps for its parent.
  bool has_sent(std::int64_t wanted, std::int64_t pid) const {
    return std::ranges::any_of(verdicts_, [&](const auto& entry) {
      return std::ranges::any_of(entry.second.signals(), [&](const JsonFields& each) {
        const auto pids = each.list<std::int64_t>("pids");
        return (wanted == 0 || each.integer("signal") == wanted) &&
               std::ranges::count(pids, pid) > 0;
      });
    });
  }

  void read_history() {
    std::map<std::pair<std::string_view, std::int64_t>, const JsonRecord*> ends;
    std::vector<const JsonRecord*> begins;
    for (const JsonRecord& line : lines_) {
      if (!line.is_object() || !line.has("t")) {
        report("history", line.place(), "not a line of a history: {:.80}", line.line());
        continue;
      }
      history_end_ = std::max(history_end_, line.integer("t"));
      if (line.flag("end")) {
        // A child of fork() continues the numbers of its parent under its own name.
        ends.emplace(std::pair{line.text("who"), line.integer("n")}, &line);
      }
      if (line.has("op")) {
        begins.push_back(&line);
      }
    }
    std::ranges::stable_sort(begins, {}, [](const JsonRecord* line) { return line->integer("t"); });
    for (const JsonRecord* line : begins) {
      Call call{line->integer("t"), kNever, true, line, nullptr};
      if (const auto end = ends.find({line->text("who"), line->integer("n")});
          end != ends.end() && line->has("n")) {
        call.result = end->second;
        call.end = call.result->integer("t");
        call.ok = call.result->flag("ok", true);
      }
      if (line->text("who") == "driver") {
        read_driver(*line, call);
      } else {
        Process& worker = processes_[std::string(line->text("who"))];
        worker.name = line->text("who");
        read_worker(worker, *line, call);
      }
    }
  }

  void read_driver(const JsonRecord& line, const Call& call) {
    const std::string_view op = line.text("op");
    if (op == "excuse") {
      excuses_.push_back(&line);
    } else if (op == "fault") {
      report(line.text("promise"), line.place(), "{}", line.text("what"));
    } else if (op == "load") {
      loads_.push_back({call.begin, call.end});
    } else if (op == "prompt") {
      prompt_ = line.integer("ns");
    } else if (op == "files") {
      files_.emplace_back(line.text("what"));
      if (line.flag("removes_pages")) {
        removals_of_pages_.push_back(call.begin);
      }
    }
    may_lack_records_ = may_lack_records_ || op == "log_trouble";
    if (!line.has("subject")) {
      return;
    }
    Process& process = processes_[std::string(line.text("subject"))];
    process.name = line.text("subject");
    if (op == "spawn") {
      process.role = line.text("role");
      process.parent = line.text("parent");
      process.spawned = call.begin;
      if (call.result != nullptr) {
        process.pid = call.result->integer("pid");
        process.start = call.result->integer("start");
      }
    } else if (op == "server") {
      process.role = "server";
      process.log = line.text("log");
      process.ready = call.ok ? call.end : kNever;
    } else if (op == "ended") {
      process.alive_until = line.integer("before");
      process.ended = call.begin;
      process.end = &line;
    } else if (op == "kill" || op == "kill_server" || op == "stop_server") {
      process.asked_to_end = std::min(process.asked_to_end, call.begin);
      process.was_killed = process.was_killed || op == "kill_server";
      if (op == "kill") {
        process.sent.insert(line.integer("signal"));
      }
    } else if (op == "halt") {
      process.halts.push_back({{call.begin, kNever}, {std::min(call.end, history_end_), kNever}});
    } else if (op == "resume") {
      for (Halt& halt : process.halts) {
        halt.certain.to = std::min(halt.certain.to, std::max(call.begin, halt.certain.from));
        halt.possible.to = std::min(halt.possible.to, call.end);
      }
    }
  }

  void read_worker(Process& worker, const JsonRecord& line, const Call& call) {
    const std::string_view op = line.text("op");
    const std::string key(line.text("key"));
    worker.has_history = true;
    worker.calls.push_back(call);
    if (op == "open") {
      by_key_[{worker.name, key}] = scopes_.size();
      Scope& scope = scopes_.emplace_back();
      scope.worker = &worker;
      scope.key = key;
      scope.name = line.text("scope", line.text("key"));
      scope.via = line.text("via", "page");
      scope.open = call;
      return;
    }
    if (op == "exit" || op == "exec") {
      worker.leaves.push_back(call.begin);
      worker.has_started_another = worker.has_started_another || op == "exec";
      if (op == "exit") {
        worker.exits = line.integer("code");
      }
    }
    const auto found = by_key_.find({worker.name, key});
    if (found == by_key_.end()) {
      return;
    }
    Scope& scope = scopes_[found->second];
    const bool is_over = op == "renew" && scope.via == "page" && call.result != nullptr && !call.ok;
    if (op == "release" || is_over) {  // a renewal behind the verdict releases the scope
      scope.release = scope.release.value_or(call);  // a second one has no effect
    } else if (op == "renew" || op == "pause" || op == "resume") {
      scope.changes.emplace_back(op, call);
    }
  }

  Process* process_of(std::int64_t pid, std::int64_t start, Ns at) {
    Process* found = nullptr;
    for (auto& [name, process] : processes_) {
      if (pid > 0 && process.pid == pid && process.spawned <= at &&
          (start == 0 || start == process.start) &&
          (found == nullptr || found->spawned < process.spawned)) {
        found = &process;
      }
    }
    return found;
  }

  // Returns the scope that a record is about: the one of the name that was opened last before then.
  Scope* scope_of(const JsonRecord& record) {
    const Ns acquired = record.integer("acquired_mono_ns");
    const Process* worker = worker_of(record);
    Scope* found = nullptr;
    for (Scope& scope : scopes_) {
      if (scope.worker == worker && scope.name == record.text("scope") &&
          scope.open.begin <= acquired + kClose) {
        if (scope.open.begin <= acquired && acquired <= scope.open.end && scope.open.end < kNever) {
          return &scope;
        }
        if (found == nullptr || found->open.begin < scope.open.begin) {
          found = &scope;
        }
      }
    }
    return found;
  }

  void read_logs() {
    std::map<std::int64_t, std::ptrdiff_t> starts;  // by pid of the server
    for (const JsonRecord* record : records_) {
      const std::string_view event = record->text("event");
      if (event == "server_started") {
        const std::int64_t pid = record->integer("server_pid");
        started_[pid] = record;
        const std::ptrdiff_t servers =
            std::ranges::count(servers_, pid, [](const Process* server) { return server->pid; });
        if (++starts[pid] > std::max<std::ptrdiff_t>(servers, 1)) {
          report("server-life", fmt::format("pid {}", pid), "a second start of a server, in {}",
                 record->place());
        }
      }
      if (event == "expired" || event == "killed" || event == "released_late") {
        Verdict& verdict = verdicts_[std::string(record->text("id"))];
        verdict.worker = worker_of(*record);
        (event == "expired"  ? verdict.expired
         : event == "killed" ? verdict.killed
                             : verdict.released_late) = record;
      }
      if (event == "rejected") {
        rejected_pids_.insert(record->integer("pid"));
        if (record->integer("count") > 1) {
          several_rejected_at_ = std::max(several_rejected_at_, record->integer("mono_ns"));
        }
      } else if (event == "expired" || event == "left_open") {
        Scope* scope = scope_of(*record);
        const auto wrote_it = [&](const Process* server) {
          return server->was_killed &&
                 server->pid == scope->left_open.back()->integer("server_pid");
        };
        if (scope != nullptr && event == "left_open" && !scope->left_open.empty() &&
            std::ranges::any_of(servers_, wrote_it)) {
          scope->left_open.back() = record;
        } else if (scope != nullptr) {
          (event == "expired" ? scope->expired : scope->left_open).push_back(record);
        } else if (record->text("scope") != "(idle)") {
          const Process* process = worker_of(*record);
          report("known-scopes",
                 process != nullptr ? process->name : fmt::format("pid {}", record->integer("pid")),
                 "{} of scope '{}', which it has not opened, in {}", event, record->text("scope"),
                 record->place());
        }
      } else if (event == "warned" && record->has("acquired_mono_ns") && record->has("signal")) {
        if (Scope* scope = scope_of(*record)) {
          scope->was_signalled = true;
        }
      }
    }
    for (const Process* server : servers_) {
      const bool is_removed =
          !server->log.empty() && std::ranges::any_of(files_, [&](const auto& what) {
            return what.find(server->log) != what.npos;
          });
      may_lack_records_ = may_lack_records_ || is_removed ||
                          (server->ready < kNever && !started_.contains(server->pid));
    }
  }

  bool is_below(const Process& process, const Process& ancestor) const {
    for (const Process* at = &process; at != nullptr;) {
      if (at == &ancestor) {
        return true;
      }
      const auto parent = processes_.find(at->parent);
      at = parent != processes_.end() ? &parent->second : nullptr;
    }
    return false;
  }

  Ns prompt(Ns from) const {
    const bool is_under_load = std::ranges::any_of(loads_, [&](const Span& load) {
      return load.from < from + kPromptUnderLoad && from < load.to;
    });
    return is_under_load ? kPromptUnderLoad : prompt_;
  }

  // Returns the time from the signal to the deadline of a scope that is signalled first; else 0.
  Ns grace_before_due(const Scope& scope) const {
    const JsonRecord& line = *scope.open.line;
    return line.has("spare") || line.has("raise") ? line.integer("grace_ns") : 0;
  }

  // Returns the earliest and the latest deadline that the worker's calls before `judged` allow,
  // without what is given back. {kNever, kNever}: it has none. Sets the timeout.
  Span timeout_at(const Scope& scope, Ns judged, Ns& timeout) const {
    const auto timeout_of = [](const JsonRecord& line, Ns missing) {
      return line.integer("timeout_ns", missing);
    };
    timeout = timeout_of(*scope.open.line, kNever);
    const auto after = [](Ns time, Ns length) {
      return time >= kNever || length >= kNever ? kNever : time + length;
    };
    Span due{after(scope.open.begin, timeout), after(scope.open.end, timeout)};
    Ns left = 0;
    bool is_paused = false;
    for (const auto& [op, call] : scope.changes) {
      if (!call.ok || call.begin > judged || (op != "renew" && (op == "pause") == is_paused)) {
        continue;  // without effect
      }
      const bool is_done = call.end <= judged;  // else it may have had its effect, or not
      const Ns now = is_done ? timeout_of(*call.line, timeout) : timeout;
      if (op == "renew" && is_paused) {
        left = now;
      } else if (op == "renew") {
        due = {is_done ? after(call.begin, now) : std::min(due.from, after(call.begin, now)),
               after(call.end, std::max(now, timeout))};
      } else if (op == "pause") {
        left = due.from < kNever ? std::max<Ns>(due.from - call.end, 0) : left;
        due = {is_done ? kNever : due.from, kNever};
        is_paused = is_done;
      } else {
        due = {is_done ? after(call.begin, left) : kNever, after(call.end, timeout)};
        is_paused = false;
      }
      is_paused = op == "renew" ? is_paused : op == "pause";
      timeout = now;
    }
    return due;
  }

  void judge_scope(Scope& scope) {
    const Process& worker = *scope.worker;
    for (const JsonRecord* expired : scope.expired) {
      judge_expired(scope, *expired);
    }
    const std::size_t verdicts = scope.expired.size() + scope.left_open.size();
    if (verdicts > 1) {
      report("one-verdict", whose(scope), "{} verdicts, the last in {}", verdicts,
             (scope.left_open.empty() ? scope.expired : scope.left_open).back()->place());
    }
    const bool is_released = scope.release && scope.release->ok && scope.release->result != nullptr;
    if (is_released && verdicts > 0) {
      const JsonRecord& verdict =
          *(scope.expired.empty() ? scope.left_open : scope.expired).front();
      const bool was_in_time = scope.release->result->flag("in_time") ||
                               scope.release->end < verdict.integer("deadline_mono_ns", kNever);
      if (was_in_time) {
        report("released-in-time", whose(scope), "released in time, but {} in {}",
               verdict.text("event"), verdict.place());
      }
    }
    // A server that is killed may have given the verdict without recording it.
    const auto lost_its_server = [&] {
      return std::ranges::any_of(servers_, [&](const Process* server) {
        return server->was_killed && scope.open.begin < server->asked_to_end &&
               server->asked_to_end < scope.release->end;
      });
    };
    if (is_released && !scope.release->result->flag("in_time", true) && scope.expired.empty() &&
        !(scope.open.line->has("raise") && scope.was_signalled) && scope.may_be_watched() &&
        history_end_ - scope.release->end > prompt(scope.release->end) && !may_lack_records_ &&
        !lost_its_server()) {
      report("one-verdict", whose(scope),
             "its release says that it was late, and there is no verdict");
    }
    if (is_released && !scope.expired.empty() && !may_lack_records_) {
      const std::string id(scope.expired.front()->text("id"));
      const Verdict& verdict = verdicts_[id];
      const bool is_due = verdict.is_spared() && verdict.is_of_one_server() &&
                          verdict.signals().empty() &&
                          !scope.release->result->flag("in_time", true) &&
                          scope.release->end + kTurn < verdict.killed->integer("mono_ns");
      if (is_due && verdict.released_late == nullptr) {
        report("one-to-one", whose(scope), "{} has no released_late", id);
      }
    }
    if (!scope.left_open.empty() && worker.left(scope.open.begin) == kNever &&
        worker.ended == kNever) {
      report("one-verdict", whose(scope), "left open by a worker that is alive, in {}",
             scope.left_open.front()->place());
    }
    const auto may_cancel = [&](const auto& entry) {
      const Verdict& verdict = entry.second;
      return verdict.worker == &worker && verdict.expired != nullptr &&
             (!verdict.is_of_one_server() || !verdict.signals().empty() ||
              !verdict.killed->list<std::string_view>("cancelled").empty());
    };
    // Else its client has removed its page, of which no server knew, when the worker exited.
    const bool was_watched = std::ranges::any_of(servers_, [&](const Process* server) {
      const Ns first = worker.calls.empty() ? worker.ended : worker.calls.front().end;
      const bool was_halted = std::ranges::any_of(server->halts, [&](const Halt& halt) {
        return halt.possible.from < first && worker.ended < halt.possible.to + kLook;
      });
      const Ns ready = server->ready;
      // A page that is removed is known to the server that had it, until that one ends, and to a
      // later one once its worker has made it again.
      const bool may_lack_page = std::ranges::any_of(removals_of_pages_, [&](Ns removed) {
        if (worker.ended <= removed) {  // then no server may have run that finds the page
          return !is_known_until_end(worker, removed);
        }
        return first < removed && removed < worker.ended &&
               (server->alive_until < worker.ended ||
                (removed < ready && worker.ended < ready + kLook));
      });
      return ready < worker.ended && !was_halted && !may_lack_page &&
             (worker.calls.empty() || server->alive_until > first + kLook);
    });
    const bool was_refused = scope.via != "page" && (several_rejected_at_ > scope.open.begin ||
                                                     rejected_pids_.contains(worker.pid));
    const bool is_decided = scope.release || !was_watched || was_refused || verdicts > 0 ||
                            scope.open.result == nullptr ||
                            std::ranges::any_of(verdicts_, may_cancel);  // else it may be cancelled
    if (!is_decided && scope.may_be_watched() && worker.ended < kNever && scope.via != "run" &&
        !may_lack_records_ &&
        (with_server(scope, worker.ended, 0) + kPrompt < history_end_ ||
         has_ended_in_order_after(worker.ended))) {
      report("one-verdict", whose(scope), "its worker ended inside it, and there is no record");
    }
    judge_hang(scope);
  }

  // The timeout is one that the worker asked for, or that the settings put in its place. Returns
  // whether they did.
  bool judge_terms(const Scope& scope, const JsonRecord& record) {
    const JsonFields settings = settings_of(record);
    const double granted = record.number("timeout_s", 0);
    const auto is_near = [granted](double limit) {
      return std::abs(granted - limit) * 1e9 <= kClose;
    };
    const bool is_replaced = scope.via == "torch" || record.has("code_timeout_s") ||
                             is_near(settings.number("max_timeout_s")) ||
                             is_near(settings.number("default_timeout_s"));
    bool is_known = is_replaced;
    const auto asked = [&](const JsonRecord& line) {
      is_known = is_known || is_near(static_cast<double>(line.integer("timeout_ns")) / 1e9);
    };
    asked(*scope.open.line);
    for (const auto& [op, call] : scope.changes) {
      asked(*call.line);
    }
    if (!is_known) {
      report("record-terms", whose(scope), "timeout_s is {}, for which it has not asked, in {}",
             granted, record.place());
    }
    return is_replaced;
  }

  bool has_ended_in_order_after(Ns at) const {
    return std::ranges::any_of(servers_, [at](const Process* server) {
      return server->ready < kNever && !server->was_killed && server->sent.empty() &&
             server->ended < kNever && server->asked_to_end < kNever &&
             server->asked_to_end > at + kLook;
    });
  }

  // Returns whether the server of the record knew the scope to be open in all that time.
  bool is_certainly_open(const Scope& scope, const JsonRecord& record, Ns from, Ns to) const {
    const Process& worker = *scope.worker;
    const auto started = started_.find(record.integer("server_pid"));
    for (const Process* server : servers_) {
      if (server->pid == record.integer("server_pid") &&
          std::ranges::any_of(server->halts, [&](const Halt& halt) {
            return halt.possible.from < to && scope.open.end < halt.possible.to + kLook;
          })) {
        return false;
      }
    }
    return scope.open.end + kLook < from && scope.may_be_watched() &&
           (scope.via == "page" || scope.via == "heartbeat") && started != started_.end() &&
           started->second->integer("mono_ns") + kLook < from &&
           (!scope.release || scope.release->begin > to) && worker.left(scope.open.begin) > to &&
           worker.alive_until > to &&
           std::ranges::none_of(scope.expired, [&](const JsonRecord* expired) {
             return expired->integer("deadline_mono_ns") < to;
           });
  }

  // The record lists all open scopes of the worker, or of all workers with pid 0.
  void judge_list(const JsonRecord& record, std::string_view list, Ns at, std::int64_t pid) {
    std::set<std::pair<std::int64_t, std::string_view>> listed;
    for (const JsonFields& scope : record.list<JsonFields>(list)) {
      listed.emplace(scope.integer("pid", pid), scope.text("scope"));
    }
    for (const std::string_view name : record.list<std::string_view>(list)) {
      listed.emplace(pid, name);
    }
    for (const Scope& scope : scopes_) {
      const bool is_killed = std::ranges::any_of(verdicts_, [&](const auto& entry) {
        return entry.second.killed != nullptr && entry.second.worker == scope.worker && pid == 0;
      });
      if ((pid == 0 || pid == scope.worker->pid) && !is_killed && files_.empty() &&
          record.integer("omitted") == 0 &&
          is_certainly_open(scope, record, at, record.integer("mono_ns") + kTurn) &&
          !listed.contains({scope.worker->pid, scope.name})) {
        report("record-links", whose(scope), "it is open and not among {}, in {}", list,
               record.place());
      }
    }
  }

  void judge_expired(const Scope& scope, const JsonRecord& expired) {
    const Process& worker = *scope.worker;
    const Ns judged = when_judged(expired);
    Ns timeout = 0;
    const Ns grace = grace_before_due(scope);
    Span due = timeout_at(scope, judged, timeout);
    due = {std::min(due.from + grace, kNever), std::min(due.to + grace, kNever)};
    const Ns most = std::llround(1e9 * expired.number("timeout_s"));
    const bool is_cut = judge_terms(scope, expired);
    const auto fail = [&](std::string_view promise, const std::string& what) {
      report(promise, whose(scope), "{}, in {}", what, expired.place());
    };
    const auto compare = [&](const char* term, std::int64_t recorded) {
      if (scope.open.line->integer(term, recorded) != recorded) {
        fail("record-terms", fmt::format("{} is {}, it asked for {}", term, recorded,
                                         scope.open.line->integer(term)));
      }
    };
    compare("grace_ns", std::llround(1e9 * expired.number("grace_s", 0)));
    if (grace == 0) {  // else another signal was sent before
      compare("signal", expired.integer("signal"));
    }
    const Ns acquired = expired.integer("acquired_mono_ns");
    const bool is_within_open = acquired <= scope.open.end + kClose;
    const bool has_moved =
        std::ranges::any_of(scope.changes, [&](const auto& change) {  // to a new page
          return change.second.begin <= acquired && acquired <= change.second.end;
        });
    if (scope.via == "page" && !is_within_open && !has_moved) {
      fail("record-terms", "acquired_mono_ns is not within its open()");
    }
    if (!is_cut && due.from > judged + kClose && scope.via != "torch") {
      fail("not-early", due.from >= kNever ? std::string("it has no deadline")
                                           : fmt::format("judged {} ms before its deadline",
                                                         (due.from - judged) / 1'000'000));
      return;
    }
    // While the worker is being killed, the server does not look for lost time.
    if (std::ranges::any_of(verdicts_, [&](const auto& entry) {
          const JsonRecord* const killed = entry.second.killed;
          return entry.second.worker == &worker && killed != nullptr &&
                 killed->text("verdict") == "unkillable" &&
                 killed->integer("mono_ns") > scope.open.begin &&
                 killed->integer("mono_ns") <= judged;
        })) {
      return;
    }
    // The server and the worker could run for three quarters of the timeout.
    const Ns length = std::min(timeout, most);
    const Ns from = judged >= length && due.from < kNever ? std::min(due.from - timeout, judged)
                                                          : scope.open.begin;
    std::vector<Span> halts;
    const auto add = [&](const Halt& halt) {
      halts.push_back({std::max(halt.certain.from, from), std::min(halt.certain.to, judged)});
    };
    const auto lasted = [&](const Halt& halt) {
      return std::min(halt.certain.to, judged) - std::max(halt.certain.from, from);
    };
    Ns ready = 0;
    // A sweep finds it.
    const Ns interval =
        kLook +
        std::llround(1e9 * settings_of(expired).number(
                               "max_interval_s", static_cast<double>(kDefaultInterval) / 1e9));
    // A pause between two looks of the server is not noticed. It costs a quarter of the timeout.
    const Ns unseen = std::max(length / 4, kUnseen);
    Ns may_lack = unseen;
    bool was_away = false;  // at the deadline, or the deadline was moved: it did not see the halt
    for (const Process* server : servers_) {
      if (server->pid != expired.integer("server_pid")) {
        continue;
      }
      ready = server->ready;
      Ns given = 0;
      int halts_given = 0;
      for (const Halt& halt : server->halts) {
        if (halt.certain.to - halt.certain.from > unseen && lasted(halt) > 0 &&
            given < kMostGiven * length) {
          add(halt);
          given += std::min(lasted(halt), length);
          may_lack = ++halts_given * unseen;
        }
      }
      was_away = std::ranges::any_of(server->halts, [&](const Halt& halt) {
        const bool is_missed = halt.certain.to - halt.certain.from > unseen;
        return halt.possible.from <= due.from && from <= halt.possible.to &&
               (is_missed || due.from <= halt.possible.to);
      });
    }
    for (const Halt& halt : worker.halts) {
      const bool is_at_deadline =
          std::max(halt.certain.from, ready) < due.from && due.from + kClose < halt.certain.to;
      const bool is_seen = lasted(halt) >= interval && halt.certain.to >= ready + interval;
      if (!was_away && (is_at_deadline || is_seen)) {
        add(halt);
      }
    }
    const Ns missed = length_of(std::move(halts));
    if (judged - from - missed < length - may_lack - kClose && missed > 0) {
      fail("not-early", fmt::format("{} ms of {} ms could be used: {} ms were missed",
                                    (judged - from - missed) / 1'000'000, length / 1'000'000,
                                    missed / 1'000'000));
    }
    const bool is_of_program = scope.via != "pipe" && scope.via != "torch";
    if ((is_of_program && worker.left(scope.open.begin) < std::min(due.from, judged) - kPrompt) ||
        worker.ended < expired.integer("deadline_mono_ns")) {
      fail("not-early", "its worker had exited, or ran another program, before the deadline");
    }
  }

  // Moves a deadline to when the server of the scope runs, with the time that it gives back.
  Ns with_server(const Scope& scope, Ns due, Ns timeout) const {
    Ns up = kNever;
    // The server gives the time since its last look, which was at most a quarter of a timeout ago.
    // PyTorch's lines have a deadline only: how long one has waited for the server is not known.
    const bool has_own_timeout = scope.via != "torch" || timeout == 0;
    for (const Process* server : servers_) {
      if (server->ready >= kNever) {
        continue;
      }
      const Ns until = std::min(server->asked_to_end, server->alive_until);
      Ns at = std::max(due, server->ready);
      for (const Halt& halt : server->halts) {
        if (halt.possible.from < at + kPrompt) {
          const Ns length = std::min(halt.possible.to, kNever) - halt.possible.from;
          at = halt.possible.to >= kNever
                   ? kNever
                   : std::max(at, halt.possible.to) +
                         (has_own_timeout ? std::min(length + timeout / 4, timeout)
                                          : std::clamp(halt.possible.to - server->ready, length,
                                                       std::max(length, kDefaultInterval)));
        }
      }
      if (at + 2 * prompt(at) < until) {
        up = std::min(up, at);
      }
    }
    return up;
  }

  // A scope that is open past its deadline has a verdict, and its worker a signal, within a bound.
  void judge_hang(const Scope& scope) {
    const Process& worker = *scope.worker;
    Ns timeout = 0;
    const Ns timed_out = timeout_at(scope, kNever, timeout).to;
    if (!scope.may_be_watched() || timed_out >= kNever || timeout >= kNever) {
      return;
    }
    const auto after_losses = [&](Ns due) {
      due = with_server(scope, due, 0);
      const auto move = [&](const Halt& halt) {
        if (due >= kNever || halt.possible.from > due + kPrompt) {
          return;
        }
        if (halt.possible.to >= kNever) {
          due = kNever;
        } else {  // it may have begun a look before it was seen, and ends with one
          const bool is_from_before_server =
              std::ranges::any_of(servers_, [&](const Process* server) {
                return halt.possible.from < server->ready && server->ready < halt.possible.to;
              });
          const Ns length = halt.possible.to - halt.possible.from + std::max(timeout / 4, kUnseen);
          due = std::max(due, halt.possible.to + kLook) +
                (is_from_before_server ? timeout : std::min(length + kLook, timeout));
        }
      };
      std::ranges::for_each(worker.halts, move);
      const Ns before = std::exchange(due, due < kNever ? with_server(scope, due, timeout) : due);
      if (due > before) {  // the next server may find the worker halted
        std::ranges::for_each(worker.halts, move);
      }
      return due;
    };
    // The whole grace period follows the signal, also if both had passed while time was lost.
    const Ns grace = grace_before_due(scope);
    Ns due = std::max(after_losses(std::min(timed_out + grace, kNever)),
                      std::min(after_losses(timed_out) + grace, kNever));
    for (const Process* server : servers_) {
      // A server does not know whether the one before it has sent the signal.
      if (grace > 0 && server->ready > timed_out && server->ready < kNever) {
        due = std::max(due, server->ready + grace);
      }
    }
    // A worker that is being killed is judged again when the kill is over.
    for (const auto& [id, verdict] : verdicts_) {
      if (verdict.worker == &worker && verdict.expired != nullptr && verdict.killed != nullptr &&
          verdict.expired->integer("mono_ns") <= due + prompt(due)) {
        due = std::max(due, verdict.killed->integer("mono_ns"));
        const auto cancelled = verdict.killed->list<std::string_view>("cancelled");
        if (scope.expired.empty() && std::ranges::find(cancelled, scope.name) != cancelled.end()) {
          return;
        }
      }
    }
    if (due >= kNever) {
      return;
    }
    const Ns open_until =
        std::min({scope.release ? scope.release->begin : kNever, worker.left(scope.open.begin),
                  worker.alive_until, worker.asked_to_end, history_end_});
    const Ns bound = due + prompt(due);
    if (scope.expired.empty()) {
      if (open_until > bound && !may_lack_records_) {
        report("hang-is-judged", whose(scope), "open {} ms past its deadline, and not judged",
               (open_until - due) / 1'000'000);
      }
      return;
    }
    const JsonRecord& expired = *scope.expired.front();
    const Ns judged = when_judged(expired);
    if (judged > bound) {
      report("hang-is-judged", whose(scope), "judged {} ms past its deadline, in {}",
             (judged - due) / 1'000'000, expired.place());
    }
    const Ns grace_after = std::llround(1e9 * expired.number("grace_s", 0));
    const Ns dead = std::max(judged, due) + grace_after + 2 * prompt(due);
    // Of scopes that expired together the earliest may have decided, for another signal.
    const Verdict& verdict = verdicts_[std::string(expired.text("id"))];
    const bool is_of_another = verdict.is_spared() && !verdict.signals().empty();
    const bool must_die = (expired.integer("signal") == SIGKILL && !is_of_another) ||
                          (expired.integer("signal") > 0 && expired.has("grace_s"));
    if (must_die && open_until > with_server(scope, dead, timeout)) {
      report("hang-is-killed", whose(scope), "alive long after its verdict in {}", expired.place());
    }
  }

  void judge_targets(const Verdict& verdict) {
    const Process* const worker = verdict.worker;
    if (worker == nullptr || verdict.expired == nullptr || verdict.killed == nullptr) {
      return;
    }
    const JsonRecord& killed = *verdict.killed;
    const Ns recorded = killed.integer("mono_ns");
    for (const JsonFields& signal : verdict.signals()) {
      for (const std::int64_t pid : signal.list<std::int64_t>("pids")) {
        const Process* target = process_of(pid, 0, signal.integer("mono_ns"));
        if (target != nullptr && target->ended > signal.integer("mono_ns") &&
            !is_below(*target, *worker)) {
          report("targets", target->name, "signalled for {}, in {}", worker->name, killed.place());
        }
      }
    }
    const std::string_view outcome = killed.text("verdict");
    const std::int64_t status = worker->end != nullptr ? worker->end->integer("status") : 0;
    // A server that was killed just then may have sent the signal and not noted it.
    const bool may_lack_signal = std::ranges::any_of(servers_, [&](const Process* server) {
      return server->was_killed && server->asked_to_end < worker->ended + kTurn &&
             worker->alive_until < server->ended;
    });
    if (outcome == "dead" && status < 0 && !worker->sent.contains(-status) && !may_lack_signal &&
        !has_sent(-status, worker->pid)) {
      report("outcomes", worker->name, "it died of signal {}, not of one in {}", -status,
             killed.place());
    }
    const bool is_dead = outcome == "dead" || outcome == "already_gone";
    if (is_dead && worker->alive_until > recorded + kSecond && history_end_ > recorded + kSecond) {
      report("outcomes", worker->name, "'{}' in {}, but it is alive later", outcome,
             killed.place());
    }
    if (outcome == "unkillable" && worker->ended < recorded - kSecond) {
      report("outcomes", worker->name, "unkillable in {}, but it had ended", killed.place());
    }
  }

  // A process that dies of a signal got it from the driver, or has a record. A process that exits
  // has announced it.
  void judge_end(const Process& process) {
    if (process.end == nullptr || !process.end->has("status")) {
      return;
    }
    const std::int64_t status = process.end->integer("status");
    if (process.role == "server") {
      const bool is_asked =
          process.asked_to_end < kNever &&
          (process.was_killed || !process.sent.empty() || status == 0 || status == 8);
      if (!is_asked && process.ready < kNever) {
        report("server-lives", process.name, "it ended with status {}", status);
      }
      return;
    }
    if (status >= 0) {
      if (status > 0 && process.exits.value_or(0) != status && process.role == "worker" &&
          process.has_history) {
        report("worker-unharmed", process.name, "it exited with {}, which it did not intend",
               status);
      }
      return;
    }
    if (process.sent.contains(-status) || process.exits == status) {
      return;
    }
    bool is_recorded = has_sent(0, process.pid);
    // The signal of a scope that is signalled first.
    for (const JsonRecord* record : records_) {
      is_recorded = is_recorded ||
                    (record->text("event") == "warned" && record->integer("pid") == process.pid &&
                     record->integer("signal") == -status);
    }
    // Its server may have been killed before it could write the outcome.
    for (const auto& [id, verdict] : verdicts_) {
      is_recorded =
          is_recorded || (verdict.worker != nullptr && is_below(process, *verdict.worker) &&
                          verdict.expired != nullptr && !verdict.is_of_one_server() &&
                          verdict.expired->integer("mono_ns") <= process.ended);
    }
    if ((!is_recorded && !may_lack_records_) || process.role == "bystander") {
      report("death-has-record", process.name, "a {} died of signal {}", process.role, -status);
    }
  }

  void judge_call(const Process& caller, const Call& call) {
    const Ns end = std::min({call.end, caller.alive_until, caller.left(call.begin), history_end_});
    Ns halted = 0;
    for (const Halt& halt : caller.halts) {
      halted += std::max<Ns>(
          std::min(halt.possible.to, end) - std::max(halt.possible.from, call.begin), 0);
    }
    if (end - call.begin - halted > prompt(call.begin)) {
      report("calls-return", caller.name, "{} took {} ms, in {}", call.line->text("op"),
             (end - call.begin) / 1'000'000, call.line->place());
    }
  }

  void judge_records() {
    std::map<std::pair<const Process*, std::string_view>, std::int64_t> counts;
    std::map<std::pair<const Process*, std::int64_t>, Ns> deferred;  // the last record of a server
    for (const JsonRecord* record : records_) {
      const Ns at = record->integer("mono_ns");
      const std::string_view event = record->text("event");
      const Process* worker = worker_of(*record);
      if (worker == nullptr) {
        continue;
      }
      const auto was_halted = [at](const Halt& halt) {
        return halt.possible.from <= at && at <= halt.possible.to + kLook;
      };
      const auto was_stopped_to_be_killed = [&](const auto& entry) {  // by a server that was killed
        return entry.second.worker == worker && entry.second.expired != nullptr &&
               entry.second.expired->integer("server_pid") != record->integer("server_pid");
      };
      const bool is_deferred =
          event == "deferred" && std::ranges::none_of(verdicts_, was_stopped_to_be_killed);
      if (is_deferred && std::ranges::none_of(worker->halts, was_halted)) {
        report("deferred-has-halt", worker->name, "deferred while it ran, in {}", record->place());
      } else if (is_deferred) {
        Ns& last =
            deferred.try_emplace({worker, record->integer("server_pid")}, -kNever).first->second;
        if (std::ranges::none_of(worker->halts, [&](const Halt& halt) {
              return (halt.possible.from > last && halt.possible.from <= at) ||
                     (halt.possible.to >= last && halt.possible.to <= at);
            })) {
          report("deferred-has-halt", worker->name, "deferred twice in one halt, in {}",
                 record->place());
        }
        last = at;
      } else if (const bool is_about_scope =
                     event == "left_open" || (event == "warned" && record->has("acquired_mono_ns"));
                 is_about_scope) {
        if (const Scope* scope = scope_of(*record)) {
          judge_terms(*scope, *record);
          if (event == "warned" && record->has("state") && scope->release && scope->release->ok &&
              scope->release->end + kLook < at) {
            report("record-links", worker->name, "evidence of a scope that it has left, in {}",
                   record->place());
          }
        }
      } else if (event == "released_late") {
        judge_released_late(*record);
      } else if (event == "worker_ended") {
        for (const JsonFields& scope : record->list<JsonFields>("scopes")) {
          counts[{worker, scope.text("scope")}] += scope.integer("count");
        }
      }
    }
    for (const JsonRecord* record : records_) {
      const std::string_view event = record->text("event");
      const Ns at = record->integer("mono_ns");
      const std::int64_t pid = record->integer("pid");
      if (event == "incident") {
        judge_list(*record, "open_scopes", at, 0);
      } else if (event == "server_stopped" && record->integer("left_count") < 8192) {
        judge_list(*record, "left", at - kSecond / 100, 0);
      } else if (event == "expired" && !record->list<JsonFields>("open_scopes").empty()) {
        judge_list(*record, "open_scopes", at - kSecond / 10, pid);
      }
    }
    for (const auto& [of, count] : counts) {
      judge_count(*of.first, of.second, count);
    }
  }

  // The release is not recorded earlier than it was.
  void judge_released_late(const JsonRecord& record) {
    const JsonRecord* const expired = verdicts_[std::string(record.text("id"))].expired;
    const Scope* const scope = expired != nullptr ? scope_of(*expired) : nullptr;
    if (scope == nullptr) {
      return;
    }
    const Ns released =
        expired->integer("deadline_mono_ns") + std::llround(record.number("late_ms") * 1e6);
    const bool has_other_end = scope->worker->left(scope->open.begin) < record.integer("mono_ns") ||
                               std::ranges::any_of(scope->changes, [&](const auto& change) {
                                 return change.second.begin < record.integer("mono_ns");
                               });
    const Ns begun = scope->release ? scope->release->begin : kNever;
    if (!has_other_end && begun > released + kTurn) {
      report("record-times", whose(*scope), "not released until then, in {}", record.place());
    }
  }

  // Returns whether a server had a page that was removed, and had it until its worker's end.
  bool is_known_until_end(const Process& worker, Ns removed) const {
    return std::ranges::any_of(servers_, [&](const Process* server) {
      return server->ready < removed && server->ended > worker.ended;
    });
  }

  // The statistics count the scopes that were released, and each renewal as one more.
  void judge_count(const Process& worker, std::string_view name, std::int64_t counted) {
    std::int64_t in_time = 0;
    std::int64_t all = 0;
    bool has_opened = false;
    for (const Scope& scope : scopes_) {
      if (scope.worker != &worker || scope.name != name) {
        continue;
      }
      if (scope.via != "page" || worker.has_started_another) {
        return;
      }
      has_opened = true;
      // A renewal that comes after the verdict ends its scope.
      const bool is_ended = std::ranges::any_of(scope.changes, [](const auto& change) {
        return !change.second.ok || change.second.result == nullptr;
      });
      all += scope.release || is_ended ? 1 : 0;
      all += std::ranges::count_if(scope.changes, [](const auto& change) {
        return change.first == "renew" && change.second.ok;
      });
      const bool has_lost_page = std::ranges::any_of(removals_of_pages_, [&](Ns removed) {
        return removed > scope.open.begin && !is_known_until_end(worker, removed);
      });
      const bool is_counted = scope.release && scope.release->result != nullptr &&
                              scope.release->result->flag("in_time") && !has_lost_page;
      in_time += is_counted ? 1 : 0;
    }
    if (has_opened && (counted < in_time || counted > all)) {
      report("counts", worker.name, "worker_ended counts {} scopes '{}', it released {}", counted,
             name, all);
    }
  }

  void drop_excused() {
    for (Violation& violation : std::exchange(found_, {})) {
      mine_.emplace_back("", std::move(violation));
    }
    for (const auto& entry : mine_) {
      const std::string& subject = entry.first;
      const Violation& violation = entry.second;
      const bool is_excused = std::ranges::any_of(excuses_, [&](const JsonRecord* excuse) {
        const auto names = [&](std::string_view field) {
          return !excuse->has(field) ||
                 (" " + subject + " ").find(fmt::format(" {} ", excuse->text(field))) !=
                     std::string::npos;
        };
        return excuse->text("promise") == violation.promise && names("subject") && names("key");
      });
      if (!is_excused) {
        found_.push_back(violation);
      }
    }
  }

  const std::vector<JsonRecord>& lines_;
  const std::vector<const JsonRecord*>& records_;
  std::vector<Violation>& found_;
  std::vector<std::pair<std::string, Violation>> mine_;
  std::map<std::string, Process, std::less<>> processes_;
  std::vector<Scope> scopes_;
  std::map<std::pair<std::string, std::string>, std::size_t> by_key_;
  std::vector<const Process*> servers_;
  std::map<std::string, Verdict> verdicts_;            // by id
  std::map<std::int64_t, const JsonRecord*> started_;  // by pid of the server
  std::set<std::int64_t> rejected_pids_;
  Ns several_rejected_at_ = -kNever;  // the last record of several, which names one of them
  std::vector<const JsonRecord*> excuses_;
  std::vector<Span> loads_;
  std::vector<std::string> files_;     // what was done to them
  std::vector<Ns> removals_of_pages_;  // of workers
  bool may_lack_records_ = false;      // the log could not be written, or was removed
  Ns history_end_ = 0;
  Ns prompt_ = kPrompt;
};

}  // namespace

void judge_history(const std::vector<JsonRecord>& calls,
                   const std::vector<const JsonRecord*>& records, std::vector<Violation>& found) {
  HistoryJudge(calls, records, found).run();
}

}  // namespace filetimer::chaos
