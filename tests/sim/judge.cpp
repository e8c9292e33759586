// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>

#include "tests/chaos/json_record.hpp"
#include "tests/sim/model.hpp"

namespace filetimer::sim {
namespace {

using chaos::JsonRecord;

// The server reads the pages and its pipe in less time than this.
constexpr Nanos kSlack = 30 * kMs;
constexpr Nanos kTolerated = kSecond;      // of time in which the server could not run
constexpr Nanos kLook = 500 * kMs;         // between looks at a halted worker
constexpr Nanos kGathering = 2'500 * kMs;  // evidence and sync
constexpr Nanos kRounding = 2'000'000;     // of times in milliseconds, and of Unix time in a double

Nanos overlap(const Span& span, Nanos from, Nanos to) {
  return std::max<Nanos>(0, std::min(span.to, to) - std::max(span.from, from));
}

bool overlaps(const std::vector<Span>& spans, Nanos from, Nanos to) {
  return std::ranges::any_of(spans,
                             [&](const Span& span) { return span.from <= to && span.to >= from; });
}

class Judge {
 public:
  Judge(Model& model, const std::string& log) : model_(model), options_(model.options) {
    std::ifstream file(log);
    std::string line;
    while (std::getline(file, line)) {
      records_.emplace_back("log", records_.size() + 1, line, file.peek() == EOF);
    }
  }

  void run() {
    for (const JsonRecord& record : records_) {
      const std::string_view event = record.text("event");
      if (event == "expired") {
        judge_expired(record);
      } else if (event == "left_open") {
        judge_left_open(record);
      } else if (event == "killed") {
        note_cancelled(record);
      }
    }
    for (const ModelScope& scope : model_.scopes) {
      judge_missing(scope);
    }
  }

 private:
  template <class... Args>
  void violation(fmt::format_string<Args...> text, Args&&... args) {
    model_.violations.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  ModelScope* scope_of(const JsonRecord& record) const;
  void judge_expired(const JsonRecord& record);
  void judge_terms(const ModelScope& scope, const JsonRecord& record, const Sign& sign);
  void judge_moment(const ModelScope& scope, const Sign& sign, Nanos judged);
  void judge_signals(const ModelScope& scope, const JsonRecord& record, Nanos judged);
  void judge_left_open(const JsonRecord& record);
  void note_cancelled(const JsonRecord& record);
  void judge_missing(const ModelScope& scope);
  [[nodiscard]] Nanos ran(const ModelScope& scope, Nanos from, Nanos to) const;
  [[nodiscard]] std::vector<Span> kills_of(const ModelScope& scope, Nanos before) const;
  [[nodiscard]] Nanos latest(const ModelScope& scope, const Sign& sign, Nanos judged) const;
  [[nodiscard]] const std::vector<Span>& of(
      const std::map<const MadeProcess*, std::vector<Span>>& spans, const ModelScope& scope) const {
    static const std::vector<Span> kNone;
    const auto found = spans.find(scope.process);
    return found == spans.end() ? kNone : found->second;
  }
  [[nodiscard]] const Span& server_at(Nanos time) const {
    return *std::ranges::find_if(
        model_.servers, [&](const Span& span) { return span.from <= time && span.to >= time; });
  }
  [[nodiscard]] const JsonRecord* killed(std::string_view id) const {
    const auto found = std::ranges::find_if(records_, [&](const JsonRecord& record) {
      return record.text("event") == "killed" && record.text("id") == id;
    });
    return found == records_.end() ? nullptr : &*found;
  }

  Model& model_;
  const Options& options_;
  std::vector<JsonRecord> records_;
  std::set<const ModelScope*> judged_;
  std::set<const ModelScope*> cancelled_;
};

// The scope that a record is about. A scope of the pipe is opened when its line is read.
ModelScope* Judge::scope_of(const JsonRecord& record) const {
  const Nanos acquired = record.integer("acquired_mono_ns");
  ModelScope* found = nullptr;
  for (ModelScope& scope : model_.scopes) {
    const bool is_meant =
        scope.process->pid == record.integer("pid") &&
        scope.process->start == static_cast<std::uint64_t>(record.integer("start_time")) &&
        scope.name == record.text("scope");
    const Nanos opened = scope.signs.front().when;
    if (is_meant && (scope.on_page         ? opened == acquired
                     : scope.has_odd_clock ? opened <= record.integer("mono_ns")
                                           : opened <= acquired + kRounding)) {
      found = &scope;
    }
  }
  return found;
}

// How long the worker could run and the server ran between two times. Spans that the server need
// not notice count as running.
Nanos Judge::ran(const ModelScope& scope, Nanos from, Nanos to) const {
  Nanos time = to - from;
  const Span& server = server_at(to);
  for (Span span : model_.away) {
    // Known: what comes before the planned moment is not missed.
    span.from = model_.excused.contains("F2") ? std::max(span.from, span.planned) : span.from;
    // A scope gets missed time once, until it is renewed.
    if (std::ranges::any_of(model_.suspends, [&](const Span& suspend) {
          return suspend.from >= from - options_.max_interval && suspend.from <= to;
        })) {
      break;
    }
    if (span.from >= server.from && span.to > from && span.to - span.from > kTolerated + kSlack) {
      time -= overlap(span, from, to);
      break;
    }
  }
  std::vector<Span> halts = of(model_.halts, scope);
  const std::vector<Span>& traces = of(model_.traces, scope);
  halts.insert(halts.end(), traces.begin(), traces.end());
  std::ranges::sort(halts, {}, &Span::from);
  Nanos counted = from;
  for (const Span& span : halts) {
    const bool is_seen = span.from >= server.from && !overlaps(model_.away, span.from, span.to) &&
                         span.to - span.from > options_.max_interval + kLook + kSlack;
    time -= is_seen ? overlap(span, counted, to) : 0;
    counted = is_seen ? std::max(counted, span.to) : counted;
  }
  return time;
}

// Returns the latest time of the verdict on a hung worker.
Nanos Judge::latest(const ModelScope& scope, const Sign& sign, Nanos judged) const {
  const Nanos timeout = sign.timeout;
  Nanos latest = sign.due() + kSlack;
  bool has_missed = false;
  for (const Span& span : model_.away) {
    if (span.to + kSlack > sign.when && span.from < judged) {
      latest += overlap(span, sign.when, judged) + kSlack;
      has_missed = true;
    }
  }
  for (const Span& span : model_.suspends) {
    // The server notices it when it wakes.
    has_missed =
        has_missed || (span.from >= sign.when - options_.max_interval && span.from < judged);
  }
  for (const auto* halts : {&of(model_.halts, scope), &of(model_.traces, scope)}) {
    for (const Span& span : *halts) {
      if (span.to > sign.when && span.from < judged) {
        latest += overlap(span, sign.when, judged) + kLook + kSlack;
        latest += halts == &of(model_.halts, scope) || model_.excused.contains("F11") ? timeout : 0;
      }
    }
  }
  const bool is_traced = !of(model_.traces, scope).empty() && !model_.excused.contains("F11");
  latest += has_missed || is_traced ? timeout : 0;
  // While no server ran, and until the next one has read what was left.
  Nanos from = sign.when;
  for (const Span& server : model_.servers) {
    if (server.to > sign.when && server.from < judged) {
      latest += std::max<Nanos>(0, server.from - std::max(from, sign.when));
      latest += server.from > sign.when ? 10 * kSlack : 0;
      from = server.to;
    }
  }
  // Scopes of a worker that is being killed are not judged.
  for (const Span& kill : kills_of(scope, judged)) {
    latest = kill.to > sign.when ? std::max(latest, kill.to + kSlack) : latest;
  }
  if (overlaps(model_.trouble, sign.when, judged) || scope.may_be_lost) {
    latest += options_.max_interval + timeout + 5 * kSecond;
  }
  return latest;
}

// Returns the kills of the worker of the scope that began before a time.
std::vector<Span> Judge::kills_of(const ModelScope& scope, Nanos before) const {
  std::vector<Span> kills;
  for (const JsonRecord& record : records_) {
    const JsonRecord* const outcome = record.text("event") == "expired" &&
                                              record.integer("pid") == scope.process->pid &&
                                              record.integer("mono_ns") < before
                                          ? killed(record.text("id"))
                                          : nullptr;
    if (outcome != nullptr) {
      kills.push_back({record.integer("mono_ns"), outcome->integer("mono_ns"), 0});
    }
  }
  return kills;
}

void Judge::judge_expired(const JsonRecord& record) {
  ModelScope* const found = scope_of(record);
  const Nanos judged = record.integer("deadline_mono_ns") +
                       std::llround(record.number("overdue_ms") * static_cast<double>(kMs));
  if (found == nullptr) {
    violation("one-verdict: {} expired, which no worker opened ({})", record.text("scope"),
              record.place());
    return;
  }
  const ModelScope& scope = *found;
  if (!judged_.insert(found).second) {
    violation("one-verdict: {} is judged twice ({})", scope.key, record.place());
    return;
  }
  const auto sign = std::find_if(scope.signs.rbegin(), scope.signs.rend(),
                                 [&](const Sign& each) { return each.when <= judged; });
  if (scope.end == End::kInTime) {
    violation("released-in-time: {} was released in time and expired ({})", scope.key,
              record.place());
  }
  if (scope.end == End::kUnknown && scope.ended_at < sign->due() && !scope.may_be_lost &&
      !scope.has_odd_clock && !overlaps(model_.trouble, scope.ended_at, judged) &&
      server_at(judged).from <= scope.ended_at) {
    violation("released-in-time: {} was released in time by a line and expired ({})", scope.key,
              record.place());
  }
  if (scope.process->ended_at < judged - kSlack) {
    violation("who-is-judged: {} expired after its worker ended ({})", scope.key, record.place());
  }
  judge_terms(scope, record, *sign);
  judge_moment(scope, *sign, judged);
  judge_signals(scope, record, judged);
}

void Judge::judge_terms(const ModelScope& scope, const JsonRecord& record, const Sign& sign) {
  const Terms& terms = scope.terms;
  if (record.integer("signal") != terms.signal) {
    violation("terms: the signal of {} is {} ({})", scope.key, record.integer("signal"),
              record.place());
  }
  Nanos grace = kNever;
  if (terms.grace_ms < kNoSigkill) {
    grace = terms.grace_ms * kMs;
  } else if (terms.grace_ms == kServersGrace) {
    grace = options_.has_grace ? options_.grace : terms.is_torch ? kNever : 10 * kSecond;
  }
  const double recorded = record.number("grace_s", -1);
  if (grace == kNever ? recorded >= 0
                      : std::abs(recorded - static_cast<double>(grace) / 1e9) > 1e-6) {
    violation("terms: the grace period of {} is {} ({})", scope.key, recorded, record.place());
  }
  const double timeout = record.number("timeout_s", -1);
  const bool is_exact = !terms.is_torch && scope.signs.size() == 1;
  if (is_exact && std::abs(timeout - static_cast<double>(sign.timeout) / 1e9) > 0.002) {
    violation("terms: the timeout of {} is {} ({})", scope.key, timeout, record.place());
  }
}

void Judge::judge_moment(const ModelScope& scope, const Sign& sign, Nanos judged) {
  if (sign.is_paused && options_.max_timeout == kNever) {
    violation("not-before-deadline: {} was judged in a pause", scope.key);
    return;
  }
  if (sign.timeout == kNever) {
    violation("not-before-deadline: {} has no deadline and was judged", scope.key);
    return;
  }
  if (judged < sign.due() - kRounding && !sign.is_paused && !scope.has_odd_clock) {
    violation("not-before-deadline: {} was judged {} ms before its deadline", scope.key,
              (sign.due() - judged) / kMs);
  }
  for (const auto* halts : {&of(model_.halts, scope), &of(model_.traces, scope)}) {
    if (std::ranges::any_of(*halts, [&](const Span& span) {
          return span.from < judged - kSlack && span.to > judged;
        })) {
      violation("not-while-halted: {} was judged while its worker was halted", scope.key);
    }
  }
  const bool is_read_late = scope.terms.is_torch && overlaps(model_.away, sign.when, sign.when);
  if (scope.has_odd_clock || (is_read_late && model_.excused.contains("F2"))) {
    return;
  }
  const Nanos time = ran(scope, sign.when, judged);
  if (!sign.is_paused && time < sign.timeout / 4 * 3 - kSlack) {
    violation("three-quarters: {} had {} ms of its {} ms", scope.key, time / kMs,
              sign.timeout / kMs);
  }
  const Nanos latest_time = latest(scope, sign, judged);
  if (!sign.is_paused && judged > latest_time) {
    violation("in-time: {} was judged {} ms late", scope.key, (judged - latest_time) / kMs);
  }
}

void Judge::judge_signals(const ModelScope& scope, const JsonRecord& record, Nanos judged) {
  const JsonRecord* const outcome = killed(record.text("id"));
  if (outcome == nullptr) {
    return;  // the checker reports it
  }
  std::vector<SentSignal> to_worker;
  for (const SentSignal& sent : model_.signals) {
    if (sent.process == scope.process && sent.when >= judged && sent.signal != SIGSTOP &&
        sent.signal != SIGCONT) {
      to_worker.push_back(sent);
    }
  }
  const std::string_view verdict = outcome->text("verdict");
  if (verdict == "dead" && (scope.process->is_alive || to_worker.empty())) {
    violation("outcomes: {} is recorded as dead and is not, or had no signal", scope.worker);
  }
  const Nanos ended = outcome->integer("mono_ns");
  const bool is_troubled =
      overlaps(model_.away, judged, ended) || overlaps(model_.trouble, judged, ended) ||
      server_at(judged).to < ended || overlaps(kills_of(scope, judged - kSlack), judged, judged);
  if (is_troubled || to_worker.empty()) {
    return;
  }
  if (to_worker.front().when > judged + (options_.has_evidence ? kGathering : 2 * kSlack) &&
      verdict != "spared") {
    violation("in-time: {} was signalled {} ms after its verdict", scope.worker,
              (to_worker.front().when - judged) / kMs);
  }
  // Every descendant gets the signal, too.
  const SentSignal& last = to_worker.back();
  if (last.signal == SIGKILL && options_.kill == 't') {
    for (const auto& process : kernel->all()) {
      if (process->parent == scope.process && process->is_alive &&
          process->start * 10 * kMs + kSlack < static_cast<std::uint64_t>(judged)) {
        violation("whole-tree: {} survives the kill of {}", process->comm, scope.worker);
      }
    }
  }
}

void Judge::judge_left_open(const JsonRecord& record) {
  const ModelScope* const scope = scope_of(record);
  if (scope == nullptr || (scope->end != End::kWorker && scope->end != End::kUnknown)) {
    violation("one-verdict: {} of pid {} is left open, but its worker goes on ({})",
              record.text("scope"), record.integer("pid"), record.place());
  } else if (!judged_.insert(scope).second) {
    violation("one-verdict: {} is judged twice ({})", scope->key, record.place());
  }
}

// The other scopes of a worker that is signalled are cancelled.
void Judge::note_cancelled(const JsonRecord& record) {
  for (const std::string_view name : record.list<std::string_view>("cancelled")) {
    for (const ModelScope& scope : model_.scopes) {
      if (scope.name == name && scope.process->pid == record.integer("pid") &&
          scope.signs.front().when <= record.integer("mono_ns")) {
        cancelled_.insert(&scope);
      }
    }
  }
}

// A scope whose deadline has long passed has a verdict.
void Judge::judge_missing(const ModelScope& scope) {
  const Sign& sign = scope.signs.back();
  const bool is_hung = scope.end == End::kNone && !sign.is_paused && sign.timeout != kNever;
  const bool is_excused = scope.may_be_lost || scope.process->is_stuck ||
                          !scope.process->is_alive || judged_.contains(&scope) ||
                          cancelled_.contains(&scope) || model_.has_drained;
  if (!is_hung || is_excused) {
    return;
  }
  if (sign.due() + 25 * kSecond < kernel->now) {
    violation("in-time: {} ('{}' of {}) hangs and was not judged", scope.key, scope.name,
              scope.worker);
  }
}

}  // namespace

void judge(Model& model, const std::string& log) {
  Judge(model, log).run();
}

}  // namespace filetimer::sim
