// The fields of the record `evidence`, and their limits.
// SPDX-License-Identifier: MIT
#include "timer_server/evidence/evidence.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/limits.hpp"
#include "tests/support/files.hpp"
#include "tests/support/json_line.hpp"

using namespace filetimer;

namespace {

testing::JsonLine parsed(const Evidence& evidence) {
  JsonWriter json;
  write_evidence(json, evidence);
  return testing::JsonLine(std::move(json).finish());
}

ThreadEvidence thread_in(char state, std::string wchan, std::optional<double> percent) {
  ThreadEvidence thread;
  thread.state = state;
  thread.wchan = std::move(wchan);
  thread.cpu_percent = percent;
  return thread;
}

Evidence much_evidence(std::size_t frames) {
  Evidence evidence;
  for (int i = 0; i < 64; ++i) {
    ThreadEvidence thread;
    thread.tid = i + 1;
    thread.comm = "worker \"\xff\n";
    thread.stack.assign(40, std::string(100, 'f'));
    thread.native_stack.assign(frames, std::string(kMaxFrameBytes, 'n'));
    evidence.threads.push_back(thread);
  }
  return evidence;
}

}  // namespace

TEST_CASE("The activity of a thread follows from its state, its wait and its CPU time") {
  CHECK(activity_of(thread_in('S', "futex_wait_queue", 0)) ==
        "waiting in futex_wait_queue (0 % CPU)");
  CHECK(activity_of(thread_in('S', "", {})) == "waiting");
  CHECK(activity_of(thread_in('D', "io_schedule", 0.4)) ==
        "waiting uninterruptibly in io_schedule (0 % CPU)");
  CHECK(activity_of(thread_in('S', "pipe_read", 62)) ==
        "waiting in pipe_read at that moment (62 % CPU)");
  CHECK(activity_of(thread_in('S', "pipe_read", 5)) ==
        "waiting in pipe_read at that moment (5 % CPU)");
  CHECK(activity_of(thread_in('R', "", 5)) == "running (5 % CPU)");
  CHECK(activity_of(thread_in('R', "", 99.7)) == "running (100 % CPU)");
  CHECK(activity_of(thread_in('R', "", 0)) == "ready to run (0 % CPU)");
  CHECK(activity_of(thread_in('R', "", {})) == "running");
  CHECK(activity_of(thread_in('T', "do_signal_stop", 0)) == "stopped (0 % CPU)");
  ThreadEvidence without_wchan = thread_in('S', "", 0);
  without_wchan.syscall = "futex";
  CHECK(activity_of(without_wchan) == "waiting in futex (0 % CPU)");
}

TEST_CASE("The state of a worker has a name") {
  std::string names;
  for (const char state : {'R', 'S', 'D', 'T', 't', 'Z', 'X', 'I', '?'}) {
    Evidence evidence;
    evidence.threads = {thread_in(state, "", {})};
    names += parsed(evidence).text("state_name") + ", ";
  }
  CHECK(names ==
        "running, sleeping, uninterruptible sleep, stopped, traced, zombie, dead, idle, unknown, ");
}

TEST_CASE("A record of evidence stays within its limit, and its last thread has the room left") {
  const testing::JsonLine record = parsed(much_evidence(kMaxStackFrames));
  CHECK(record.line().size() < kMaxEvidenceBytes + 8192);
  // The record has all threads, and as many frames as fit.
  CHECK(record.array("threads").size() == 64);
  const auto cut = record.array("threads").at(63)["stack"].get_array().value();
  CHECK(cut.at(cut.size() - 1).get_string().value() ==
        fmt::format("... {} more, for which the record has no room", 40 - (cut.size() - 1)));
  Evidence evidence = much_evidence(0);
  for (ThreadEvidence& thread : evidence.threads) {
    thread.stack.clear();
  }
  evidence.threads.back().stack.assign(450, std::string(100, 'f'));
  CHECK(parsed(evidence).array("threads").at(63)["stack"].get_array().value().size() == 450);
}

TEST_CASE("The threads leave room for the children, each of which has a share of its own") {
  Evidence evidence = much_evidence(kMaxStackFrames);
  for (int i = 0; i < 64; ++i) {
    ThreadEvidence& child = evidence.children.emplace_back();
    if (evidence.children.size() <= kMaxChildrenRead) {
      child = thread_in('S', "pipe_read", {});
      child.sampled = {1};
      child.syscall = "read";
      child.stack.assign(kMaxStackFrames, std::string(100, 'n'));
    }
    child.tid = 5000 + i;
    child.comm = "loader";
    child.state = 'S';
  }
  const testing::JsonLine record = parsed(evidence);
  CHECK(record.line().size() < kMaxEvidenceBytes + 8192);
  CHECK(record.array("threads").size() == 64);
  REQUIRE(record.array("children").size() == 64);
  for (std::size_t i = 0; i < kMaxChildrenRead; ++i) {
    const auto child = record.array("children").at(i);
    CHECK(child["doing"].get_string().value() == "waiting in pipe_read");
    CHECK(child["syscall"].get_string().value() == "read");
    CHECK(child["stack"].get_array().value().size() > 1);
  }
  CHECK(record.array("children").at(kMaxChildrenRead)["doing"].error() == simdjson::NO_SUCH_FIELD);
}

TEST_CASE("Python's threads leave room for those of the kernel") {
  Evidence evidence = much_evidence(10);
  for (int i = 0; i < 100; ++i) {
    evidence.python_threads.push_back(
        {fmt::format("{:#x}", i), "loader", i == 0,
         std::vector<std::string>(100, "/app/train.py:12 in forward")});
  }
  evidence.python_threads.back().same_stack = {{"0x64", "", false, {}}, {"0x65", "", false, {}}};
  const testing::JsonLine record = parsed(evidence);
  CHECK(record.line().size() < kMaxEvidenceBytes + 8192);
  CHECK(record.array("threads").size() == 64);
  const std::size_t written = record.array("python_threads").size();
  CHECK(written > 0);
  CHECK(static_cast<std::int64_t>(written) + record.integer("python_threads_omitted") == 102);
}

TEST_CASE("Threads with equal stacks are folded, and those without if they do the same") {
  Evidence evidence;
  for (const pid_t tid : {1, 2, 3, 4, 5, 6, 7, 8}) {
    // The fourth was woken meanwhile.
    ThreadEvidence thread = tid == 4 ? thread_in('R', "", 100) : thread_in('S', "futex", 0);
    thread.tid = tid;
    thread.comm = tid == 3 ? "other" : "pool";
    thread.native_stack_of = tid == 5 || tid == 8 ? 0 : 2;
    evidence.threads.push_back(thread);
  }
  evidence.threads[1].native_stack = {"f", "main"};
  evidence.threads[5].stack = {"do_exit"};
  evidence.threads[6].syscall_fd = "pipe:[7]";
  const Evidence result = folded(evidence);
  REQUIRE(result.threads.size() == 3);
  CHECK(result.threads[0].tid == 1);
  CHECK(result.threads[0].native_stack == evidence.threads[1].native_stack);
  REQUIRE(result.threads[0].same_stack.size() == 4);
  CHECK(result.threads[0].same_stack[0].tids == std::vector{2});
  CHECK(result.threads[0].same_stack[1].comm == "other");
  CHECK(result.threads[0].same_stack[2].doing == "running (100 % CPU)");
  CHECK(result.threads[0].same_stack[3].syscall_fd == "pipe:[7]");
  CHECK(result.threads[1].same_stack[0].tids == std::vector{8});  // without stacks
  CHECK(result.threads[2].tid == 6);                              // another kernel stack
  CHECK(result.threads[2].native_stack == evidence.threads[1].native_stack);
  const testing::JsonLine record = parsed(result);
  CHECK(record.integer("cpu_percent") == 100);
  const auto same = record.array("threads").at(0)["same_stack"];
  CHECK(simdjson::minify(same) == R"x([{"comm":"pool","tids":[2]},{"comm":"other","tids":[3]},)x"
                                  R"x({"comm":"pool","doing":"running (100 % CPU)","tids":[4]},)x"
                                  R"x({"comm":"pool","syscall_fd":"pipe:[7]","tids":[7]}])x");
}

TEST_CASE("A thousand threads with two stacks have room, with all frames") {
  Evidence evidence = much_evidence(kMaxStackFrames);
  evidence.threads.resize(1000, evidence.threads[0]);
  for (std::size_t i = 0; i < evidence.threads.size(); ++i) {
    ThreadEvidence& thread = evidence.threads[i];
    thread.tid = 1'000'000 + static_cast<pid_t>(i);
    thread.stack.resize(i % 2);
    thread.native_stack.assign(40, i % 2 == 0 ? "even" : "odd");
    thread.native_stack_of = i < 2 ? 0 : evidence.threads[i % 2].tid;
  }
  const testing::JsonLine record = parsed(folded(evidence));
  CHECK(record.array("threads").size() == 2);
  CHECK_FALSE(record.has("threads_omitted"));
  CHECK(record.line().find("no room") == std::string::npos);
  for (const auto thread : record.array("threads")) {
    CHECK(thread["same_stack"].at(0)["tids"].get_array().value().size() == 499);
  }
}

TEST_CASE("Of more different stacks than a record has room for the threads are counted") {
  Evidence evidence = much_evidence(1);
  evidence.threads.resize(kMaxEvidenceThreads, evidence.threads[0]);
  for (ThreadEvidence& thread : evidence.threads) {
    thread.tid = 1 + static_cast<pid_t>(&thread - evidence.threads.data());
    thread.stack = {fmt::format("{}", thread.tid / 2)};
    thread.native_stack.clear();
  }
  const testing::JsonLine record = parsed(folded(evidence));
  CHECK(record.array("threads").size() == kMaxStacksShown);
  CHECK(record.integer("threads_omitted") == 1024 - 2 * 64 + 1);  // the first one is alone
  evidence.threads.resize(1);
  evidence.threads[0].same_stack.assign(3000, {"loader", "running", "", {7}});
  const testing::JsonLine of_one = parsed(evidence);
  const std::size_t listed = of_one.array("threads").at(0)["same_stack"].get_array().value().size();
  CHECK(of_one.integer("threads_omitted") == 3000 - static_cast<std::int64_t>(listed));
}

TEST_CASE("Python threads with equal stacks are folded, but not the one that wrote the dump") {
  Evidence evidence;
  evidence.threads.push_back(thread_in('S', "futex", 0));
  evidence.python_threads = {{"0x1", "", false, {"wait"}},
                             {"0x2", "pool", false, {"wait"}},
                             {"0x3", "", true, {"wait"}},
                             {"0x4", "", false, {"run"}}};
  const testing::JsonLine record = parsed(folded(evidence));
  CHECK(simdjson::minify(record.array("python_threads")) ==
        R"([{"ident":"0x1","frames":["wait"],"same_stack":[{"ident":"0x2","name":"pool"}]},)"
        R"({"ident":"0x3","current":true,"frames":["wait"]},{"ident":"0x4","frames":["run"]}])");
}

TEST_CASE("CPU time of all threads adds up, and is left out without a sample") {
  Evidence evidence;
  evidence.threads = {thread_in('R', "", 100), thread_in('R', "", 98), thread_in('S', "x", {})};
  CHECK(parsed(evidence).integer("cpu_percent") == 198);
  evidence.threads = {thread_in('S', "x", 60), thread_in('S', "x", {})};
  CHECK(parsed(folded(evidence)).integer("cpu_percent") == 60);
  evidence.threads = {thread_in('R', "", {})};
  CHECK_FALSE(testing::contains(parsed(evidence).line(), "cpu_percent"));
}

TEST_CASE("The reasons for missing evidence are joined, up to a limit") {
  Evidence evidence;
  evidence.add_missing("no kernel stacks");
  evidence.add_missing("no native stacks");
  CHECK(evidence.missing == "no kernel stacks; no native stacks");
  for (int i = 0; i < 10'000; ++i) {
    evidence.add_missing("and another reason");
  }
  CHECK(evidence.missing.size() <= 2048);
  CHECK(evidence.missing.size() > 2000);
}
