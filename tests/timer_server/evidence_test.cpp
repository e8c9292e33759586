// SPDX-License-Identifier: MIT
#include "timer_server/evidence.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <simdjson.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "common/limits.hpp"
#include "tests/timer_server/child.hpp"

using namespace filetimer;

namespace {

std::string as_json(const Evidence& evidence) {
  JsonWriter json;
  write_evidence(json, evidence);
  return std::move(json).finish();
}

// Gathers until the process has come to the system call that the test waits for; bounded by the
// test's own time limit.
Evidence evidence_in(const Process& process, std::string_view syscall) {
  for (;;) {
    Evidence evidence = gather_evidence(process.pid, process.start_time);
    if (!evidence.threads.empty() && evidence.threads[0].syscall == syscall &&
        evidence.state == 'S') {
      return evidence;
    }
    ::sched_yield();
  }
}

}  // namespace

TEST_CASE("A blocked read is told with what it reads from") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[1]);
    char byte = 0;
    (void)!::read(ends[0], &byte, 1);
    ::_exit(0);
  }
  const auto process = open_process(pid);
  REQUIRE(process);
  const Evidence evidence = evidence_in(*process, "read");
  CHECK(evidence.state == 'S');
  CHECK(evidence.threads[0].tid == pid);
  CHECK(evidence.threads[0].syscall_fd.find("pipe:[") == 0);
  CHECK(evidence.rss_bytes > 0);
  if (::geteuid() == 0) {
    CHECK(!evidence.threads[0].stack.empty());
  }
  ::close(ends[1]);
  ::close(ends[0]);
  ::waitpid(pid, nullptr, 0);
}

TEST_CASE("Children are listed with their names") {
  Child worker([] {
    if (::fork() == 0) {
      for (;;) {
        ::pause();
      }
    }
  });
  const Process process = worker.process();
  const Evidence evidence = evidence_in(process, "pause");
  REQUIRE(evidence.children.size() == 1);
  const auto child = open_process(evidence.children[0].pid);
  REQUIRE(child);
  CHECK(child->ppid == worker.pid());
  CHECK(child->send_signal(SIGKILL));
}

TEST_CASE("A pid that is another process by now gives no evidence") {
  Child worker;
  const Process process = worker.process();
  const Evidence evidence = gather_evidence(process.pid, process.start_time + 1);
  CHECK(evidence.threads.empty());
  CHECK(evidence.missing == "the process had ended");
}

TEST_CASE("However much there is, the record stays within its limit and is JSON") {
  Evidence evidence;
  for (int i = 0; i < 64; ++i) {
    ThreadEvidence thread;
    thread.tid = i + 1;
    thread.comm = "worker \"\xff\n";
    thread.stack.assign(40, std::string(100, 'f'));
    evidence.threads.push_back(thread);
  }
  const std::string text = as_json(evidence);
  CHECK(text.size() < kMaxEvidenceBytes + 8192);
  simdjson::dom::parser parser;
  simdjson::dom::element record;
  REQUIRE(parser.parse(text).get(record) == simdjson::SUCCESS);
  std::int64_t omitted = 0;
  REQUIRE(record["threads_omitted"].get(omitted) == simdjson::SUCCESS);
  simdjson::dom::array threads;
  REQUIRE(record["threads"].get(threads) == simdjson::SUCCESS);
  CHECK(static_cast<std::int64_t>(threads.size()) + omitted == 64);
}
