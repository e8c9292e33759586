// A runtime directory that is removed and made again under a running client, and files that are cut
// short.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/moved_clock.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::FakeServer;
using testing::slots_of;

namespace {

// Opens a scope a second later: the client checks the directory once a second, when a scope is
// opened.
void open_later(TimerClient& client) {
  testing::move_clock(1s);
  (void)client.expires(1h, "step").release();
}

bool has_slot(const PageLayout& page, const std::string& name) {
  return std::ranges::any_of(slots_of(page),
                             [&](const auto& slot) { return slot.second.name == name; });
}

// A client of a server whose directory is moved away, and another server in its place.
struct MadeAgain {
  testing::TempFolder folder;
  std::string dir = folder.path("run");
  std::unique_ptr<FakeServer> before = start();
  std::optional<TimerClient> client{before->connect()};
  PageLayout old = before->page();
  std::unique_ptr<FakeServer> after;

  [[nodiscard]] std::unique_ptr<FakeServer> start() const {
    std::filesystem::create_directory(dir);
    auto server = std::make_unique<FakeServer>(dir);
    std::filesystem::create_directory(dir + "/scopes/.stacks");
    return server;
  }
  [[nodiscard]] UniqueFd stacks_file() const {
    return UniqueFd(::open(client->stacks_file().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  }
  void make_again() {
    std::filesystem::rename(dir, dir + ".removed");
    after = start();
  }
  // Makes it again, and has the client continue there.
  void move_client() {
    make_again();
    open_later(*client);
    REQUIRE(!after->worker_page_names().empty());
  }
};

}  // namespace

TEST_CASE_FIXTURE(MadeAgain, "the process writes its stacks to the file of the new page") {
  const UniqueFd file = stacks_file();
  REQUIRE(client->offer_stacks(SIGUSR2, file.get()));
  move_client();
  CHECK(after->page().header().dump_signal == SIGUSR2);
  REQUIRE(::write(file.get(), "stack", 5) == 5);
  CHECK(std::filesystem::file_size(client->stacks_file()) == 5);
  CHECK((::fcntl(file.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE_FIXTURE(MadeAgain,
                  "a file that reuses the descriptor of a closed stacks file is left alone") {
  UniqueFd file = stacks_file();
  REQUIRE(client->offer_stacks(SIGUSR2, file.get()));
  const int number = file.get();
  file.reset();
  const UniqueFd other(::open(folder.path("other").c_str(), O_WRONLY | O_CREAT, 0600));
  REQUIRE(other.get() == number);
  SUBCASE("the offer is withdrawn") {
    open_later(*client);
    CHECK(old.header().dump_signal == 0);
  }
  SUBCASE("the directory is made again first") {}
  move_client();
  CHECK(after->page().header().dump_signal == 0);
  REQUIRE(::write(number, "data", 4) == 4);
  CHECK(std::filesystem::file_size(folder.path("other")) == 4);
}

TEST_CASE_FIXTURE(MadeAgain,
                  "heartbeats, the job's scope and other clients move to the new page, too") {
  auto other = before->connect();
  auto heart = client->heartbeat(
      1h, "heart", {.signal = 15, .grace = 3s, .warn_after = 30min, .signal_first = true});
  client->start(1h);
  make_again();
  after->looks_in(2h);
  testing::move_clock(1s);
  CHECK(heart.beat());
  CHECK(after->wakes() == 1);  // for the beat
  CHECK(client->stacks_file().ends_with("/" + after->worker_page_names().at(0)));
  CHECK(client->offer_stacks(SIGUSR2));
  CHECK(after->page().header().dump_signal == SIGUSR2);
  const SlotReading slot = after->slot("heart");
  CHECK(slot.asked == 1h);
  CHECK(slot.signal == 15);
  CHECK(slot.grace_ms == 3000);
  CHECK(slot.soft_ms == 1'800'000);
  CHECK(slot.flags == slot_flag::kSignalFirst);
  CHECK(old.statistics(0).count == 1);  // of the beat: what follows is counted on the new page
  {
    const auto scope = other.expires(1h, "other");
    CHECK(has_slot(after->page(), "other"));
  }
  client->start(2h);
  CHECK(after->slot("job").flags == 0);
  CHECK(after->slot("job").asked == 2h);
  CHECK(client->stop());
  CHECK(heart.release());
  CHECK(after->slots().empty());
}

TEST_CASE_FIXTURE(MadeAgain, "start() takes the default timeout of the server that is there now") {
  make_again();
  after->board().default_timeout = Duration{30s}.count();
  testing::move_clock(1s);
  CHECK_NOTHROW(client->start());
  CHECK(after->slot("job").asked == 30s);
}

TEST_CASE_FIXTURE(MadeAgain,
                  "a client continues on the new page after the old server was killed in a drain") {
  before->board().announcement = static_cast<std::uint32_t>(Announcement::kDraining);
  make_again();
  const auto process = testing::hold({after->dir() + "/server"});
  open_later(*client);
  const auto scope = client->expires(1h, "later");
  CHECK(has_slot(after->page(), "later"));
}

TEST_CASE_FIXTURE(MadeAgain,
                  "scopes on the old page are paused by regions, and end with the client") {
  client->start(1h);
  const auto outer = client->expires(1h, "outer");
  const auto is_paused = [&] {
    return slot_word::is_paused(testing::slot_called(old, "outer").word);
  };
  move_client();
  {
    const auto region = client->paused("region");
    CHECK(is_paused());
  }
  CHECK_FALSE(is_paused());
  CHECK(has_slot(old, "job"));
  client.reset();
  CHECK(!has_slot(old, "job"));
}

TEST_CASE_FIXTURE(MadeAgain, "a file of timeouts counts on the new page, too") {
  folder.write("timeouts.toml",
               "step = 5\n[load]\ntimeout = 7\nfirst_timeout = 60\n"
               "[late]\ntimeout = 8\nfirst_timeout = 50\n"
               "[used]\ntimeout = 9\nfirst_timeout = 70\n");
  client.emplace(before->connect({.idle_timeout = 1h, .timeouts = folder.path("timeouts.toml")}));
  auto load = client->expires(1h, "load");
  CHECK(before->slot("load").asked == 60s);
  (void)client->expires(1h, "used").release();
  make_again();
  testing::move_clock(1s);
  auto late = client->expires(1h, "late");  // moves to the new page
  CHECK(after->slot("late").asked == 50s);
  auto scope = client->expires(1h, "step");
  CHECK(after->slot("step").asked == 5s);
  auto used = client->expires(1h, "used");
  CHECK(after->slot("used").asked == 9s);
  CHECK((load.renew(1h) && after->slot("load").asked == 7s));
  CHECK(has_slot(after->page(), "(idle)") != has_slot(old, "(idle)"));  // on one of them
}

TEST_CASE("a page that could not be made is made a second later, and not tried with each scope") {
  const FakeServer server;
  server.refuse_pages();
  std::optional<TimerClient> client(
      TimerClient::connect({.dir = server.dir(), .idle_timeout = 5s}));
  { auto scope = client->expires(1h, "before"); }
  server.allow_pages();
  testing::move_clock(-1h);  // for a machine that takes a second for the next scope
  { auto scope = client->expires(1h, "too soon"); }
  CHECK(server.worker_page_names().empty());
  testing::move_clock(1h + 1s);
  auto scope = client->expires(1h, "step");
  const PageLayout page = server.page();
  CHECK(has_slot(page, "(idle)"));
  CHECK(testing::in_child([&] {
          auto childs = client->expires(1h, "childs");
          std::size_t open = 0;
          for (const std::string& name : server.worker_page_names()) {
            open += slots_of(server.page(name)).size();
          }
          return static_cast<int>(open);
        }) == 3);  // the parent's two, and one scope
  client.reset();
  CHECK_FALSE(has_slot(page, "(idle)"));
}

TEST_CASE("a region that began before its process had a page pauses the scopes of the page") {
  const FakeServer server;
  server.refuse_pages();
  TimerClient client = TimerClient::connect({.dir = server.dir()});
  TimerScope scope;
  {
    const auto region = client.paused("region");
    { const auto inner = client.paused("inner"); }
    server.allow_pages();
    testing::move_clock(1s);
    scope = client.expires(1h, "step");
    CHECK(slot_word::is_paused(server.slot("step").word));
  }
  CHECK_FALSE(slot_word::is_paused(server.slot("step").word));
}

TEST_CASE_FIXTURE(MadeAgain, "a running client does not make a removed directory again") {
  std::filesystem::rename(dir, dir + ".removed");
  auto scope = client->expires(1h, "step");
  CHECK(scope.release());
  CHECK(testing::in_child([&] {
          auto childs = client->expires(1h, "childs");
          return childs.release() ? 1 : 0;  // the child has no page
        }) == 0);
  CHECK_FALSE(std::filesystem::exists(dir));
}

TEST_CASE("a client whose page or status page is cut short continues with a new page") {
  const FakeServer server;
  auto client = server.connect({.idle_timeout = 5s});
  auto outer = client.expires(1h, "outer");
  auto inner = client.expires(1h, "inner");
  const std::string first = server.worker_page_names().at(0);
  SUBCASE("the page") {
    REQUIRE(::truncate(server.page_path(first).c_str(), 0) == 0);
    CHECK_FALSE(outer.times());  // its page shows zeroes
    CHECK_FALSE(outer.renew(1h));
    CHECK(inner.release() == ReleaseResult::kNotOpen);
  }
  SUBCASE("the status page") {
    REQUIRE(::truncate((server.dir() + "/server").c_str(), 0) == 0);
  }
  open_later(client);
  CHECK(std::filesystem::file_size(server.dir() + "/server") == kBoardBytes);
  auto scope = client.expires(1h, "later");
  const auto names = server.worker_page_names();
  REQUIRE(names.size() == 2);
  const PageLayout next = server.page(names[0] == first ? names[1] : names[0]);
  CHECK(has_slot(next, "later"));
  CHECK(has_slot(next, "(idle)"));
}

TEST_CASE("a client whose page or status page is removed continues with a new page") {
  const FakeServer server;
  auto client = server.connect();
  auto scope = client.expires(1h, "step");
  const std::string first = server.worker_page_names().at(0);
  SUBCASE("the page alone") {
    std::filesystem::remove(server.page_path(first));
  }
  SUBCASE("with its folder") {
    std::filesystem::remove_all(server.dir() + "/scopes");
  }
  SUBCASE("with the status page") {
    std::filesystem::remove(server.page_path(first));
    std::filesystem::remove(server.dir() + "/server");
  }
  SUBCASE("the status page alone, and it is made again") {
    std::filesystem::remove(server.dir() + "/server");
    testing::write_file(server.dir() + "/server", "");
  }
  SUBCASE("and another file has its name") {
    SUBCASE("while its descriptor is open") {}
    SUBCASE("and the program has closed its descriptor") {
      const FileIdentity page = identity_of(server.page_path(first));
      for (int fd = STDERR_FILENO + 1; fd < 1024; ++fd) {
        if (identity_of(fd) == page) {
          ::close(fd);
        }
      }
    }
    std::filesystem::remove(server.page_path(first));
    testing::write_file(server.page_path(first), "");
  }
  testing::move_clock(1s);
  CHECK(scope.renew(1h));
  const auto names = server.worker_page_names();
  REQUIRE(!names.empty());
  CHECK(std::ranges::any_of(names, [&](const std::string& name) {
    return name != first && has_slot(server.page(name), "step");
  }));
}

TEST_CASE_FIXTURE(MadeAgain, "a process whose old page is full opens scopes on the new one") {
  std::vector<TimerScope> scopes;
  for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
    scopes.push_back(client->expires(1h, "other"));
  }
  make_again();
  testing::move_clock(1s);
  const auto scope = client->expires(1h, "step");
  CHECK(has_slot(after->page(), "step"));
}

TEST_CASE_FIXTURE(MadeAgain,
                  "a scope for which the new page has no room wakes the server on its old page") {
  auto scope = client->expires(1h, "step");
  const std::string page = before->worker_page_names().at(0);
  before->looks_in(30min);
  move_client();
  std::vector<TimerScope> scopes;
  for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
    scopes.push_back(client->expires(1h, "other"));
  }
  after->pipe().discard();
  CHECK(scope.renew(1min));
  CHECK(after->pipe().next().page() == page);
}
