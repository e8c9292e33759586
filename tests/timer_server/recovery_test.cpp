// How a server takes over the scopes and verdicts of an earlier one. All kills are dry runs.
// SPDX-License-Identifier: MIT
#include "timer_server/recovery.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/children.hpp"
#include "tests/timer_server/process_of.hpp"
#include "tests/timer_server/verdict_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

Settings dry_run_without_evidence() {
  Settings settings = VerdictParts::worker_only();
  settings.kill.dry_run = true;
  return settings;
}

// An earlier server has watched a child in the scope `forward`, from 1,000 to its deadline 5,000.
struct RecoveryStage : VerdictParts {
  RecoveryStage() : VerdictParts(dry_run_without_evidence()) {}

  enum class Kind { kPipe, kOwn };
  enum class State { kOpen, kJudged, kReleasedLate };
  void leave_page(Kind kind, State state) {
    if (kind == Kind::kPipe) {
      leave_pipe_page(state);
    } else {
      leave_own_page(state);
    }
  }
  [[nodiscard]] std::string pipe_path() const {
    return fmt::format("{}/{}", page_folder.server_pages(), child.pid());
  }
  void leave_pipe_page(State state) const {
    PipePage page(page_folder.server_pages(), child.pid(), {});
    REQUIRE(page.acquire("forward", 7, terms_between({1'000}, {5'000})));
    if (state != State::kOpen) {
      REQUIRE(page.try_expire(0, 5'000));
    }
    REQUIRE(page.save(process, {}));
    if (state == State::kReleasedLate) {
      page.release("forward");
      REQUIRE(page.save(process, {}));
    }
  }
  void leave_own_page(State state) {
    TestPage content;
    content.header().pid = child.pid();
    content.open(0, {.timeout = 4'000,
                     .word = state == State::kOpen     ? 5'000
                             : state == State::kJudged ? slot_word::expired(5'000)
                                                       : slot_word::kReleasedLate});
    leave_own_page(content);
  }
  // The child has left a scope at 10,000 and expires when it has been in none for 5,000.
  void leave_idle_page() const {
    TestPage content = idle_page({10'000}, 5us);
    content.header().pid = child.pid();
    leave_own_page(content);
  }
  void leave_own_page(TestPage& content) const {
    content.write(page_folder.page_path("w-1"));
    page_folder.confirm("w-1", {process.pid, process.start_time, process.start_stack});
  }
  PastVerdict verdict(bool is_finished = false) const {
    PastVerdict past;
    past.pid = process.pid;
    past.start_time = process.start_time;
    past.is_finished = is_finished;
    past.expiry.id = "before-7";
    past.expiry.incident = "before-i3";
    past.expiry.scope.name = "forward";
    past.expiry.scope.terms = terms_between({1'000}, {5'000});
    return past;
  }
  std::size_t recover(std::vector<PastVerdict> past = {}) {
    return Recovery({.workers = workers,
                     .registry = registry,
                     .pages = pages,
                     .folder = page_folder,
                     .policy = policy,
                     .unsaved = unsaved,
                     .records = records,
                     .log = *log,
                     .verdicts = verdicts},
                    std::move(past))
        .run();
  }
  Worker& worker() {
    Worker* const found = workers.find(child.pid());
    REQUIRE(found != nullptr);
    return *found;
  }
  // Returns how many scopes are due after the recovery.
  std::size_t count_due(Instant woke = {6'000}) {
    return scan.run(woke, board, Instant::never()).due.size();
  }
  // Returns the `killed` records of the log as "ID SCOPE: VERDICT (REASON)".
  std::vector<std::string> killed() {
    advance(Instant::now() + 1s);
    std::vector<std::string> all;
    for (const testing::Record& record : records_of("killed")) {
      CHECK(record.text("incident") == "before-i3");
      all.push_back(fmt::format("{} {}: {} ({})", record.text("id"), record.text("scope"),
                                record.text("verdict"), record.text("reason")));
    }
    return all;
  }

  const Child child;
  const Process process = process_of(child);
};

using Kind = RecoveryStage::Kind;
using State = RecoveryStage::State;
using Ends = std::vector<std::string>;

constexpr std::string_view kOver = "the scope had ended before the next server started";
constexpr std::string_view kEndedUnseen = "the worker ended while no server was running";

}  // namespace

TEST_CASE("A scope without a verdict is adopted, and judged when it is due") {
  RecoveryStage stage;
  Kind kind = Kind::kPipe;
  SUBCASE("on the pipe") {}
  SUBCASE("on a page of the worker's own") {
    kind = Kind::kOwn;
  }
  stage.leave_page(kind, State::kOpen);
  CHECK(stage.recover() == 1);
  CHECK(stage.worker().pages.at(0)->watched_count() == 1);
  CHECK((stage.worker().pipe != nullptr) == (kind == Kind::kPipe));
  CHECK(stage.count_due({4'999}) == 0);
  CHECK(stage.count_due({5'000}) == 1);
  CHECK(stage.killed().empty());
}

TEST_CASE("A scope with a verdict that was not recorded is open again, and judged at once") {
  RecoveryStage stage;
  Kind kind = Kind::kPipe;
  SUBCASE("on the pipe") {}
  SUBCASE("on a page of the worker's own") {
    kind = Kind::kOwn;
  }
  stage.leave_page(kind, State::kJudged);
  std::vector<PastVerdict> past;
  SUBCASE("nothing was recorded") {}
  SUBCASE("a verdict on another process with this pid") {
    past = {stage.verdict()};
    ++past[0].start_time;
    past[0].is_finished = true;
  }
  SUBCASE("a verdict on an earlier scope of this name") {
    past = {stage.verdict(true)};
    past[0].expiry.scope.terms.acquired = {900};
  }
  SUBCASE("a verdict on another scope") {
    past = {stage.verdict(true)};
    past[0].expiry.scope.name = "backward";
  }
  CHECK(stage.recover(past) == 1);
  CHECK(stage.worker().pages.at(0)->watched_count() == 1);
  CHECK(stage.count_due() == 1);
  CHECK(stage.killed().empty());
}

TEST_CASE("A kill whose verdict is recorded continues under its id") {
  RecoveryStage stage;
  SUBCASE("the scope is on the pipe") {
    stage.leave_page(Kind::kPipe, State::kJudged);
  }
  SUBCASE("the scope is on the pipe, and its verdict was not saved") {
    stage.leave_page(Kind::kPipe, State::kOpen);
  }
  SUBCASE("the scope is on a page of the worker's own") {
    stage.leave_page(Kind::kOwn, State::kJudged);
  }
  stage.recover({stage.verdict()});
  CHECK(stage.worker().kills == 1);
  CHECK(stage.verdicts.ladder().count() == 1);
  CHECK(stage.worker().pages.at(0)->open_count() == 1);
  CHECK(stage.count_due() == 0);
  CHECK(stage.killed() == Ends{"before-7 forward: spared (dry run)"});
  CHECK(stage.records_of("expired").empty());
  CHECK(stage.worker().kills == 0);
  CHECK(stage.worker().pages.at(0)->open_count() == 0);
}

TEST_CASE("The verdict of a kill whose end is recorded is ended on the page") {
  RecoveryStage stage;
  SUBCASE("on the pipe") {
    stage.leave_page(Kind::kPipe, State::kJudged);
  }
  SUBCASE("on the pipe, whose verdict was not saved") {
    stage.leave_page(Kind::kPipe, State::kOpen);
  }
  SUBCASE("on a page of the worker's own") {
    stage.leave_page(Kind::kOwn, State::kJudged);
  }
  stage.recover({stage.verdict(true)});
  CHECK(stage.verdicts.ladder().idle());
  CHECK(stage.worker().pages.at(0)->open_count() == 0);
  CHECK(stage.count_due() == 0);
  CHECK(stage.killed().empty());
}

TEST_CASE("A kill whose scope has ended meanwhile spares its worker") {
  RecoveryStage stage;
  SUBCASE("it was released on the pipe") {
    stage.leave_page(Kind::kPipe, State::kReleasedLate);
  }
  SUBCASE("it was released on a page of the worker's own") {
    stage.leave_page(Kind::kOwn, State::kReleasedLate);
  }
  SUBCASE("its page is gone") {}
  stage.recover({stage.verdict()});
  CHECK(stage.verdicts.ladder().idle());
  CHECK(stage.worker().kills == 0);
  CHECK(stage.killed() == Ends{fmt::format("before-7 forward: spared ({})", kOver)});
}

TEST_CASE("A late release that the earlier server did not see frees its slot") {
  RecoveryStage stage;
  stage.leave_page(Kind::kOwn, State::kReleasedLate);
  stage.recover();
  CHECK(stage.worker().pages.at(0)->judged_slots().empty());
}

TEST_CASE("All verdicts on one worker are resumed as one kill") {
  RecoveryStage stage;
  TestPage content;
  content.header().pid = stage.child.pid();
  content.open(0, {.timeout = 4'000, .word = slot_word::expired(5'000)});
  content.open(1, {.name = "outer", .timeout = 3'500, .word = slot_word::expired(4'500)});
  stage.leave_own_page(content);
  PastVerdict outer = stage.verdict();
  outer.expiry.id = "before-6";
  outer.expiry.scope.name = "outer";
  PastVerdict over = stage.verdict();
  over.expiry.id = "before-8";
  over.expiry.scope.name = "over";
  stage.recover({outer, over, stage.verdict()});
  CHECK(stage.verdicts.ladder().count() == 1);
  CHECK(stage.killed() == Ends{fmt::format("before-8 over: spared ({})", kOver),
                               "before-6 outer: spared (dry run)",
                               "before-7 forward: spared (dry run)"});
  CHECK(stage.records_of("hook").size() == 1);
}

TEST_CASE(
    "A kill whose worker exited while no server ran is recorded with its end and runs its hook") {
  RecoveryStage stage;
  PastVerdict past = stage.verdict();
  SUBCASE("no process has its pid") {
    past.pid = kNoProcess;
  }
  SUBCASE("another process has its pid") {
    ++past.start_time;
  }
  PastVerdict second = past;
  second.expiry.id = "before-8";
  stage.recover({past, second});
  CHECK(stage.workers.count() == 0);
  CHECK(stage.killed() == Ends{fmt::format("before-7 forward: already_gone ({})", kEndedUnseen),
                               fmt::format("before-8 forward: already_gone ({})", kEndedUnseen)});
  const testing::Records hooks = stage.records_of("hook");
  REQUIRE(hooks.size() == 1);
  CHECK(hooks[0].text("id") == "before-7");
  CHECK(hooks[0].integer("pid") == past.pid);
}

TEST_CASE(
    "The scopes of a worker of the pipe that exited while no server ran are recorded as left "
    "open") {
  RecoveryStage stage;
  TestPage content;
  content.header().pid = stage.child.pid();
  content.header().start_time = stage.process.start_time;
  content.open(0, {.timeout = 4'000, .word = 5'000});
  std::string pid = fmt::format("{}", stage.child.pid());
  std::string_view reason = kEndedUnseen;
  std::vector<PastVerdict> past;
  SUBCASE("no process has its pid") {
    pid = fmt::format("{}", kNoProcess);
  }
  SUBCASE("another process has its pid") {
    ++content.header().start_time;
  }
  SUBCASE("the machine was restarted") {
    content.header().boot = {};
    reason = "the machine was restarted";
  }
  SUBCASE("a scope has a verdict") {
    content.header().start_time = 77;
    past = {stage.verdict(true)};
    past[0].start_time = 77;
    reason = {};
  }
  const std::string path = fmt::format("{}/{}", stage.page_folder.server_pages(), pid);
  content.write(path);
  CHECK(stage.recover(past) == 0);
  CHECK(stage.workers.count() == 0);
  CHECK_FALSE(testing::exists(path));
  const testing::Records left = stage.records_of("left_open");
  REQUIRE(left.size() == (reason.empty() ? 0 : 1));
  if (!left.empty()) {
    CHECK(left[0].text("scope") == "forward");
    CHECK(left[0].text("reason") == reason);
    CHECK(fmt::format("{}", left[0].integer("pid")) == pid);
  }
}

TEST_CASE("A file that is not a page of the pipe is left alone") {
  RecoveryStage stage;
  testing::write_file(stage.pipe_path(), "no page");
  CHECK(stage.recover() == 0);
  CHECK(testing::read_file(stage.pipe_path()) == "no page");
  CHECK(stage.workers.count() == 0);
}

TEST_CASE("The idle time of a worker of the pipe counts from the start of the next server") {
  RecoveryStage stage;
  stage.leave_idle_page();
  PipePage piped(stage.page_folder.server_pages(), stage.child.pid(), {});
  REQUIRE(piped.acquire("forward", 7, terms_between({1'000}, {5'000})));
  REQUIRE(piped.save(stage.process, {}));
  piped.release("forward");
  REQUIRE(piped.save(stage.process, {}));
  const Instant before = Instant::now();
  CHECK(stage.recover() == 0);
  const Instant left = stage.worker().left_on_pipe;
  CHECK(left >= before);
  CHECK(left <= Instant::now());
  CHECK(stage.count_due(left + 4'999ns) == 0);
  CHECK(stage.count_due(left + 5'000ns) == 1);
}

TEST_CASE("An idle timeout that an earlier server has judged is not judged again") {
  RecoveryStage stage;
  stage.leave_idle_page();
  PastVerdict past = stage.verdict(true);
  past.expiry.scope.name = "(idle)";
  past.expiry.scope.terms = terms_between({10'000}, {15'000});
  std::size_t due = 0;
  SUBCASE("its kill has ended") {
    past.expiry.scope.terms.is_idle = true;
  }
  SUBCASE("a scope was judged") {
    due = 1;
  }
  SUBCASE("another process was judged") {
    past.expiry.scope.terms.is_idle = true;
    ++past.start_time;
    due = 1;
  }
  stage.recover({past});
  CHECK(stage.count_due({20'000}) == due);
}
