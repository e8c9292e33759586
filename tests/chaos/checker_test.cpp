// The checker on a history and a log that hold, and on the same with one thing wrong.
// SPDX-License-Identifier: MIT
#include "tests/chaos/checker.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace {

using filetimer::chaos::check;
using filetimer::chaos::History;
using filetimer::chaos::Violation;

// @S is a time in nanoseconds, given in seconds. $N begins a record of server N, *N a worker's
// identity.
constexpr const char* kLog =
    R"($100 @1000,"event":"server_started","version":"1","dir":"/d","fifo":"/f","log":"/l","settings":{"kill":"tree","evidence":"stacks","peer_evidence":"stacks","dry_run":false,"on_expiry":true,"on_warning":false,"evidence_command":true,"kill_wait_s":30,"max_timeout_s":60},"adopted_scopes":0,"ended_scopes":0,"may":{},"limits":{}}
$100 @1000.5,"event":"rejected","count":1,"reason":"r","line":"l"}
$100 @1001.6,"event":"warned",*300,"id":"w-1","scope":"warned","reason":"r","elapsed_s":0.5,"soft_s":0.45,"overdue_ms":50,"acquired_mono_ns":@1001,"soft_mono_ns":@1001.45}
$100 @1001.7,"event":"warning_ended",*300,"id":"w-1","scope":"warned","result":"released","after_s":0.2}
$100 @1003.006,"event":"expired",*200,"id":"e-1","incident":"i-1","scope":"step","timeout_s":2,"elapsed_s":2.005,"overdue_ms":5,"acquired_mono_ns":@1001,"deadline_mono_ns":@1003,"signal":15,"grace_s":1,"dir":"/d","open_scopes":[{"scope":"step","elapsed_s":2.005,"timeout_s":2}],"omitted":0}
$100 @1003.005,"event":"incident","incident":"i-1","expired":["e-1"],"workers":2,"open_scopes":[{"pid":200,"scope":"step","elapsed_s":2.005,"timeout_s":2,"remaining_s":-0.005}],"in_no_scope":[{"pid":300}],"omitted":0,"ended_scopes":[{"pid":300,"ended":[[1.3,0.7]]}],"ended_omitted":0}
$100 @1003.04,"event":"evidence_command",*200,"id":"e-1","incident":"i-1","scope":"step","result":"exited","output":"","output_bytes":0}
$100 @1003.05,"event":"evidence",*200,"id":"e-1","gathered_ms":30}
$100 @1003.06,"event":"peer_evidence",*300,"incident":"i-1"}
$100 @1003.2,"event":"expired",*300,"id":"e-2","incident":"i-1","scope":"late","timeout_s":1,"elapsed_s":1.005,"overdue_ms":5,"acquired_mono_ns":@1002.1,"deadline_mono_ns":@1003.1,"signal":0,"dir":"/d","open_scopes":[{"scope":"late","elapsed_s":1.005,"timeout_s":1}],"omitted":0}
$100 @1003.21,"event":"killed",*300,"id":"e-2","incident":"i-1","scope":"late","verdict":"spared","signals":[],"dead_after_ms":null,"reason":"signal 0"}
$100 @1003.22,"event":"hook",*300,"id":"e-2","on":"expiry","incident":"i-1","scope":"late","result":"exited","hook_pid":7,"exit_status":0}
$100 @1003.5,"event":"released_late",*300,"id":"e-2","scope":"late","late_ms":300,"reason":"r"}
$100 @1004.2,"event":"killed",*200,"id":"e-1","incident":"i-1","scope":"step","verdict":"dead","signals":[{"signal":15,"mono_ns":@1003.1,"pids":[201,200]},{"signal":9,"mono_ns":@1004.11,"pids":[201,200]}],"dead_after_ms":1050}
$100 @1004.3,"event":"hook",*200,"id":"e-1","on":"expiry","incident":"i-1","scope":"step","result":"signalled","hook_pid":8,"signal":15}
$100 @1005,"event":"left_open",*300,"scope":"left","timeout_s":null,"elapsed_s":1,"acquired_mono_ns":@1004,"reason":"r"}
$100 @1005.01,"event":"worker_ended",*300,"dir":"/d","scopes":[{"scope":"warned","count":1,"total_s":0.7,"longest_s":0.7,"last_s":0.7,"first_s":0.7,"histogram_ns":[[671088640,1]]}],"omitted":0}
$100 @1005.1,"event":"deferred","given_s":1.5,"scopes":2,"reason":"r"}
$100 @1005.2,"event":"rendezvous","name":"n","round":1,"world":2,"waited_s":0,"joined":[1,2],"missing":[]}
$100 @1090,"event":"server_stopped","reason":"r","requests":0,"expired":2,"killed":1,"rejected":1,"lost_records":0,"left":[],"left_count":0}
)";
constexpr const char* kHistory =
    R"({"t":@999,"who":"driver","n":1,"op":"server","subject":"s1","dir":"/d","log":"/l"}
{"t":@1000,"who":"driver","n":1,"end":true,"pid":100}
{"t":@999,"who":"driver","n":2,"op":"spawn","subject":"s1","role":"server"}
{"t":@1000,"who":"driver","n":2,"end":true,"pid":100,"start":1}
{"t":@1000.1,"who":"driver","n":3,"op":"spawn","subject":"w1","role":"worker"}
{"t":@1000.2,"who":"driver","n":3,"end":true,"pid":200,"start":9}
{"t":@1000.1,"who":"driver","n":4,"op":"spawn","subject":"w2","role":"worker"}
{"t":@1000.2,"who":"driver","n":4,"end":true,"pid":300,"start":9}
{"t":@1000.1,"who":"driver","n":5,"op":"spawn","subject":"c1","role":"child","parent":"w1"}
{"t":@1000.2,"who":"driver","n":5,"end":true,"pid":201,"start":9}
{"t":@1000.1,"who":"driver","n":6,"op":"spawn","subject":"b1","role":"bystander"}
{"t":@1000.2,"who":"driver","n":6,"end":true,"pid":400,"start":9}
{"t":@1000.9999,"who":"w1","n":1,"op":"open","key":"k1","scope":"step","timeout_ns":2000000000,"signal":15,"grace_ns":1000000000,"via":"page"}
{"t":@1001.0001,"who":"w1","n":1,"end":true,"watched":true}
{"t":@1000.9999,"who":"w2","n":1,"op":"open","key":"k1","scope":"warned","timeout_ns":9000000000}
{"t":@1001.0001,"who":"w2","n":1,"end":true}
{"t":@1001.7,"who":"w2","n":2,"op":"release","key":"k1"}
{"t":@1001.701,"who":"w2","n":2,"end":true,"in_time":true}
{"t":@1002.0999,"who":"w2","n":3,"op":"open","key":"k2","scope":"late","timeout_ns":1000000000,"signal":0}
{"t":@1002.1001,"who":"w2","n":3,"end":true}
{"t":@1003.39,"who":"w2","n":4,"op":"release","key":"k2"}
{"t":@1003.41,"who":"w2","n":4,"end":true,"in_time":false}
{"t":@1003.9999,"who":"w2","n":5,"op":"open","key":"k3","scope":"left"}
{"t":@1004.0001,"who":"w2","n":5,"end":true}
{"t":@1004.9,"who":"w2","n":6,"op":"exit","code":0}
{"t":@1004.2,"who":"driver","op":"ended","subject":"w1","before":@1004.1,"status":-9}
{"t":@1004.2,"who":"driver","op":"ended","subject":"c1","before":@1004.1,"status":-9}
{"t":@1004.99,"who":"driver","op":"ended","subject":"w2","before":@1004.9,"status":0}
{"t":@1080,"who":"driver","n":7,"op":"stop_server","subject":"s1"}
{"t":@1090,"who":"driver","op":"ended","subject":"b1","before":@1089,"status":0}
{"t":@1091,"who":"driver","op":"ended","subject":"s1","before":@1089,"status":0}
)";

std::string expanded(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t used = 0;
    const bool has_number = at + 1 < text.size() && std::isdigit(text[at + 1]) != 0;
    if (has_number && text[at] == '@') {
      result += std::to_string(std::llround(std::stod(text.substr(at + 1), &used) * 1e9));
    } else if (has_number && text[at] == '$') {
      const std::string pid = std::to_string(std::stoi(text.substr(at + 1), &used));
      result += R"({"schema":1,"time":"t","host":"h","boot_id":"b","server_pid":)" + pid +
                R"(,"mono_ns":)";
      ++used;  // the blank
    } else if (has_number && text[at] == '*') {
      const std::string pid = std::to_string(std::stoi(text.substr(at + 1), &used));
      result += R"("start_time":9,"uid":0,"comm":"c","pid":)" + pid;
    } else {
      result += text[at];
      ++at;
      continue;
    }
    at += 1 + used;
  }
  return result;
}

// Returns the promises that are broken when `from`, which occurs once at least, is replaced.
std::set<std::string> broken(const std::string& from = {}, const std::string& to = {}) {
  std::string log = kLog;
  std::string calls = kHistory;
  if (!from.empty()) {
    std::string& changed = calls.find(from) != calls.npos ? calls : log;
    REQUIRE_MESSAGE(changed.find(from) != changed.npos, from);
    changed.replace(changed.find(from), from.size(), to);
  }
  History history;
  history.histories.push_back({"calls", expanded(calls)});
  history.logs.push_back({"log", expanded(log)});
  std::set<std::string> names;
  for (const Violation& violation : check(history)) {
    INFO(violation.text());
    names.insert(violation.promise);
    CHECK_MESSAGE(!from.empty(), violation.text());
  }
  return names;
}

struct Wrong {
  std::string promise, from, to;
};

}  // namespace

TEST_CASE("a history that holds has no violation") {
  CHECK(broken().empty());
}

TEST_CASE("each promise is judged") {
  const Wrong wrongs[] = {
      {"whole-lines", R"("event":"evidence",*200)", R"("event":"evidence",*200,,)"},
      {"record-fields", R"("late_ms":300)", R"("late_ms":"300")"},
      {"record-fields", R"("event":"rejected")", R"("event":"refused")"},
      {"time-forward", "@1004.3,", "@1003.9,"},
      {"server-life", "\"left_count\":0}\n",
       "\"left_count\":0}\n$100 "
       "@1090.1,\"event\":\"rejected\",\"count\":1,\"reason\":\"r\",\"line\":\"l\"}\n"},
      {"one-to-one", R"("event":"killed",*200,"id":"e-1")", R"("event":"killed",*200,"id":"e-9")"},
      {"one-to-one", R"("event":"evidence",*200,"id":"e-1")",
       R"("event":"evidence",*200,"id":"e-7")"},
      {"one-to-one", R"("event":"killed",*200,"id":"e-1")", R"("event":"killed",*300,"id":"e-2")"},
      {"one-to-one", R"("incident":"i-1","expired":["e-1"])",
       R"("incident":"i-2","expired":["e-1"])"},
      {"hooks", R"("event":"hook",*200,"id":"e-1")", R"("event":"hook",*200,"id":"e-3")"},
      {"hooks", R"("result":"exited","hook_pid":7)", R"("result":"dropped","hook_pid":7)"},
      {"hooks", R"("on_expiry":true)", R"("on_expiry":false)"},
      {"counts", R"("expired":2,)", R"("expired":3,)"},
      {"counts", R"("killed":1,)", R"("killed":2,)"},
      {"counts", R"("workers":2)", R"("workers":3)"},
      {"counts", R"("joined":[1,2])", R"("joined":[1])"},
      {"not-early", R"("overdue_ms":5,)", R"("overdue_ms":-5,)"},
      {"not-early", R"("timeout_s":2,"elapsed_s":2.005,"over)",
       R"("timeout_s":3,"elapsed_s":2.005,"over)"},
      {"record-times", R"("elapsed_s":2.005,"overdue_ms":5)",
       R"("elapsed_s":2.105,"overdue_ms":5)"},
      {"record-times", R"("late_ms":300)", R"("late_ms":900)"},
      {"record-times", R"("late_ms":300)", R"("late_ms":100)"},
      {"record-times", R"("total_s":0.7)", R"("total_s":0.5)"},
      {"record-times", R"("given_s":1.5)", R"("given_s":0.5)"},
      {"record-times", R"("soft_s":0.45)", R"("soft_s":0.6)"},
      {"record-times", R"("elapsed_s":1,"acquired)", R"("elapsed_s":2,"acquired)"},
      {"record-links", R"([{"scope":"step","elapsed_s":2.005)",
       R"([{"scope":"stop","elapsed_s":2.005)"},
      {"record-links", R"("in_no_scope":[{"pid":300}])", R"("in_no_scope":[{"pid":200}])"},
      {"record-links", R"("remaining_s":-0.005)", R"("remaining_s":1)"},
      {"record-links", "@1003.05,", "@1003.15,"},
      {"record-links", R"("event":"released_late",*300)", R"("event":"released_late",*200)"},
      {"record-links", R"("evidence":"stacks")", R"("evidence":"none")"},
      {"signal-after-record", R"("mono_ns":@1003.1,"pids")", R"("mono_ns":@1003.0,"pids")"},
      {"signals", R"("signal":9,"mono_ns":@1004.11)", R"("signal":9,"mono_ns":@1003.9)"},
      {"signals", R"([{"signal":15,)", R"([{"signal":2,)"},
      {"signals", R"("dry_run":false)", R"("dry_run":true)"},
      {"targets", "[201,200]},", "[100,200]},"},
      {"targets", "[201,200]},", "[400,200]},"},
      {"targets", R"("kill":"tree")", R"("kill":"process")"},
      {"outcomes", R"("verdict":"dead")", R"("verdict":"already_gone")"},
      {"outcomes", R"("verdict":"dead")", R"("verdict":"unkillable")"},
      {"outcomes", R"("dead_after_ms":1050)", R"("dead_after_ms":null)"},
      {"outcomes", R"("verdict":"spared","signals":[])", R"("verdict":"dead","signals":[])"},
      {"outcomes", R"("reason":"signal 0")", R"("why":"signal 0")"},
      {"limits", R"("count":1,"reason":"r","line":"l"})",
       "\"count\":1,\"reason\":\"r\",\"line\":\"l\"}\n$100 "
       "@1000.7,\"event\":\"rejected\",\"count\":0,"
       "\"reason\":\"r\",\"line\":\"m\"}"},
      {"released-in-time", R"("event":"left_open",*300,"scope":"left")",
       R"("event":"left_open",*300,"scope":"warned")"},
      {"one-to-one", R"("id":"w-1","scope":"warned","reason")",
       R"("id":"w-2","scope":"warned","reason")"},
      // With the histories.
      {"released-in-time", R"("end":true,"in_time":false)", R"("end":true,"in_time":true)"},
      {"one-verdict", R"("end":true,"in_time":true)", R"("end":true,"in_time":false)"},
      {"one-verdict", R"("op":"open","key":"k3","scope":"left")",
       R"("op":"open","key":"k3","scope":"lost")"},
      {"known-scopes", R"("key":"k1","scope":"step")", R"("key":"k1","scope":"other")"},
      {"not-early", R"("timeout_ns":1000000000,"signal":0)",
       R"("timeout_ns":1500000000,"signal":0)"},
      {"not-early", R"("t":@1001.701,)",
       "\"t\":@1002.5,\"who\":\"w1\",\"n\":8,\"op\":\"renew\",\"key\":\"k1\"}\n"
       "{\"t\":@1002.6,\"who\":\"w1\",\"n\":8,\"end\":true}\n{\"t\":@1001.701,"},
      {"not-early", R"({"t":@1001.701,)",
       "{\"t\":@1001.1,\"who\":\"driver\",\"n\":8,\"op\":\"halt\",\"subject\":\"s1\",\"how\":"
       "\"stop\"}\n"
       "{\"t\":@1001.1,\"who\":\"driver\",\"n\":8,\"end\":true}\n"
       "{\"t\":@1002.9,\"who\":\"driver\",\"n\":9,\"op\":\"resume\",\"subject\":\"s1\"}\n"
       "{\"t\":@1002.9,\"who\":\"driver\",\"n\":9,\"end\":true}\n{\"t\":@1001.701,"},
      {"record-terms", R"("signal":15,"grace_ns")", R"("signal":9,"grace_ns")"},
      {"hang-is-judged", R"("key":"k3","scope":"left"})",
       "\"key\":\"k3\",\"scope\":\"left\"}\n"
       "{\"t\":@1000.9999,\"who\":\"b1\",\"n\":5,\"op\":\"open\",\"key\":\"k9\",\"timeout_ns\":"
       "1000000000}\n"
       "{\"t\":@1001,\"who\":\"b1\",\"n\":5,\"end\":true}"},
      {"hang-is-killed", R"("before":@1004.1,"status":-9)", R"("before":@1070,"status":-9)"},
      {"death-has-record", R"("op":"ended","subject":"b1","before":@1089,"status":0)",
       R"("op":"ended","subject":"b1","before":@1089,"status":-9)"},
      {"death-has-record", R"("subject":"w2","before":@1004.9,"status":0)",
       R"("subject":"w2","before":@1004.9,"status":-11)"},
      {"worker-unharmed", R"("subject":"w2","before":@1004.9,"status":0)",
       R"("subject":"w2","before":@1004.9,"status":1)"},
      {"server-lives", R"("op":"stop_server")", R"("op":"list")"},
      {"calls-return", R"("t":@1000.9999,"who":"w2")", R"("t":@990,"who":"w2")"},
      {"deferred-has-halt", R"("event":"deferred","given_s":1.5)",
       R"("event":"deferred",*300,"given_s":1.5)"},
      {"counts",
       R"("count":1,"total_s":0.7,"longest_s":0.7,"last_s":0.7,"first_s":0.7,"histogram_ns":[[671088640,1]])",
       R"("count":2,"total_s":1.4,"longest_s":0.7,"last_s":0.7,"first_s":0.7,"histogram_ns":[[671088640,2]])"},
      {"record-terms", R"("timeout_ns":2000000000,"signal":15)",
       R"("timeout_ns":2500000000,"signal":15)"},
      {"limits", R"({"t":@1080,)",
       "{\"t\":@1079,\"who\":\"driver\",\"n\":8,\"op\":\"fault\",\"promise\":\"limits\",\"what\":"
       "\"w\"}\n{\"t\":@1080,"},
  };
  std::ifstream file(FILETIMER_PROMISES);
  const std::string page(std::istreambuf_iterator<char>(file), {});
  for (const auto& wrong : wrongs) {  // clang captures no structured binding
    const std::string promise = wrong.promise;
    const std::string from = wrong.from;
    const std::string to = wrong.to;
    CHECK_MESSAGE(page.find("| `" + promise + "` |") != page.npos, promise << " is not in docs");
    std::string found;
    for (const std::string& name : broken(from, to)) {
      found += " " + name;
    }
    const bool is_found = (found + " ").find(" " + promise + " ") != found.npos;
    CHECK_MESSAGE(is_found,
                  promise << " is not found, but" << found << ": " << from << " -> " << to);
  }
}

TEST_CASE("a stated exception is no violation") {
  const std::string death = R"("subject":"w2","before":@1004.9,"status":0)";
  const std::string killed = R"("subject":"w2","before":@1004.9,"status":-11)";
  CHECK(broken(death, killed) == std::set<std::string>{"death-has-record"});
  for (const auto& [of, is_excused] :
       {std::pair{R"("subject":"w2")", true}, {R"("subject":"w1")", false}}) {
    const std::string excuse = std::string(
                                   "}\n{\"t\":@1004,\"who\":\"driver\",\"op\":\"excuse\","
                                   "\"promise\":\"death-has-record\",\"reason\":\"r\",") +
                               of;
    CHECK(broken(death, killed + excuse).empty() == is_excused);
  }
}
