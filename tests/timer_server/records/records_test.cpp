// Records writes every field of docs/records.md and no other. tests/process/life/options_test.cpp
// compares the records about the server itself.
// SPDX-License-Identifier: MIT
#include "timer_server/records/records.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <string>
#include <vector>

#include "common/limits.hpp"
#include "tests/support/files.hpp"
#include "tests/support/json_line.hpp"
#include "tests/support/records_doc.hpp"
#include "timer_server/kills/incidents.hpp"

using namespace filetimer;
using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

constexpr Instant kNow{50'000'000'000};

// A worker whose facts are all known.
WorkerIdentity full_worker() {
  Process process;
  process.pid = 4711;
  process.start_time = 1185022;
  process.pidfd = open_pidfd(::getpid());
  process.comm = "trainer";
  WorkerFacts facts;
  facts.cmdline = "./trainer";
  facts.rank = 2;
  facts.local_rank = 0;
  facts.job_id = "8812";
  facts.step_id = "0";
  return {std::make_shared<const Process>(std::move(process)),
          std::make_shared<WorkerFacts>(facts)};
}

SlotReading full_scope() {
  SlotReading scope;
  scope.name = "load";
  scope.acquired = Instant{20'000'000'000};
  scope.deadline = kNow;
  scope.timeout = 30s;
  scope.code_timeout = 60s;
  scope.grace_ms = 10'000;
  scope.signal = SIGTERM;
  scope.tid = 4711;
  scope.word = slot_word::kPaused;
  return scope;
}

Expiry full_expiry(filetimer::Records& records) {
  Expiry expiry;
  expiry.id = records.next_id(filetimer::Records::Named::kExpiry);
  expiry.incident = records.next_id(filetimer::Records::Named::kIncident);
  expiry.scope = full_scope();
  expiry.judged = kNow;
  expiry.released_at = kNow + 1ms;
  return expiry;
}

Evidence full_evidence() {
  ThreadEvidence thread;
  thread.tid = 4711;
  thread.comm = "trainer";
  thread.state = 'S';
  thread.wchan = "pipe_read";
  thread.syscall = "read";
  thread.syscall_number = 0;
  thread.syscall_fd = "pipe:[7]";
  thread.stack = {"pipe_read+0x3c1/0x4c0"};
  thread.cpu_percent = 3;
  thread.native_stack = {"read+0x1d (libc.so.6)"};
  thread.same_stack = {{"loader", "running", "pipe:[9]", {4712}}};
  Evidence evidence;
  evidence.threads = {thread};
  evidence.threads_omitted = 1;
  thread.sampled = {1};
  evidence.children = {thread};
  evidence.devices = {"/dev/nvidia0"};
  evidence.python_threads = {{"0x7f12", "loader", true, {"train.py:12 in load"}}};
  evidence.python_threads[0].same_stack = {{"0x7f13", "loader-2", false, {}}};
  evidence.held_ms = 1.5;
  evidence.missing = "something";
  return evidence;
}

SoftDeadline full_soft_deadline() {
  return {.scope = full_scope(),
          .when = kNow,
          .noticed = kNow + 1ms,
          .reason = "why",
          .signal = 10,
          .omitted = 1};
}

StatisticsByName full_statistics() {
  ScopeStatistics sums;
  sums.count = 3;
  sums.total = 1500ms;
  sums.longest = 1s;
  sums.last = 250ms;
  sums.longest_first = 900ms;
  sums.timeout = 30s;
  sums.histogram[bucket_of(250'000'000)] = 2;
  sums.histogram[bucket_of(1'000'000'000)] = 1;
  sums.first_histogram[bucket_of(900'000'000)] = 1;
  ScopeStatistics with_deadline = sums;
  with_deadline.smallest_margin = -2ms;
  with_deadline.first_histogram[bucket_of(250'000'000)] = 1;  // of two threads
  return {{"load", with_deadline}, {"save", sums}};
}

HookOutcome full_hook(HookResult result) {
  HookOutcome outcome;
  outcome.result = result;
  outcome.pid = 4740;
  if (result == HookResult::kExited) {
    outcome.exit_status = 0;
  } else {
    outcome.signal = SIGTERM;
  }
  outcome.took = 20ms;
  outcome.reason = "why";
  return outcome;
}

CommandOccasion full_occasion() {
  return {.worker = full_worker(),
          .id = "k3f9a2-1",
          .incident = "k3f9a2-i1",
          .scope = "load",
          .verdict = "dead"};
}

// Checks that a record within its limit lists some of `all`, each with `part`, and counts the
// others in the field `omitted`.
void check_cut(const std::string& record, std::string_view part, std::string_view omitted,
               std::size_t all) {
  CHECK(record.size() <= kMaxRecordBytes);
  std::size_t listed = 0;
  for (std::size_t at = 0; (at = record.find(part, at)) != record.npos; ++at) {
    ++listed;
  }
  CHECK(listed < all);
  CHECK(JsonLine(record).integer(omitted) == static_cast<std::int64_t>(all - listed));
}

// Six bytes for each character, as JSON, and other than the names of other numbers.
std::string longest_name(std::size_t number) {
  const std::string text = std::to_string(number);
  return std::string(kMaxScopeNameBytes - text.size(), '\x01') + text;
}

}  // namespace

TEST_CASE("docs/records.md gives the fields of the records about workers and commands") {
  filetimer::Records records("/run/job");
  const WorkerIdentity worker = full_worker();
  const Expiry expiry = full_expiry(records);
  Evidence evidence = full_evidence();
  evidence.python_threads.resize(1000, evidence.python_threads[0]);  // more than there is room for
  const EndedScopesByName ended{{"load", {{Instant{1'000}, Duration{7}}}}};
  check_fields("incident",
               {records.incident({.id = expiry.incident,
                                  .when = ClockReading::now(),
                                  .expiries = {expiry.id},
                                  .workers = {{worker, {full_scope()}, ended}, {worker, {}}},
                                  .omitted = 0,
                                  .read_late = 1})});
  check_fields("expired",
               {records.expired(worker, expiry, std::vector<SlotReading>{full_scope()})});
  check_fields("evidence", {records.evidence(worker, expiry.id, evidence)});
  check_fields("peer_evidence", {records.peer_evidence(worker, expiry.incident, evidence, 3)});
  const std::vector<SentSignal> signals{{SIGTERM, ClockReading::now(), {4711}}};
  const std::vector<std::string> cancelled{"epoch"};
  const Evidence held_by = full_evidence();
  filetimer::Records::Outcome outcome{.verdict = KillVerdict::kDead,
                                      .signals = signals,
                                      .dead_after = 2ms,
                                      .reason = "why",
                                      .cancelled = cancelled,
                                      .held_by = &held_by};
  const std::string with_all = records.killed(worker, expiry, outcome);
  outcome.list_bytes = 0;  // the log is full of other records
  check_fields("killed", {with_all, records.killed(worker, expiry, outcome)});
  check_fields("released_late", {records.released_late(worker, expiry)});
  HookOutcome command = full_hook(HookResult::kExited);
  const HookOutcome signalled = full_hook(HookResult::kSignalled);
  check_fields("hook",
               {records.hook(full_occasion(), command), records.hook(full_occasion(), signalled)});
  command.drop_in = "nvidia";
  check_fields("evidence_command", {records.evidence_command(full_occasion(), command, "text", 4),
                                    records.evidence_command(full_occasion(), signalled, "", 0)});
  check_fields("left_open", {records.left_open(worker, full_scope(), kNow, "the worker ended")});
  check_fields("worker_ended", {records.worker_ended(worker, full_statistics())});
  check_fields("warned", {records.warned(worker, full_soft_deadline(), &evidence)});
  check_fields("deferred", {records.deferred(worker, full_scope(), kNow, "why"),
                            records.deferred_all(2s, 3, "why")});
  check_fields("rejected", {records.rejected({3, "why", "{", 4711})});
}

TEST_CASE("the record of a worker that does not die names the thread that holds it") {
  filetimer::Records records("/run/job");
  const Expiry expiry = full_expiry(records);
  Evidence held_by = full_evidence();
  held_by.threads.push_back(held_by.threads[0]);
  filetimer::Records::Outcome outcome;
  outcome.verdict = KillVerdict::kUnkillable;
  outcome.held_by = &held_by;
  const auto record = [&] { return records.killed(full_worker(), expiry, outcome); };
  CHECK(contains(record(), R"("state":"S","wchan":"pipe_read")"));
  held_by.threads[1].state = 'D';
  held_by.threads[1].wchan = "rpc_wait_bit_killable";
  CHECK(contains(record(), R"("state":"D","wchan":"rpc_wait_bit_killable")"));
  held_by.threads.clear();
  CHECK_FALSE(contains(record(), R"("state":)"));
}

TEST_CASE("the times of a record are those of its scope, with as many places as they need") {
  filetimer::Records records("/run/job");
  const WorkerIdentity worker = full_worker();
  const Expiry expiry = full_expiry(records);
  const std::vector<SentSignal> signals{{SIGTERM, {1'000'000'000, kNow}, {4711}}};
  filetimer::Records::Outcome outcome;
  outcome.signals = signals;
  outcome.dead_after = 2ms;
  const std::string timeouts = R"("timeout_s":30,"code_timeout_s":60,)";
  const std::string acquired = R"("acquired_mono_ns":20000000000,)";
  const std::string elapsed = R"("scope":"load","elapsed_s":30.000000,)" + timeouts +
                              R"("remaining_s":0.000000,"paused":true,"tid":4711)";
  struct Row {
    std::string record;
    std::string end;
  };
  for (const Row& row :
       {Row{records.expired(worker, expiry, std::vector<SlotReading>{full_scope()}),
            timeouts + R"("elapsed_s":30.000000,"overdue_ms":0.000000,)" + acquired +
                R"("deadline_mono_ns":50000000000,"tid":4711,"signal":15,"grace_s":10,)"
                R"("dir":"/run/job","open_scopes":[{)" +
                elapsed + R"(}],"omitted":0})"},
        Row{records.killed(worker, expiry, outcome),
            R"("verdict":"dead","signals":[{"signal":15,"name":"SIGTERM",)"
            R"("time":"1970-01-01T00:00:01.000000Z","mono_ns":50000000000,"pids":[4711]}],)"
            R"("dead_after_ms":2.000})"},
        Row{records.released_late(worker, expiry),
            R"("scope":"load","late_ms":1.000,"reason":"released after its deadline was judged, )"
            R"(before a signal was sent"})"},
        Row{records.left_open(worker, full_scope(), kNow, "why"),
            timeouts + R"("elapsed_s":30.000000,)" + acquired + R"("reason":"why"})"},
        Row{records.deferred(worker, full_scope(), kNow, "why"), elapsed + R"(,"reason":"why"})"},
        Row{records.deferred_all(2s, 3, "why"), R"("given_s":2.000000,"scopes":3,"reason":"why"})"},
        Row{records.warned(worker, full_soft_deadline(), nullptr),
            timeouts + R"("elapsed_s":30.001000,"soft_s":30.000000,"overdue_ms":1.000000,)" +
                acquired + R"("soft_mono_ns":50000000000,"tid":4711,"signal":10,"omitted":1})"},
        Row{records.hook(full_occasion(), full_hook(HookResult::kSignalled)),
            R"("id":"k3f9a2-1","on":"expiry","incident":"k3f9a2-i1","scope":"load",)"
            R"("result":"signalled","hook_pid":4740,"duration_ms":20.000,)"
            R"("signal":15,"name":"SIGTERM","reason":"why"})"}}) {
    CAPTURE(row.record);
    CHECK(row.record.ends_with(row.end));
  }
}

TEST_CASE("a warning has the time to its soft deadline from the last renewal of the scope") {
  SoftDeadline passed = full_soft_deadline();
  passed.scope.deadline = kNow + 10s;  // renewed ten seconds after it was opened
  const auto soft_s = [&passed] {
    return JsonLine(filetimer::Records("/run/job").warned(full_worker(), passed, nullptr))
        .number("soft_s");
  };
  CHECK(soft_s() == 20);
  passed.scope.soft_ms = 5000;
  CHECK(soft_s() == 5);
}

TEST_CASE("a message says how a command ended, after what time, or why") {
  CHECK(full_hook(HookResult::kTimedOut).text() == "timed out: why");
  HookOutcome outcome = full_hook(HookResult::kSignalled);
  outcome.reason.clear();
  CHECK(outcome.text() == "signalled, SIGTERM after 20 ms");
  outcome.signal = 35;
  CHECK(outcome.text() == "signalled, signal 35 after 20 ms");
}

TEST_CASE("the ids of a server have the same six letters, and count each kind for itself") {
  using Named = filetimer::Records::Named;
  filetimer::Records records("/run/job");
  const std::string letters = records.next_id(Named::kExpiry).substr(0, 6);
  // All are alike once in 45 million.
  CHECK(letters.find_first_not_of(letters[0]) != std::string::npos);
  CHECK(records.next_id(Named::kExpiry) == letters + "-2");
  CHECK(records.next_id(Named::kIncident) == letters + "-i1");
  CHECK(records.next_id(Named::kWarning) == letters + "-w1");
}

TEST_CASE("the examples of docs/records.md have the fields that it names, and no event lacks one") {
  const RecordsDoc doc = read_records_doc();
  CHECK(doc.size() >= 12);
  for (const auto& documented : doc) {
    const std::string& event = documented.first;
    CAPTURE(event);
    CHECK_FALSE(documented.second.examples.empty());
    for (const std::string& example : documented.second.examples) {
      CAPTURE(example);
      CHECK(event_of(example) == event);
      for (const std::string& name : fields_of(example)) {
        CAPTURE(name);
        CHECK(documented.second.fields.contains(name));
      }
    }
  }
}

TEST_CASE("an incident lists 1,024 scopes, or the last four of each of many workers") {
  // From 1,025 workers on at most 4,096 scopes in all.
  for (const auto& [workers, share] :
       {std::pair(0U, 1024U), std::pair(1U, 1024U), std::pair(2U, 512U), std::pair(256U, 4U),
        std::pair(257U, 4U), std::pair(1024U, 4U), std::pair(1025U, 3U), std::pair(4096U, 1U),
        std::pair(10'000U, 1U)}) {
    CHECK(incident_share(workers) == share);
  }
}

TEST_CASE("of the scopes that a worker has ended an incident lists the latest, of ten minutes") {
  const Instant when = Instant{} + 1h;
  EndedScopesByName ended;
  const auto end = [&](const char* name, Instant time) { ended[name].push_back({time, 1ms}); };
  end("old", when + -(10min + 1ns));
  end("a", when + -10min);
  end("a", when);
  end("b", when + -1s);
  end("b", when + 1s);
  CHECK(shorten_ended_scopes(ended, when, 1) == 0);
  CHECK(ended.size() == 2);
  CHECK(shorten_ended_scopes(ended, when, 0) == 0);
  CHECK(ended["a"].size() == 2);
  CHECK(ended["b"].size() == 2);
  // Each worker has the same share of them.
  for (const std::size_t omitted : {2U, 0U}) {
    CHECK(shorten_ended_scopes(ended, when, kMaxIncidentEndedScopes / 2) == omitted);
    REQUIRE(ended["a"].size() == 1);
    CHECK(ended["a"].front().ended == when);
    REQUIRE(ended["b"].size() == 1);
    CHECK(ended["b"].front().ended == when + 1s);
  }
  CHECK(shorten_ended_scopes(ended, when, kMaxIncidentEndedScopes) == 1);
  CHECK(ended.size() == 1);
  // Within ten minutes after the boot.
  end("first", Instant{});
  CHECK(shorten_ended_scopes(ended, Instant{} + 1min, 1) == 0);
  CHECK(ended.size() == 2);
}

TEST_CASE("records with the most scopes and the longest names stay within their limit") {
  filetimer::Records records("/run/job");
  const WorkerIdentity worker = full_worker();
  const ClockReading when = ClockReading::now();
  SlotReading scope = full_scope();
  scope.name = longest_name(0);
  const std::vector<SlotReading> open(kMaxScopesPerWorker, scope);
  const Expiry expiry = full_expiry(records);
  check_cut(records.expired(worker, expiry, open), R"({"scope":)", "omitted", open.size());
  check_cut(records.incident({.id = "i1", .when = when, .workers = {{worker, open}}, .omitted = 5}),
            R"("scope":)", "omitted", open.size() + 5);
  filetimer::Records::Outcome outcome;
  const std::vector<std::string> cancelled(kMaxScopesPerWorker, scope.name);
  outcome.cancelled = cancelled;
  check_cut(records.killed(worker, expiry, outcome), "\"\\u0001", "cancelled_omitted",
            cancelled.size());
  WorkerScopes with_ended{worker, {}};
  for (std::size_t i = 0; i < kMaxIncidentEndedScopes; ++i) {
    with_ended.ended[longest_name(i)] = {{when.mono, 1s}};
  }
  check_cut(records.incident({.id = "i1", .when = when, .workers = {with_ended}}),
            "[0.000000000,1.000000000]", "ended_omitted", kMaxIncidentEndedScopes);
  StatisticsByName statistics;
  ScopeStatistics sums = full_statistics().at("load");
  sums.histogram.fill(~std::uint64_t{0});
  sums.first_histogram.fill(std::uint64_t{1} << 55);
  for (std::size_t i = 0; i < kMaxStatistics; ++i) {
    statistics[longest_name(i)] = sums;
  }
  const std::string ended = records.worker_ended(worker, statistics);
  check_cut(ended, R"({"scope":)", "omitted", statistics.size());
  CHECK(ended.size() > kMaxRecordBytesOfLists * 9 / 10);
  // A list ends with the scope that takes its last byte.
  for (const std::size_t room : {0U, 1U}) {
    CAPTURE(room);
    CHECK(records.expired(worker, expiry, open, room)
              .ends_with(fmt::format(R"("omitted":{}}})", open.size() - room)));
    outcome.list_bytes = std::string_view(R"(,"cancelled":[)").size() + room;
    CHECK(records.killed(worker, expiry, outcome)
              .ends_with(fmt::format(R"("cancelled_omitted":{}}})", cancelled.size() - room)));
  }
}

TEST_CASE("the end of a worker is recorded with the durations of its scopes by name") {
  const std::string record =
      filetimer::Records("/run/job").worker_ended(full_worker(), full_statistics());
  const std::string sums =
      R"("count":3,"total_s":1.500000000,"longest_s":1.000000000,"last_s":0.250000000,)";
  const std::string histogram =
      R"("first_s":0.900000000,"timeout_s":30,"histogram_ns":[[234881024,2],[939524096,1]])";
  const std::string firsts = R"(,"first_histogram_ns":[[234881024,1],[872415232,1]]})";
  CHECK(record.ends_with(R"("dir":"/run/job","scopes":[{"scope":"load",)" + sums +
                         R"("smallest_margin_s":-0.002000000,)" + histogram + firsts +
                         R"(,{"scope":"save",)" + sums + R"("smallest_margin_s":null,)" +
                         histogram + R"(}],"omitted":0})"));
}

TEST_CASE("an incident lists open scopes, workers in no scope, and ended scopes with their times") {
  filetimer::Records records("/run/job");
  const Expiry expiry = full_expiry(records);
  const ClockReading when = ClockReading::now();
  WorkerScopes worker{full_worker(), {full_scope(), full_scope()}};
  worker.ended["load"] = {{when.mono + (-2s), 1500ms}, {when.mono + 250ms, 100ms}};
  const std::string record = records.incident({.id = expiry.incident,
                                               .when = when,
                                               .expiries = {expiry.id},
                                               .workers = {worker, {full_worker(), {}}},
                                               .omitted = 5,
                                               .ended_omitted = 3});
  const std::string whose = R"("pid":4711,"rank":2,"comm":"trainer","job_id":"8812")";
  CHECK(contains(record, R"("workers":2,"open_scopes":[{)" + whose + R"(,"scope":"load",)"));
  CHECK(record.ends_with(R"("in_no_scope":[{)" + whose + R"(}],"omitted":5,"ended_scopes":[{)" +
                         whose +
                         R"(,"scope":"load",)"
                         R"("ended":[[2.000000000,1.500000000],[-0.250000000,0.100000000]]}],)"
                         R"("ended_omitted":3})"));
}
