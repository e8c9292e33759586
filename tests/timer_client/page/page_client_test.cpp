// What a client writes into its scope page, and when it wakes the server for it.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <filetimer/timer_client.hpp>

#include "common/clock.hpp"
#include "tests/support/variable.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::Connected;
using testing::FakeServer;
using testing::index_of;
using testing::slot_called;
using testing::slots_of;

TEST_CASE_FIXTURE(Connected, "one line announces a worker's page, which all its clients use") {
  const std::string name = server.pipe().next().page();
  REQUIRE(server.page_names() == std::vector{name});
  CHECK(is_page_name(name));
  CHECK(name.starts_with(std::to_string(::getpid()) + "-"));
  auto second = server.connect();
  auto one = client.expires(30s, "one");
  auto other = second.expires(30s, "other");
  CHECK(server.pipe().is_silent());
  CHECK(server.slots().size() == 2);
  CHECK(server.wakes() == 0);
}

TEST_CASE("a page has the pid and the job variables of its worker") {
  const testing::Variable rank("RANK", "3");
  const testing::Variable none("LOCAL_RANK", "");
  const testing::Variable local_rank("OMPI_COMM_WORLD_LOCAL_RANK", "1");
  const testing::Variable job("PBS_JOBID", std::string(200, 'j').c_str());
  FakeServer server;
  auto client = server.connect();
  const auto claims = read_claims(server.page(), kPageBytes);
  REQUIRE(claims);
  CHECK(claims->boot == this_boot());
  CHECK(claims->pid == ::getpid());
  CHECK(claims->uid == ::geteuid());
  CHECK(claims->start_time > 0);
  CHECK(claims->created_ns <= Instant::now().ns);
  CHECK(claims->rank == "3");
  CHECK(claims->local_rank == "1");
  CHECK(claims->job_id == std::string(63, 'j'));
  CHECK(claims->comm + "\n" == testing::read_file("/proc/self/comm"));
  CHECK((server.page().header().flags & page_flag::kStatistics) != 0);
}

TEST_CASE_FIXTURE(Connected,
                  "a process writes one wake-up message until the server begins its next scan") {
  const std::string page = server.pipe().next().page();
  const auto messages_of_scopes = [&] {
    const auto open = [&] { (void)client.expires(5s, "step").release(); };
    const std::uint64_t before = server.page(page).header().wakes;
    open();
    testing::in_thread(open);
    open();
    return server.page(page).header().wakes - before;
  };
  announce_scan(server.board());
  CHECK(messages_of_scopes() == 1);
  server.looks_in(12s);  // the message is still unread
  CHECK(messages_of_scopes() == 0);
  announce_scan(server.board());
  CHECK(messages_of_scopes() == 1);
  SUBCASE("a message for which the pipe has no room is written again") {
    server.pipe().discard();
    announce_scan(server.board());
    const std::size_t bytes = server.pipe().fill();
    CHECK(messages_of_scopes() == 0);
    server.pipe().drain(bytes);
    CHECK(messages_of_scopes() == 1);
  }
  SUBCASE("a forked child writes its own") {
    server.pipe().discard();
    CHECK(testing::in_child([&] { return client.expires(5s, "step").release() ? 0 : 1; }) == 0);
    const std::string of_child = server.pipe().next().page();  // it announces its page
    CHECK(of_child != page);
    CHECK(server.pipe().next().page() == of_child);
    CHECK(server.pipe().is_silent());
  }
  SUBCASE("a server that does not count its scans gets one for each deadline") {
    SUBCASE("and none has") {
      server.board().scans = 0;
    }
    SUBCASE("and an earlier one has") {
      server.board().incarnation.fetch_add(1);
    }
    CHECK(messages_of_scopes() == 3);
    CHECK(messages_of_scopes() == 3);
  }
}

TEST_CASE_FIXTURE(Connected, "the server is woken only for a deadline before its next reading") {
  const std::string page = server.pipe().next().page();
  server.looks_in(12s);
  auto far = client.expires(30s, "far");
  auto endless = client.expires(kNoDeadline, "endless");
  CHECK(server.pipe().is_silent());
  auto near = client.expires(5s, "near");
  CHECK(server.pipe().next().page() == page);
  CHECK(server.pipe().is_silent());
  CHECK(server.wakes() == 1);
  SUBCASE("each call that brings a deadline nearer does it, and the end of a thread does not") {
    const auto wakes_of = [&](const auto& call) {
      const std::uint64_t before = server.wakes();
      call();
      return server.wakes() - before;
    };
    server.looks_in(1h);
    CHECK(wakes_of([&] { client.start(2h); }) == 0);
    CHECK(wakes_of([&] { auto soon = client.expires(5min, "soon"); }) == 1);
    CHECK(wakes_of([&] { client.start(5min); }) == 1);
    CHECK(wakes_of([&] { far.renew(5min); }) == 1);
    CHECK(wakes_of([&] { far.pause(); }) == 0);
    CHECK(wakes_of([&] { far.resume(); }) == 1);
    TimerScope left;
    CHECK(wakes_of([&] { testing::in_thread([&] { left = client.expires(2h, "left"); }); }) == 0);
    std::optional<TimerClient> idle;
    CHECK(wakes_of([&] { idle.emplace(server.connect({.idle_timeout = 5min})); }) == 1);
    auto uncut = client.expires(2h, "uncut");
    CHECK(wakes_of([&] { uncut.pause(); }) == 0);
    server.board().max_timeout = Duration{5min}.count();
    CHECK(wakes_of([&] { uncut.resume(); }) == 1);
    uncut.release();
    CHECK(wakes_of([&] { far.pause(); }) == 1);
    // For itself, for the scopes that it pauses, and for those that go on.
    CHECK(wakes_of([&] { const PausedRegion region = client.paused("region"); }) == 3);
  }
  SUBCASE("a soft deadline of the scope does it, also in a renewal") {
    auto late = client.expires(30s, "late", {.warn_after = 20s});
    CHECK(server.pipe().is_silent());
    auto soon = client.expires(30s, "soon", {.warn_after = 5s});
    CHECK(server.pipe().next().page() == page);
    CHECK(soon.renew(40s));
    CHECK(server.pipe().next().page() == page);
    auto endless_soon = client.expires(kNoDeadline, "endless soon", {.warn_after = 5s});
    CHECK(server.pipe().next().page() == page);
    CHECK(late.renew(40s));
    CHECK(server.pipe().is_silent());
  }
  SUBCASE("the server's --warn-at does it") {
    server.board().warn_at = 1U << 30;  // a quarter
    auto soon = client.expires(30s, "soon");
    CHECK(server.pipe().next().page() == page);
    auto later = client.expires(50s, "later");
    auto never = client.expires(kNoDeadline, "never");
    CHECK(server.pipe().is_silent());
    server.board().max_timeout = Duration{30s}.count();  // --warn-at applies to the granted timeout
    auto cut = client.expires(50s, "cut");
    CHECK(server.pipe().next().page() == page);
  }
}

TEST_CASE_FIXTURE(Connected, "a slot has the options with which the scope was opened") {
  const std::int64_t before = Instant::now().ns;
  auto scope = client.expires(30s, "forward");
  const std::int64_t after = Instant::now().ns;
  const auto slot = server.slot("forward");
  CHECK(slot.acquired.ns >= before);
  CHECK(slot.acquired.ns <= after);
  CHECK(slot.started == slot.acquired);
  CHECK(slot.deadline == slot.acquired + 30s);
  CHECK(slot.asked == 30s);
  CHECK_FALSE(slot.grace_ms);
  CHECK(slot.tid == ::gettid());
  CHECK(slot.signal == 9);
  CHECK(slot.flags == 0);

  const auto opened = [&](std::chrono::nanoseconds timeout, ScopeOptions options) {
    auto other = client.expires(timeout, "other", options);
    return server.slot("other");
  };
  CHECK(opened(1h, {.signal = 15, .grace = 1500us}).grace_ms == 2);
  CHECK(opened(1h, {.signal = 15, .grace = 1500us}).signal == 15);
  CHECK(opened(1h, {.signal = 64}).signal == 64);
  CHECK(opened(1h, {.signal = 0, .grace = 0s}).grace_ms == 0);
  CHECK(opened(1h, {.signal = 9, .grace = kNoDeadline}).grace_ms == kNoSigkill);
  CHECK(opened(1h, {.signal = 9, .grace = std::chrono::seconds{1'000'000'000}}).grace_ms ==
        kLongestGraceMs);
  CHECK_FALSE(opened(1h, {}).grace_ms);
  CHECK(opened(1h, {.signal = 9, .grace = {}, .warn_after = 1500us}).soft_ms == 2);
  CHECK(opened(kNoDeadline, {.warn_after = kLongestSoft}).soft_ms == kLongestSoft.count());
  CHECK(opened(1h, {.signal_first = true}).flags == slot_flag::kSignalFirst);
  CHECK(opened(1h, {}).flags == 0);
  CHECK(opened(1h, {}).soft_ms == 0);  // the slot's next scope has none
  CHECK(opened(kNoDeadline, {}).deadline.is_never());
  CHECK(opened(kNoDeadline, {}).asked == kForever);
  const SlotReading longest = opened(kMaxTimeout, {});
  CHECK(longest.deadline - longest.started == kMaxTimeout);
}

TEST_CASE_FIXTURE(Connected,
                  "a scope that was renewed too late never refers to the slot's next scope") {
  // Two scopes of a slot without a deadline have the same fields.
  auto old = client.expires(kNoDeadline, "step");
  const std::size_t index = index_of(server.page(), "step");
  REQUIRE(server.expire("step"));
  CHECK_FALSE(old.renew(1h));
  REQUIRE(acknowledge_late_release(server.page().slot(index)));
  auto next = client.expires(kNoDeadline, "step");
  REQUIRE(index_of(server.page(), "step") == index);
  CHECK_FALSE(old.renew(1h));
  CHECK_FALSE(old.pause());
  CHECK_FALSE(old.times());
  CHECK(old.release() == ReleaseResult::kNotOpen);
  CHECK(server.slot("step").deadline.is_never());
  CHECK(next.renew(1h));
  CHECK(next.release());
  CHECK_FALSE(next.release());
  CHECK_FALSE(TimerScope().release());
  CHECK(server.slots().empty());
}

TEST_CASE_FIXTURE(Connected, "names that are new each time use only a few slots") {
  const PageLayout page = server.page();
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "iteration " + std::to_string(i);
    auto scope = client.expires(1h, name);
    REQUIRE(slot_called(page, name).asked == 1h);
  }
  CHECK(slots_in_use(page) == 8);
}

TEST_CASE("a second idle timeout keeps the time of the last release for the first one") {
  FakeServer server;
  auto one = server.connect({.idle_timeout = 5s});
  (void)one.expires(1h, "step").release();
  const std::int64_t left = server.page().slot(1).left;
  CHECK(left != 0);
  const auto other = server.connect({.idle_timeout = 5s});
  CHECK(server.page().slot(1).left == left);
}

TEST_CASE("an idle timeout has nothing of the scope that was in its slot before") {
  FakeServer server;
  const std::string timeouts = server.dir() + "/timeouts.toml";
  testing::write_file(timeouts, "step = 60\n");
  auto client = server.connect({.timeouts = timeouts});
  testing::in_thread([&] {  // its slot is free for others when it has ended
    auto scope = client.expires(1h, "step", {.signal = 15, .grace = 5s, .warn_after = 30min});
    CHECK(scope.pause());
    CHECK(scope.release());
  });
  const auto idle = server.connect({.idle_timeout = 5s, .timeouts = timeouts});
  const Slot& slot = server.page().slot(0);
  REQUIRE(read_deadline(slot) == slot_word::kIdleWatch);
  CHECK(read_name(server.page().name(0)) == "(idle)");
  CHECK(slot.acquired == slot.started);
  CHECK(slot.left == 0);  // otherwise it would be the time of a release
  CHECK(slot.grace_ms == kServersGrace);
  CHECK(slot.soft_ms == 0);
  CHECK(slot.tid == 0);
  CHECK(slot.signal == SIGKILL);
  CHECK(slot.flags == slot_flag::kIdle);
  CHECK(slot.code_timeout_ms == 0);
}

TEST_CASE("the end of a client ends its own idle timeout, also after a verdict, and no other") {
  FakeServer server;
  const auto connect = [&] { return server.connect({.idle_timeout = 5s}); };
  auto other = connect();
  const PageLayout page = server.page();
  for (int i = 0; i < 10; ++i) {
    (void)connect();  // uses the same slot each time
  }
  CHECK(slots_in_use(page) == 2);
  CHECK(read_deadline(page.slot(0)) == slot_word::kIdleWatch);
  CHECK(read_deadline(page.slot(1)) == slot_word::kFree);
  {
    const auto judged = connect();
    REQUIRE(try_expire_idle(page.slot(1), Instant::now().ns));
  }
  CHECK(read_deadline(page.slot(1)) == slot_word::kReleasedLate);
  (void)connect();  // has another slot, until the server frees that one
  CHECK(slots_in_use(page) == 3);
  CHECK(acknowledge_late_release(page.slot(1)));
  std::vector<TimerScope> scopes;
  for (const char* const name : {"a", "b", "c"}) {
    scopes.push_back(other.expires(1h, name));
  }
  CHECK(slots_in_use(page) == 4);
  (void)connect();  // may have the address of an earlier one
  CHECK(server.slots().size() == 4);
}

TEST_CASE_FIXTURE(Connected, "names are compared by their bytes, not by their addresses") {
  const PageLayout page = server.page();
  for (const std::size_t size : {1U, 2U, 3U, 4U, 7U, 8U, 9U, 15U, 16U, 17U, 100U}) {
    std::string name(size, 'a');
    for (const std::size_t changed : {std::size_t{0}, size / 2, size - 1}) {
      name.assign(size, 'a');
      { auto scope = client.expires(1h, name); }
      name[changed] = 'b';
      auto scope = client.expires(1h, name);
      CHECK(slot_called(page, name).name == name);
      const std::string copy = name;
      auto same = client.expires(1h, copy);
      CHECK(slots_of(page).size() == 2);
    }
    const std::string plain(size, 'a');
    auto scope = client.expires(1h, plain);
    CHECK(slot_called(page, plain).name == plain);
  }
}

TEST_CASE_FIXTURE(
    Connected,
    "a scope without a name has a slot for each line, which may name its file in a buffer") {
  const PageLayout page = server.page();
  for (int i = 0; i < 3; ++i) {
    auto scope = client.expires(30s);
    auto other = client.expires(30s);
    CHECK(slots_of(page).size() == 2);
  }
  CHECK(slots_in_use(page) == 2);
  char file[] = "/src/a.cpp";
  { auto scope = client.expires(30s, {}, {}, file, 7); }
  file[5] = 'b';
  auto scope = client.expires(30s, {}, {}, file, 7);
  CHECK(server.slot("b.cpp:7").asked == 30s);
}

TEST_CASE_FIXTURE(Connected,
                  "scopes stay on the page while no server runs, and a new server is woken again") {
  server.pipe().next();
  announce_scan(server.board());  // the server was killed while it read the pages
  server.pipe().close();
  auto open = client.expires(1h, "open");
  for (int i = 0; i < 100; ++i) {
    auto scope = client.expires(1h, "lost");
  }
  CHECK(server.slots().size() == 1);
  CHECK(server.wakes() == 0);
  // The next server opens the pipe, increments the incarnation, and then reads the pages.
  server.pipe().open();
  { auto unseen = client.expires(1h, "before the number"); }  // the server will read it
  CHECK(server.pipe().is_silent());
  server.board().incarnation.fetch_add(1);
  auto scope = client.expires(1h, "after");
  CHECK(server.pipe().next().page() == server.page_names()[0]);
  CHECK(server.wakes() == 1);
}

TEST_CASE("a message that finds the pipe full is not written later, and the next one is written") {
  FakeServer server;
  const auto bytes = server.pipe().fill();
  auto client = server.connect();
  announce_scan(server.board());
  { auto scope = client.expires(1h, "unsaid"); }
  server.pipe().drain(bytes);
  CHECK(server.pipe().is_silent());
  CHECK(server.wakes() == 0);
  auto scope = client.expires(1h, "said");
  CHECK(server.pipe().next().page() == server.page_names()[0]);
  CHECK(server.wakes() == 1);
  sigset_t blocked{};
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  CHECK(::sigismember(&blocked, SIGTERM) == 0);
}

TEST_CASE_FIXTURE(Connected,
                  "the elapsed and remaining time of a timer are known while it is open") {
  server.board().max_timeout = Duration{10s}.count();
  auto scope = client.expires(30s, "cut");
  const auto slot = server.slot("cut");
  const std::int64_t before = Instant::now().ns;
  const auto times = scope.times();
  const std::int64_t after = Instant::now().ns;
  REQUIRE(times.has_value());
  CHECK(times->elapsed >= Duration{before - slot.acquired.ns});
  CHECK(times->elapsed <= Duration{after - slot.acquired.ns});
  CHECK(times->elapsed + times->remaining == 10s);
  server.board().max_timeout = kForever.count();
  CHECK(scope.renew(1min));
  CHECK(scope.times()->remaining > 59s);
  CHECK(scope.times()->elapsed >= times->elapsed);
  auto endless = client.expires(kNoDeadline, "endless");
  CHECK(endless.times()->remaining == kNoDeadline);
  endless.release();
  CHECK(!endless.times());
  CHECK(!TimerScope().times());
  // The scope is judged, and the worker is still in it.
  REQUIRE(server.expire("cut"));
  CHECK(scope.times()->remaining <= 1min);
  CHECK(scope.times()->expired);
  server.board().max_timeout = Duration{10s}.count();
  CHECK(scope.times()->remaining <= 10s);
  CHECK_FALSE(times->expired);
  scope.release();
  CHECK(!scope.times());
}

TEST_CASE_FIXTURE(Connected,
                  "a process gets the path of its stacks file, and its page has the signal") {
  const std::string page = server.pipe().next().page();
  CHECK(client.stacks_file() == server.dir() + "/scopes/.stacks/" + page);
  CHECK(server.page().header().dump_signal == 0);
  CHECK(client.offer_stacks(12));
  CHECK(server.page().header().dump_signal == 12);
  CHECK_THROWS_AS(client.offer_stacks(65), InvalidArgument);
  CHECK_THROWS_AS(client.offer_stacks(-1), InvalidArgument);
  CHECK(client.offer_stacks(0));
  CHECK(server.page().header().dump_signal == 0);
  CHECK(testing::in_child([&] {
          if (!client.stacks_file().empty() || client.offer_stacks(12)) {
            return 1;  // the page belongs to the parent
          }
          auto scope = client.expires(1h, "child");
          const std::string path = client.stacks_file();
          return path.ends_with(page) || path.empty() || !client.offer_stacks(10) ? 2 : 0;
        }) == 0);
}

TEST_CASE_FIXTURE(
    Connected, "a heartbeat is a timer that each beat renews, and the first one may take longer") {
  {
    auto heart = client.heartbeat(5s, "loop", {.signal = 15, .first_timeout = 10min});
    auto slot = server.slot("loop");
    CHECK(slot.deadline - slot.started == 10min);
    CHECK(slot.signal == 15);
    for (int beat = 0; beat < 2; ++beat) {
      CHECK(heart.beat());
      slot = server.slot("loop");
      CHECK(slot.deadline - slot.started == 5s);
      CHECK(heart.times()->remaining <= 5s);
    }
    const int line = __LINE__ + 1;
    auto other = client.heartbeat(1h);
    const std::string name = "page_client_test.cpp:" + std::to_string(line);
    CHECK(server.slot(name).asked == 1h);
    REQUIRE(server.expire("loop"));
    CHECK_FALSE(heart.beat());  // it has expired, and its loop goes on
    CHECK(heart.times()->timeout == 5s);
    CHECK(heart.beat());
    CHECK(other.release());
    CHECK_FALSE(other.beat());
  }
  CHECK(client.expires(1h, "loop", {.first_timeout = 2h}).times()->remaining > 1h);
  for (const auto& [index, slot] : server.slots()) {
    CHECK_FALSE(slot_word::is_open(slot.word));
  }
  CHECK_THROWS_AS((void)client.heartbeat(0s, "loop"), InvalidArgument);
  CHECK_THROWS_AS((void)client.heartbeat(1s, "loop", {.first_timeout = 0s}), InvalidArgument);
}

TEST_CASE_FIXTURE(Connected,
                  "a job that is started without a timeout has the server's --default-timeout") {
  CHECK(testing::message_of([&] { client.start(); }) ==
        "start() without a timeout: expected the server at '" + client.target() +
            "' to have a --default-timeout");
  CHECK(server.slots().empty());
  server.board().default_timeout = Duration{30s}.count();
  client.start();
  CHECK(server.slot("job").asked == 30s);
  client.start(1h);
  CHECK(server.slot("job").asked == 1h);
  client.start();
  CHECK(server.slot("job").asked == 30s);
  CHECK(client.stop());
}
