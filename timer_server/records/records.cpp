// SPDX-License-Identifier: MIT
#include "timer_server/records/records.hpp"

#include <fmt/format.h>
#include <string.h>  // sigabbrev_np

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "common/duration_text.hpp"
#include "common/scope_page.hpp"

namespace filetimer {
namespace {

constexpr int kSchema = 1;
constexpr double kNull = std::numeric_limits<double>::infinity();  // JsonWriter writes null for it

// The timeout of a scope that has none is null.
void write_timeouts(JsonWriter& json, const SlotReading& scope) {
  json.field("timeout_s", seconds_or_infinity(scope.timeout));
  if (scope.code_timeout) {
    json.field("code_timeout_s", seconds_or_infinity(*scope.code_timeout));
  }
}

// A record has a limit, so that tools can read it: writes the values of a list for which there is
// room while the record has fewer bytes than `most_bytes`. Returns how many others there are.
template <class Values, class Write>
std::size_t write_most(const JsonWriter& json, std::size_t most_bytes, const Values& values,
                       Write write) {
  std::size_t omitted = 0;
  for (const auto& value : values) {
    if (json.size() < most_bytes) {
      write(value);
    } else {
      ++omitted;
    }
  }
  return omitted;
}

// What one entry of `worker_ended` takes at most: two histograms without an empty bucket, and a
// name of which each byte is escaped.
constexpr std::size_t kMaxBytesOfStatistics =
    kHistogramBuckets * 2 * 40 + kMaxScopeNameBytes * 6 + 512;

// One entry of `worker_ended`.
void write_statistics(JsonWriter& json, const std::string& scope, const ScopeStatistics& sums) {
  json.begin_object()
      .field("scope", scope)
      .field("count", sums.count)
      .seconds("total_s", sums.total)
      .seconds("longest_s", sums.longest)
      .seconds("last_s", sums.last)
      .seconds("smallest_margin_s", sums.smallest_margin)
      .seconds("first_s", sums.longest_first)
      .field("timeout_s", seconds_or_infinity(sums.timeout));
  write_histogram(json, "histogram_ns", sums.histogram);
  const Histogram& firsts = sums.first_histogram;
  if (std::accumulate(firsts.begin(), firsts.end(), std::uint64_t{0}) > 1) {  // several threads
    write_histogram(json, "first_histogram_ns", firsts);
  }
  json.end_object();
}

std::string_view result_name(HookResult result) {
  return std::array<std::string_view, 6>{"exited",  "signalled", "timed_out",
                                         "stopped", "failed",    "dropped"}
      .at(static_cast<std::size_t>(result));
}

// Writes how a command ended.
void write_outcome(JsonWriter& json, const HookOutcome& outcome, std::string_view pid_key) {
  json.field("result", result_name(outcome.result));
  if (outcome.pid != 0) {
    json.field(pid_key, outcome.pid).fixed("duration_ms", in_milliseconds(outcome.took), 3);
  }
  if (outcome.exit_status) {
    json.field("exit_status", *outcome.exit_status);
  } else if (outcome.signal != 0) {
    json.field("signal", outcome.signal).field("name", signal_name(outcome.signal));
  }
  json.given("reason", outcome.reason);
}

// Writes what keeps a process from exiting: the state of a thread in uninterruptible sleep, or else
// of the first thread.
void write_hold(JsonWriter& json, const Evidence& evidence) {
  const auto stuck = std::ranges::find_if(
      evidence.threads, [](const ThreadEvidence& thread) { return thread.state == 'D'; });
  const auto held = stuck != evidence.threads.end() ? stuck : evidence.threads.begin();
  if (held != evidence.threads.end()) {
    json.field("state", std::string_view(&held->state, 1));
    json.given("wchan", held->wchan).given("kernel_stack", held->stack);
  }
  json.given("devices", evidence.devices);
}

// Writes the scopes that the workers have left. Times are before the incident, negative after it.
void write_ended_scopes(JsonWriter& json, const Incident& incident) {
  std::size_t omitted = incident.ended_omitted;
  json.begin_array("ended_scopes");
  for (const WorkerScopes& worker : incident.workers) {
    for (const auto& [name, scopes] : worker.ended) {
      if (json.size() > kMaxRecordBytesOfLists) {
        omitted += scopes.size();
        continue;
      }
      json.begin_object();
      write_whose_and_job(json, worker.worker);
      json.field("scope", name).begin_array("ended");
      omitted +=
          write_most(json, kMaxRecordBytesOfLists + 1, scopes, [&](const EndedReading& scope) {
            json.begin_array({})
                .seconds({}, incident.when.mono - scope.ended)
                .seconds({}, scope.took)
                .end_array();
          });
      json.end_array().end_object();
    }
  }
  json.end_array().field("ended_omitted", omitted);
}

}  // namespace

std::string description_of(const WorkerIdentity& worker) {
  const std::optional<int> rank = worker.facts->rank;
  return fmt::format("pid {} ({}{})", worker.process->pid, worker.comm(),
                     rank ? fmt::format(", rank {}", *rank) : "");
}

void write_whose(JsonWriter& json, const WorkerIdentity& worker) {
  json.field("pid", worker.process->pid)
      .given("rank", worker.facts->rank)
      .field("comm", worker.comm());
}

void write_whose_and_job(JsonWriter& json, const WorkerIdentity& worker) {
  write_whose(json, worker);
  json.given("job_id", worker.facts->job_id);
}

void write_scope(JsonWriter& json, const SlotReading& scope, Instant now) {
  json.field("scope", scope.name).fixed("elapsed_s", in_seconds(now - scope.acquired), 6);
  write_timeouts(json, scope);
  const double remaining = scope.deadline.is_never() ? kNull : in_seconds(scope.deadline - now);
  json.fixed("remaining_s", remaining, 6)
      .given("paused", slot_word::is_paused(scope.word))
      .given("tid", scope.tid);
}

std::string_view verdict_name(KillVerdict verdict) {
  return std::array<std::string_view, 4>{"dead", "already_gone", "unkillable", "spared"}.at(
      static_cast<std::size_t>(verdict));
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

Records::Records(std::string dir) : dir_(std::move(dir)) {
  // Six letters: two servers have the same ones once in two billion.
  constexpr std::string_view kLetters = "0123456789abcdefghijkmnpqrstuvwxyz";
  std::size_t seed = std::hash<std::string>{}(
      fmt::format("{} {} {} {}", host_, boot_id_, server_pid_, ClockReading::now().wall_ns));
  for (int i = 0; i < 6; ++i) {
    run_ += kLetters[seed % kLetters.size()];
    seed /= kLetters.size();
  }
}

std::string Records::next_id(Named what) {
  const auto kind = static_cast<std::size_t>(what);
  constexpr std::array kLetters{"", "i", "w"};
  return fmt::format("{}-{}{}", run_, kLetters.at(kind), ++named_.at(kind));
}

JsonWriter Records::begin(std::string_view event, const ClockReading& now) const {
  JsonWriter json;
  json.field("schema", kSchema)
      .field("event", event)
      .field("time", rfc3339(now.wall_ns))
      .field("mono_ns", now.mono.ns)
      .field("host", host_)
      .field("boot_id", boot_id_)
      .field("server_pid", server_pid_);
  return json;
}

JsonWriter Records::begin(std::string_view event, const WorkerIdentity& worker) const {
  JsonWriter json = begin(event);
  const WorkerFacts& facts = *worker.facts;
  json.field("pid", worker.process->pid)
      .field("start_time", worker.process->start_time)
      .field("uid", worker.process->uid)
      .field("comm", worker.comm())
      .given("cmdline", facts.cmdline)
      .given("rank", facts.rank)
      .given("local_rank", facts.local_rank)
      .given("job_id", facts.job_id)
      .given("step_id", facts.step_id);
  return json;
}

std::string Records::incident(const Incident& incident) const {
  std::size_t omitted = incident.omitted;
  JsonWriter json = begin("incident", incident.when);
  json.field("incident", incident.id)
      .array("expired", incident.expiries)
      .field("workers", incident.workers.size())
      .begin_array("open_scopes");
  for (const WorkerScopes& worker : incident.workers) {
    const auto write = [&](const SlotReading& scope) {
      json.begin_object();
      write_whose_and_job(json, worker.worker);
      // A scope may have been opened between the verdict and the reading.
      write_scope(json, scope, std::max(incident.when.mono, scope.acquired));
      json.end_object();
    };
    omitted += write_most(json, kMaxRecordBytesOfLists + 1, worker.scopes, write);
  }
  // Workers in scopes may wait for one of these.
  json.end_array().begin_array("in_no_scope");
  for (const WorkerScopes& worker : incident.workers) {
    if (worker.scopes.empty() && json.size() <= kMaxRecordBytesOfLists) {
      json.begin_object();
      write_whose_and_job(json, worker.worker);
      json.end_object();
    }
  }
  json.end_array().field("omitted", omitted);
  json.given("read_late", incident.read_late);
  write_ended_scopes(json, incident);
  return json.finish();
}

std::string Records::expired(const WorkerIdentity& worker, const Expiry& expiry,
                             std::span<const SlotReading> open_scopes,
                             std::size_t list_bytes) const {
  const SlotReading& scope = expiry.scope;
  JsonWriter json = begin("expired", worker);
  json.field("id", expiry.id).field("incident", expiry.incident).field("scope", scope.name);
  write_timeouts(json, scope);
  json.fixed("elapsed_s", in_seconds(expiry.judged - scope.acquired), 6)
      .fixed("overdue_ms", in_milliseconds(expiry.judged - scope.deadline), 6)
      .field("acquired_mono_ns", scope.acquired.ns)
      .field("deadline_mono_ns", scope.deadline.ns);
  json.given("tid", scope.tid).field("signal", std::max(scope.signal, 0));
  if (const auto grace = scope.grace()) {
    json.field("grace_s", in_seconds(*grace));
  }
  json.field("dir", dir_).begin_array("open_scopes");
  const std::size_t most_bytes = std::min(json.size() + list_bytes, kMaxRecordBytesOfLists);
  const auto write = [&](const SlotReading& open) {
    json.begin_object();
    write_scope(json, open, expiry.judged);
    json.end_object();
  };
  const std::size_t omitted = write_most(json, most_bytes, open_scopes, write);
  json.end_array().field("omitted", omitted);
  return json.finish();
}

std::string Records::evidence(const WorkerIdentity& worker, const std::string& id,
                              const Evidence& evidence) const {
  JsonWriter json = begin("evidence", worker);
  json.field("id", id);
  write_evidence(json, evidence);
  return json.finish();
}

std::string Records::peer_evidence(const WorkerIdentity& peer, std::string_view incident,
                                   const Evidence& evidence, std::size_t omitted) const {
  JsonWriter json = begin("peer_evidence", peer);
  json.field("incident", incident).given("peers_omitted", omitted);
  write_evidence(json, evidence);
  return json.finish();
}

std::string Records::killed(const WorkerIdentity& worker, const Expiry& expiry,
                            const Outcome& outcome) const {
  JsonWriter json = begin("killed", worker);
  json.field("id", expiry.id)
      .field("incident", expiry.incident)
      .field("scope", expiry.scope.name)
      .field("verdict", verdict_name(outcome.verdict))
      .begin_array("signals");
  for (const SentSignal& sent : outcome.signals) {
    json.begin_object()
        .field("signal", sent.signal)
        .field("name", signal_name(sent.signal))
        .field("time", rfc3339(sent.when.wall_ns))
        .field("mono_ns", sent.when.mono.ns)
        .array("pids", sent.pids)
        .end_object();
  }
  json.end_array()
      .fixed("dead_after_ms", outcome.dead_after ? in_milliseconds(*outcome.dead_after) : kNull, 3)
      .given("reason", outcome.reason);
  if (outcome.held_by != nullptr) {
    write_hold(json, *outcome.held_by);
  }
  if (!outcome.cancelled.empty()) {
    const std::size_t most_bytes =
        std::min(json.size() + outcome.list_bytes, kMaxRecordBytesOfLists);
    json.begin_array("cancelled");
    const auto write = [&](const std::string& scope) { json.element(scope); };
    const std::size_t omitted = write_most(json, most_bytes, outcome.cancelled, write);
    json.end_array().given("cancelled_omitted", omitted);
  }
  return json.finish();
}

std::string Records::warned(const WorkerIdentity& worker, const SoftDeadline& passed,
                            const Evidence* evidence) const {
  const SlotReading& scope = passed.scope;
  // The acquire or the last renewal. A line may be read after its deadline.
  const Instant begun =
      scope.timeout == kForever
          ? scope.acquired
          : std::max(scope.acquired, Instant{scope.deadline.ns - scope.timeout.count()});
  const Duration after =
      scope.soft_ms != 0 ? Duration{std::chrono::milliseconds{scope.soft_ms}} : passed.when - begun;
  JsonWriter json = begin("warned", worker);
  json.field("id", passed.id).field("scope", scope.name).field("reason", passed.reason);
  write_timeouts(json, scope);
  json.fixed("elapsed_s", in_seconds(passed.noticed - scope.acquired), 6)
      .fixed("soft_s", in_seconds(after), 6)
      .fixed("overdue_ms", in_milliseconds(passed.noticed - passed.when), 6)
      .field("acquired_mono_ns", scope.acquired.ns)
      .field("soft_mono_ns", passed.when.ns);
  json.given("tid", scope.tid).given("signal", passed.signal).given("omitted", passed.omitted);
  if (evidence != nullptr) {
    write_evidence(json, *evidence);
  }
  return json.finish();
}

std::string Records::left_open(const WorkerIdentity& worker, const SlotReading& scope, Instant now,
                               std::string_view reason) const {
  JsonWriter json = begin("left_open", worker);
  json.field("scope", scope.name);
  write_timeouts(json, scope);
  if (!now.is_never()) {
    json.fixed("elapsed_s", in_seconds(now - scope.acquired), 6)
        .field("acquired_mono_ns", scope.acquired.ns);
  }
  json.field("reason", reason);
  return json.finish();
}

std::string Records::worker_ended(const WorkerIdentity& worker,
                                  const StatisticsByName& statistics) const {
  JsonWriter json = begin("worker_ended", worker);
  json.given("alive", worker.process->is_alive()).field("dir", dir_).begin_array("scopes");
  const std::size_t omitted =
      write_most(json, kMaxRecordBytesOfLists - kMaxBytesOfStatistics + 1, statistics,
                 [&](const auto& entry) { write_statistics(json, entry.first, entry.second); });
  json.end_array().field("omitted", omitted);
  return json.finish();
}

std::string Records::deferred(const WorkerIdentity& worker, const SlotReading& scope, Instant now,
                              std::string_view reason) const {
  JsonWriter json = begin("deferred", worker);
  write_scope(json, scope, now);
  json.field("reason", reason);
  return json.finish();
}

std::string Records::deferred_all(Duration given, std::size_t scopes,
                                  std::string_view reason) const {
  return begin("deferred")
      .fixed("given_s", in_seconds(given), 6)
      .field("scopes", scopes)
      .field("reason", reason)
      .finish();
}

std::string Records::released_late(const WorkerIdentity& worker, const Expiry& expiry) const {
  return begin("released_late", worker)
      .field("id", expiry.id)
      .field("scope", expiry.scope.name)
      .fixed("late_ms", in_milliseconds(*expiry.released_at - expiry.scope.deadline), 3)
      .field("reason", "released after its deadline was judged, before a signal was sent")
      .finish();
}

std::string HookOutcome::text() const {
  const std::string_view how = result == HookResult::kTimedOut ? "timed out" : result_name(result);
  if (!reason.empty()) {
    return fmt::format("{}: {}", how, reason);
  }
  const std::string end = exit_status   ? fmt::format(", exit status {}", *exit_status)
                          : signal != 0 ? ", " + signal_name(signal)
                                        : "";
  return fmt::format("{}{} after {}", how, end, duration_for_reading(took));
}

std::string Records::hook(const CommandOccasion& occasion, const HookOutcome& outcome) const {
  JsonWriter json = begin("hook", occasion.worker);
  json.field("id", occasion.id)
      .field("on", occasion.incident.empty() ? "warning" : "expiry")
      .given("incident", occasion.incident)
      .field("scope", occasion.scope);
  write_outcome(json, outcome, "hook_pid");
  return json.finish();
}

std::string Records::evidence_command(const CommandOccasion& occasion, const HookOutcome& outcome,
                                      std::string_view output, std::uint64_t output_bytes) const {
  JsonWriter json = begin("evidence_command", occasion.worker);
  json.field("id", occasion.id)
      .field("incident", occasion.incident)
      .given("drop_in", outcome.drop_in)
      .field("scope", occasion.scope);
  write_outcome(json, outcome, "command_pid");
  json.field("output", output).field("output_bytes", output_bytes);
  return json.finish();
}

std::string Records::rejected(const RejectionReport& report) const {
  return begin("rejected")
      .field("count", report.count)
      .field("reason", report.reason)
      .field("line", report.line)
      .given("pid", report.pid)
      .finish();
}

}  // namespace filetimer
