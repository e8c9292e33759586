// SPDX-License-Identifier: MIT
#include "timer_server/records/past_verdicts.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/files.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct Log {
  void add(const std::string& line, const char* name = "log") {
    std::ofstream(folder.path(name), std::ios::app) << line << '\n';
  }
  Expiry add_verdict(const char* name = "log") {
    Expiry expiry;
    expiry.id = records.next_expiry_id();
    expiry.incident = "i1";
    expiry.scope.name = "forward";
    expiry.scope.terms.acquired = {1000};
    expiry.scope.terms.deadline = {5000};
    expiry.scope.terms.timeout = 4us;
    expiry.scope.terms.signal = 15;
    expiry.scope.terms.grace = 2s;
    expiry.scope.terms.tid = 7;
    expiry.judged = {5001};
    add(records.expired(worker, expiry, {}), name);
    return expiry;
  }
  [[nodiscard]] std::vector<PastVerdict> read() const {
    return read_past_verdicts(folder.path("log"), records.boot_id(), "/run/a");
  }

  testing::TempFolder folder;
  Records records{RecordOrigin::of_this_process("/run/a")};
  WorkerIdentity worker{std::make_shared<const Process>(std::move(*open_process(::getpid()))),
                        std::make_shared<std::optional<WorkerFacts>>()};
};

}  // namespace

TEST_CASE("A verdict without its end is unfinished, and is read as it was recorded") {
  Log log;
  const Expiry expiry = log.add_verdict();
  const auto past = log.read();
  REQUIRE(past.size() == 1);
  CHECK(!past[0].is_finished);
  CHECK(!past[0].has_evidence);
  CHECK(past[0].pid == ::getpid());
  CHECK(past[0].start_time == log.worker.process->start_time);
  CHECK(past[0].expiry.id == expiry.id);
  CHECK(past[0].expiry.incident == "i1");
  CHECK(past[0].expiry.scope.name == "forward");
  const ScopeTerms& terms = past[0].expiry.scope.terms;
  CHECK(terms.deadline == Instant{5000});
  CHECK(terms.acquired == Instant{1000});
  CHECK(terms.timeout == 4us);
  CHECK(terms.signal == 15);
  CHECK(*terms.grace == 2s);
  CHECK(terms.tid == 7);
}

TEST_CASE("A later record of the end or the evidence is found for its verdict") {
  Log log;
  const Expiry finished = log.add_verdict();
  log.add_verdict();
  log.add(log.records.evidence(log.worker, finished.id, {}));
  log.add(log.records.killed(log.worker, finished, {}));
  const auto past = log.read();
  REQUIRE(past.size() == 2);
  CHECK(past[0].is_finished);
  CHECK(past[0].has_evidence);
  CHECK(!past[1].is_finished);
}

TEST_CASE("Verdicts before a rotation of the log count, too") {
  Log log;
  const Expiry before = log.add_verdict("log.1");
  log.add_verdict("log.1");
  log.add(log.records.killed(log.worker, before, {}));
  const auto past = log.read();
  REQUIRE(past.size() == 2);
  CHECK(past[0].is_finished);
  CHECK(!past[1].is_finished);
}

TEST_CASE("Verdicts of another runtime directory in the same log are skipped") {
  Log log;
  log.add_verdict();
  CHECK(read_past_verdicts(log.folder.path("log"), log.records.boot_id(), "/run/b").empty());
}

TEST_CASE("A verdict whose scope was released late is read as released") {
  Log log;
  Expiry expiry = log.add_verdict();
  expiry.released_at = Instant{6000};
  log.add(log.records.released_late(log.worker, expiry, false));
  const auto past = log.read();
  REQUIRE(past.size() == 1);
  CHECK(!past[0].is_finished);
  CHECK(past[0].expiry.released_at);
}

TEST_CASE("Lines that are not records, half lines and records of other boots are skipped") {
  Log log;
  log.add("");
  log.add(R"({"event":"expired")");
  log.add(R"("event":"expired")");
  log.add(R"([{"event":"expired"}])");
  log.add(R"({"event":"expired","boot_id":"another","dir":"/run/a","id":"x","pid":1})");
  log.add(R"({"event":"expired","boot_id":)" + std::string(1 << 20, '9') + "}");
  log.add_verdict();
  log.add(R"({"event":"killed","id":)");
  CHECK(log.read().size() == 1);
  CHECK(read_past_verdicts(log.folder.path("missing"), "x", "/run/a").empty());
  CHECK(read_past_verdicts("/dev/zero", "x", "/run/a").empty());
}
