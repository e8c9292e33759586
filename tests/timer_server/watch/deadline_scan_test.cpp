// Which scopes a scan finds due, with processes whose state the test decides.
// SPDX-License-Identifier: MIT
#include "timer_server/watch/deadline_scan.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <functional>

#include "common/wake_protocol.hpp"
#include "tests/timer_server/worker_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

using ScopeNames = std::vector<std::string>;

struct ScanStage : WorkerParts {
  enum class Stopped { kDefer, kKill };
  explicit ScanStage(Settings with = {}, Stopped stopped = Stopped::kDefer)
      : WorkerParts(std::move(with)),
        scan({workers, policy, stopped == Stopped::kDefer ? &halted : nullptr, unsaved}) {}

  DeadlineScan::Found run(Instant woke, Instant next_sweep = Instant::never()) {
    return scan.run(woke, board, next_sweep);
  }
  // The names of the scopes on which a scan has given the verdict, in its order.
  ScopeNames due(Instant woke) { return names_of(run(woke).due); }
  static ScopeNames names_of(const std::vector<DeadlineScan::DueScope>& due) {
    ScopeNames names;
    for (const DeadlineScan::DueScope& scope : due) {
      const PageVerdict& place = scope.place;
      const auto judged = place.page->read(place.slot, slot_word::expired(place.word));
      REQUIRE(judged);
      names.push_back(judged->name);
    }
    return names;
  }

  std::function<std::string(pid_t)> why_halted = [](pid_t) { return std::string(); };
  HaltedWorkers halted{
      {workers, records, *log, side_threads, [this](pid_t pid) { return why_halted(pid); }}};
  Board board{};
  DeadlineScan scan;
};

}  // namespace

TEST_CASE("A scan gives the verdict on a scope at its deadline, and not a nanosecond before") {
  ScanStage stage;
  Worker& worker = stage.add_worker(4711);
  stage.acquire(worker, "forward", 5'000);
  CHECK(stage.run({4'999}).due.empty());
  CHECK(worker.pipe->watched_count() == 1);
  const DeadlineScan::Found found = stage.run({5'000});
  CHECK(stage.names_of(found.due) == ScopeNames{"forward"});
  CHECK(found.due.at(0).worker == &worker);
  CHECK(found.due.at(0).deadline == Instant{5'000});
  CHECK(worker.pipe->watched_count() == 0);
  CHECK(stage.run({6'000}).due.empty());
}

TEST_CASE("The due scopes of all workers come with the earliest deadline first") {
  ScanStage stage;
  // Neither order of the workers is that of the deadlines.
  Worker& one = stage.add_worker(4711);
  stage.acquire(one, "first", 2'000);
  stage.acquire(one, "fourth", 5'000);
  Worker& other = stage.add_worker(4712);
  stage.acquire(other, "third", 4'000);
  stage.acquire(other, "second", 3'000);
  stage.acquire(other, "later", 9'000);
  CHECK(stage.due({5'000}) == ScopeNames{"first", "second", "third", "fourth"});
}

TEST_CASE("The next scan is at the earliest deadline that is not due yet") {
  ScanStage stage;
  CHECK(stage.scan.next() == Instant{});
  stage.run({1'000});
  CHECK(stage.scan.next().is_never());
  stage.acquire(stage.add_worker(4711), "first", 5'000);
  stage.acquire(stage.add_worker(4712), "third", 9'000);
  stage.acquire(stage.add_worker(4713), "second", 7'000);
  stage.run({5'000});
  CHECK(stage.scan.next() == Instant{7'000});
}

TEST_CASE("A requested scan comes earlier, never later") {
  ScanStage stage;
  stage.acquire(stage.add_worker(4711), "forward", 5'000);
  stage.run({1'000});
  stage.scan.want_by({6'000});
  CHECK(stage.scan.next() == Instant{5'000});
  stage.scan.want_by({4'000});
  CHECK(stage.scan.next() == Instant{4'000});
  stage.scan.want();
  CHECK(stage.scan.next() == Instant{});
}

TEST_CASE("The status page has the time of the next scan or sweep, whichever is earlier") {
  ScanStage stage;
  stage.acquire(stage.add_worker(4711), "forward", 5'000);
  stage.run({1'000}, {8'000});
  CHECK(stage.board.next_wake == 5'000);
  stage.run({1'000}, {3'000});
  CHECK(stage.board.next_wake == 3'000);
  CHECK(stage.scan.next() == Instant{5'000});
}

TEST_CASE("While verdicts are given the status page asks clients to wake the server") {
  ScanStage stage;
  stage.acquire(stage.add_worker(4711), "forward", 5'000);
  std::int64_t seen = 0;
  stage.why_halted = [&](pid_t) {
    seen = stage.board.next_wake;
    return std::string();
  };
  CHECK(stage.due({5'000}).size() == 1);
  CHECK(seen == kWakeAlways);
}

TEST_CASE("The scopes of a worker that is being killed are not judged") {
  ScanStage stage;
  Worker& worker = stage.add_worker(4711);
  stage.acquire(worker, "forward", 5'000);
  worker.dying = true;
  CHECK(stage.run({6'000}).due.empty());
  CHECK(stage.scan.next().is_never());
  worker.dying = false;
  CHECK(stage.due({6'000}) == ScopeNames{"forward"});
}

TEST_CASE("A worker that has exited gets no verdict") {
  ScanStage stage;
  Process process = made_up_process(4711);
  process.pidfd = ended_pidfd();
  Worker& worker = stage.add_worker(std::move(process));
  stage.acquire(worker, "forward", 5'000);
  CHECK(stage.run({6'000}).due.empty());
  CHECK(worker.pipe->watched_count() == 1);
}

TEST_CASE("A worker that exits while it is judged gets no verdict, and its scopes stay open") {
  ScanStage stage;
  EndingProcess process;
  Worker& worker = stage.add_worker(process.take(4711));
  TestPage content;
  content.open(0, {});
  MappedPage& page = stage.add_page(worker, content);
  stage.acquire(worker, "piped", 5'000);
  stage.acquire(stage.add_worker(4712), "forward", 5'000);
  stage.why_halted = [&](pid_t pid) {
    if (pid == 4711) {
      process.end();
    }
    return std::string();
  };
  CHECK(stage.due({6'000}) == ScopeNames{"forward"});
  CHECK(page.watched_count() == 1);
  CHECK(worker.pipe->watched_count() == 1);
}

TEST_CASE("A worker that is stopped gets no verdict, and another one does") {
  ScanStage stage;
  stage.acquire(stage.add_worker(4711), "held", 5'000);
  stage.acquire(stage.add_worker(4712), "forward", 5'000);
  stage.why_halted = [](pid_t pid) { return pid == 4711 ? "stopped" : ""; };
  CHECK(stage.due({6'000}) == ScopeNames{"forward"});
  const testing::Records deferred = stage.records_of("deferred");
  REQUIRE(deferred.size() == 1);
  CHECK(deferred[0].is("deferred", 4711));
  CHECK(deferred[0].text("scope") == "held");
  CHECK(deferred[0].text("reason") == "stopped");
}

TEST_CASE("With --stopped kill a worker that is stopped gets the verdict") {
  ScanStage stage({}, ScanStage::Stopped::kKill);
  stage.why_halted = [](pid_t) { return "stopped"; };
  stage.acquire(stage.add_worker(4711), "forward", 5'000);
  CHECK(stage.due({5'000}) == ScopeNames{"forward"});
  CHECK(stage.records_of("deferred").empty());
}

TEST_CASE("A worker that a scan finds resumed has its full time again on all pages") {
  ScanStage stage;
  Worker& worker = stage.add_worker(4711);
  TestPage content;
  content.open(0, {.name = "own"});  // due at 1,500
  stage.add_page(worker, content);
  stage.acquire(worker, "piped", 5'000);
  stage.why_halted = [](pid_t) { return "stopped"; };
  stage.halted.sweep();
  stage.why_halted = [](pid_t) { return ""; };
  CHECK(stage.run({6'000}).due.empty());
  CHECK(worker.resumed > Instant{6'000});
  CHECK(stage.halted.take_resumed());
  CHECK(stage.scan.next() == worker.resumed + 4us);  // the later page's, in this scan
  CHECK(stage.run(worker.resumed + 499ns).due.empty());
  CHECK(stage.scan.next() == worker.resumed + 500ns);
  CHECK(stage.due(worker.resumed + 4us) == ScopeNames{"own", "piped"});
}

TEST_CASE("A worker that a scan finds resumed gets no verdict in it, whatever its pages say") {
  ScanStage stage;
  Worker& worker = stage.add_worker(4711);
  TestPage content;
  content.open(0, {});
  stage.add_page(worker, content, "first");
  content.open(0, {.timeout = 9'000, .word = 5'000, .started = (Instant::now() + 1h).ns});
  stage.add_page(worker, content, "second");
  stage.why_halted = [](pid_t) { return "stopped"; };
  stage.halted.sweep();
  stage.why_halted = [](pid_t) { return ""; };
  CHECK(stage.run({6'000}).due.empty());
  CHECK(stage.run(worker.resumed).due.size() == 1);
}

TEST_CASE("A verdict is saved with the worker's page") {
  ScanStage stage;
  Worker& worker = stage.add_worker(4711);
  stage.acquire(worker, "forward", 5'000);
  stage.unsaved.note(worker);
  stage.unsaved.save(stage.workers);
  CHECK(stage.due({5'000}).size() == 1);
  stage.unsaved.save(stage.workers);
  const auto saved = PipePage::adopt(stage.folder.path(), 4711, {});
  REQUIRE(saved);
  REQUIRE((*saved)->adopted().size() == 1);
  CHECK((*saved)->adopted()[0].word == slot_word::expired(5'000));
}

TEST_CASE("A scan finds a soft deadline once, and again when the scope was renewed") {
  ScanStage stage;
  Worker& worker = stage.add_worker(4711);
  TestPage content;
  content.open(0, {.word = 9'000'000, .soft_ms = 2});
  stage.add_page(worker, content);
  CHECK(stage.run({2'000'999}).soft.empty());
  CHECK(stage.scan.next() == Instant{2'001'000});
  const DeadlineScan::Found found = stage.run({2'001'000});
  REQUIRE(found.soft.size() == 1);
  CHECK(found.soft[0].process == worker.process);
  CHECK(found.soft[0].page == worker.pages[0]);
  CHECK(found.soft[0].slot.deadline == Instant{2'001'000});
  CHECK(found.due.empty());
  CHECK(stage.run({3'000'000}).soft.empty());
  ScopeTerms renewed = terms_between({1'000}, {9'000'000});
  renewed.soft_ms = 2;
  stage.acquire(worker, "piped", renewed);
  CHECK(stage.run({3'000'000}).soft.size() == 1);
  renewed = terms_between({3'000'000}, {19'000'000});
  renewed.soft_ms = 2;
  stage.acquire(worker, "piped", renewed);
  CHECK(stage.run({4'999'999}).soft.empty());
  CHECK(stage.run({5'000'000}).soft.size() == 1);
}

TEST_CASE("A scope is due after --max-timeout, and its cut timeout is reported once") {
  Settings settings;
  settings.max_timeout = 400ns;
  ScanStage stage(settings);
  Worker& worker = stage.add_worker(4711);
  TestPage content;
  content.open(0, {.name = "long", .timeout = 8'000, .word = 9'000});
  content.open(1, {.name = "short", .timeout = 400, .word = 1'400});
  stage.add_page(worker, content);
  stage.acquire(worker, "piped", 9'000);  // reported when its request was read
  const DeadlineScan::Found found = stage.run({1'399});
  CHECK(stage.scan.next() == Instant{1'400});
  REQUIRE(found.cut.size() == 1);
  CHECK(found.cut[0].worker == &worker);
  CHECK(found.cut[0].name == "long");
  CHECK(found.cut[0].asked == 8us);
  const DeadlineScan::Found next = stage.run({1'400});
  CHECK(next.cut.empty());
  CHECK(next.due.size() == 3);
}

TEST_CASE("An idle timeout counts from the last scope that the worker has left") {
  ScanStage stage;
  Worker& worker = stage.add_worker(4711);
  TestPage content = idle_page({10'000}, 5us);
  stage.add_page(worker, content);
  std::int64_t deadline = 15'000;
  SUBCASE("on its page") {}
  SUBCASE("on the pipe") {
    worker.left_on_pipe = {12'000};
    deadline = 17'000;
  }
  CHECK(stage.run({deadline - 1}).due.empty());
  CHECK(stage.scan.next() == Instant{deadline});
  const DeadlineScan::Found found = stage.run({deadline});
  CHECK(stage.names_of(found.due) == ScopeNames{"(idle)"});
  CHECK(found.due.at(0).deadline == Instant{deadline});
  CHECK(stage.run({deadline + 1}).due.empty());
}

TEST_CASE("A worker in a scope is not idle, and is looked at again within its idle timeout") {
  ScanStage stage;
  Worker& worker = stage.add_worker(4711);
  TestPage content = idle_page({10'000}, 5us);
  SUBCASE("on its page") {
    content.open(2, {.word = slot_word::kNoDeadline});
  }
  SUBCASE("on the pipe") {
    stage.acquire(worker, "piped", Instant::never().ns);
  }
  stage.add_page(worker, content);
  CHECK(stage.run({20'000}).due.empty());
  CHECK(stage.scan.next() == Instant{20'000} + 100ms);  // but no more often than that
}

TEST_CASE("The idle timeout of a worker that is stopped is deferred") {
  ScanStage stage;
  Worker& worker = stage.add_worker(4711);
  TestPage content = idle_page({10'000}, 5us);
  stage.add_page(worker, content);
  stage.why_halted = [](pid_t) { return "stopped"; };
  CHECK(stage.run({15'000}).due.empty());
  const testing::Records deferred = stage.records_of("deferred");
  REQUIRE(deferred.size() == 1);
  CHECK(deferred[0].text("scope") == "(idle)");
  stage.why_halted = [](pid_t) { return ""; };
  stage.halted.advance(stage.halted.next());
  CHECK(stage.run({15'000}).due.empty());
  CHECK(stage.run(worker.resumed + 4'999ns).due.empty());
  CHECK(stage.due(worker.resumed + 5us) == ScopeNames{"(idle)"});
}

TEST_CASE("The page of an earlier program of its process is lost and not judged") {
  ScanStage stage;
  Worker& worker = stage.add_this_process();
  REQUIRE(worker.process->start_stack != 0);
  TestPage content;
  content.open(0, {});
  MappedPage& page = stage.add_page(worker, content);
  page.set_program(worker.process->start_stack + 1);
  const DeadlineScan::Found found = stage.run({1'500});
  CHECK(found.due.empty());
  REQUIRE(found.lost.size() == 1);
  CHECK(found.lost[0].worker == &worker);
  CHECK(found.lost[0].page.get() == &page);
  CHECK(found.lost[0].is_of_another_program);
  page.set_program(worker.process->start_stack);
  CHECK(stage.due({1'500}) == ScopeNames{"forward"});
}

TEST_CASE("A truncated page is lost, and the worker's other pages are judged") {
  ScanStage stage;
  Worker& worker = stage.add_worker(4711);
  TestPage content;
  content.open(0, {.name = "lost"});
  stage.add_page(worker, content);
  stage.acquire(worker, "piped", 1'500);
  REQUIRE(::truncate(stage.folder.path("own").c_str(), 0) == 0);
  const DeadlineScan::Found found = stage.run({1'500});
  CHECK(stage.names_of(found.due) == ScopeNames{"piped"});
  REQUIRE(found.lost.size() == 1);
  CHECK(found.lost[0].page == worker.pages[0]);
  CHECK_FALSE(found.lost[0].is_of_another_program);
}
