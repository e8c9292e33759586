// The fields of the record `evidence`, and their limits.
// SPDX-License-Identifier: MIT
#include "timer_server/evidence/evidence.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/limits.hpp"
#include "tests/process/records.hpp"

using namespace filetimer;

namespace {

std::string as_json(const Evidence& evidence) {
  JsonWriter json;
  write_evidence(json, evidence);
  return std::move(json).finish();
}

testing::JsonLine parsed(const Evidence& evidence) {
  return testing::JsonLine(as_json(evidence));
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
  CHECK(activity_of(thread_in('R', "", 99.7)) == "running (100 % CPU)");
  CHECK(activity_of(thread_in('R', "", 0)) == "ready to run (0 % CPU)");
  CHECK(activity_of(thread_in('R', "", {})) == "running");
  CHECK(activity_of(thread_in('T', "do_signal_stop", 0)) == "stopped (0 % CPU)");
  ThreadEvidence without_wchan = thread_in('S', "", 0);
  without_wchan.syscall = "futex";
  CHECK(activity_of(without_wchan) == "waiting in futex (0 % CPU)");
}

TEST_CASE("A record of any evidence is JSON and stays within its limit") {
  const testing::JsonLine record = parsed(much_evidence(kMaxStackFrames));
  CHECK(record.line().size() < kMaxEvidenceBytes + 8192);
  // The record has all threads, and as many frames as fit.
  CHECK(record.array("threads").size() == 64);
  CHECK(record.line().find("more, for which the record has no room") != std::string::npos);
}

TEST_CASE("The last of many threads has the room that the others left") {
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
    ChildEvidence& child = evidence.children.emplace_back();
    child.pid = 5000 + i;
    child.comm = "loader";
    child.state = 'S';
    if (evidence.children.size() <= kMaxChildrenRead) {
      child.main_thread = thread_in('S', "pipe_read", {});
      child.main_thread->syscall = "read";
      child.main_thread->stack.assign(kMaxStackFrames, std::string(100, 'n'));
    }
  }
  const testing::JsonLine record = parsed(evidence);
  CHECK(record.line().size() < kMaxEvidenceBytes + 8192);
  CHECK(record.array("threads").size() == 64);
  REQUIRE(record.array("children").size() == 64);
  for (std::size_t i = 0; i < kMaxChildrenRead; ++i) {
    const auto child = record.array("children").at(i);
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
  const testing::JsonLine record = parsed(evidence);
  CHECK(record.line().size() < kMaxEvidenceBytes + 8192);
  CHECK(record.array("threads").size() == 64);
  const std::size_t written = record.array("python_threads").size();
  CHECK(written > 0);
  CHECK(static_cast<std::int64_t>(written) + record.integer("python_threads_omitted") == 100);
}

TEST_CASE("CPU time of all threads adds up, and is left out without a sample") {
  Evidence evidence;
  evidence.threads = {thread_in('R', "", 100), thread_in('R', "", 98), thread_in('S', "x", {})};
  CHECK(parsed(evidence).integer("cpu_percent") == 198);
  evidence.threads = {thread_in('R', "", {})};
  CHECK(as_json(evidence).find("cpu_percent") == std::string::npos);
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
}
