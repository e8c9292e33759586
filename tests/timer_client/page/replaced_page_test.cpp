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
  for (const auto& [index, reading] : slots_of(page)) {
    if (reading.name == name) {
      return true;
    }
  }
  return false;
}

// A server whose directory was moved away, and another server in its place.
struct MadeAgain {
  testing::TempFolder folder;
  std::string dir = folder.path("run");
  std::optional<FakeServer> before;
  std::optional<FakeServer> after;

  MadeAgain() {
    std::filesystem::create_directory(dir);
    before.emplace(dir);
    make_stacks_folder();
  }
  void make_stacks_folder() const { std::filesystem::create_directory(dir + "/scopes/.stacks"); }
  void make_again() {
    std::filesystem::rename(dir, dir + ".removed");
    std::filesystem::create_directory(dir);
    after.emplace(dir);
    make_stacks_folder();
  }
  [[nodiscard]] bool has_page() const { return !after->worker_page_names().empty(); }
};

}  // namespace

TEST_CASE("the process writes its stacks to the file of the new page") {
  MadeAgain server;
  auto client = server.before->connect();
  const UniqueFd file(::open(client.stacks_file().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(client.offer_stacks(SIGUSR2, file.get()));
  server.make_again();
  open_later(client);
  REQUIRE(server.has_page());
  CHECK(server.after->page().header().dump_signal == SIGUSR2);
  REQUIRE(::write(file.get(), "stack", 5) == 5);
  CHECK(std::filesystem::file_size(client.stacks_file()) == 5);
  CHECK((::fcntl(file.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("another client of the process continues on the new page at once") {
  MadeAgain server;
  auto one = server.before->connect();
  auto other = server.before->connect();
  server.make_again();
  open_later(one);
  REQUIRE(server.has_page());
  const auto scope = other.expires(1h, "other");
  CHECK(has_slot(server.after->page(), "other"));
}

TEST_CASE("a file that reuses the descriptor of a closed stacks file is left alone") {
  MadeAgain server;
  auto client = server.before->connect();
  UniqueFd file(::open(client.stacks_file().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(client.offer_stacks(SIGUSR2, file.get()));
  const int number = file.get();
  file.reset();
  const UniqueFd other(::open(server.folder.path("other").c_str(), O_WRONLY | O_CREAT, 0600));
  REQUIRE(other.get() == number);
  SUBCASE("the offer is withdrawn") {
    open_later(client);
    CHECK(server.before->page().header().dump_signal == 0);
  }
  SUBCASE("the directory is made again first") {}
  server.make_again();
  open_later(client);
  REQUIRE(server.has_page());
  CHECK(server.after->page().header().dump_signal == 0);
  REQUIRE(::write(number, "data", 4) == 4);
  CHECK(std::filesystem::file_size(server.folder.path("other")) == 4);
}

TEST_CASE("heartbeats and the job's scope move to the new page, too") {
  MadeAgain server;
  auto client = server.before->connect();
  const PageLayout old = server.before->page();
  auto heart = client.heartbeat(
      1h, "heart", {.signal = 15, .grace = 3s, .warn_after = 30min, .signal_first = true});
  client.start(1h);
  server.make_again();
  server.after->looks_in(2h);
  testing::move_clock(1s);
  CHECK(heart.beat());
  REQUIRE(server.has_page());
  const PageLayout page = server.after->page();
  CHECK(page.header().wakes == 1);  // for the beat
  CHECK(testing::slot_called(page, "heart").asked == 1h);
  CHECK(testing::slot_called(page, "heart").signal == 15);
  CHECK(testing::slot_called(page, "heart").grace_ms == 3000);
  CHECK(testing::slot_called(page, "heart").soft_ms == 1'800'000);
  CHECK(testing::slot_called(page, "heart").flags == slot_flag::kSignalFirst);
  CHECK(old.statistics(0).count == 1);  // of the beat: what follows is counted on the new page
  client.start(2h);
  CHECK(testing::slot_called(page, "job").flags == 0);
  CHECK(testing::slot_called(page, "job").asked == 2h);
  CHECK(client.stop());
  CHECK(heart.release());
  CHECK(slots_of(page).empty());
}

TEST_CASE("a client continues on the new page after the old server was killed while it drained") {
  MadeAgain server;
  auto client = server.before->connect();
  server.before->board().announcement = static_cast<std::uint32_t>(Announcement::kDraining);
  server.make_again();
  const auto process = testing::process_of(*server.after);
  open_later(client);
  REQUIRE(server.has_page());
  const auto scope = client.expires(1h, "later");
  CHECK(has_slot(server.after->page(), "later"));
}

TEST_CASE("the end of a client ends the job's scope on the page that was replaced, too") {
  MadeAgain server;
  std::optional<TimerClient> client(server.before->connect());
  client->start(1h);
  const PageLayout page = server.before->page();
  server.make_again();
  open_later(*client);
  REQUIRE(server.has_page());
  CHECK(has_slot(page, "job"));
  client.reset();
  CHECK(!has_slot(page, "job"));
}

TEST_CASE("a file of timeouts counts on the new page, too") {
  MadeAgain server;
  ConnectOptions options = server.before->options();
  options.timeouts = server.folder.path("timeouts.toml");
  testing::write_file(options.timeouts,
                      "step = 5\n[load]\ntimeout = 7\nfirst_timeout = 60\n"
                      "[late]\ntimeout = 8\nfirst_timeout = 50\n"
                      "[used]\ntimeout = 9\nfirst_timeout = 70\n");
  auto client = TimerClient::connect(options);
  auto load = client.expires(1h, "load");
  CHECK(testing::slot_called(server.before->page(), "load").asked == 60s);
  (void)client.expires(1h, "used").release();
  server.make_again();
  testing::move_clock(1s);
  auto late = client.expires(1h, "late");  // moves to the new page
  CHECK(testing::slot_called(server.after->page(), "late").asked == 50s);
  auto scope = client.expires(1h, "step");
  CHECK(testing::slot_called(server.after->page(), "step").asked == 5s);
  auto used = client.expires(1h, "used");
  CHECK(testing::slot_called(server.after->page(), "used").asked == 9s);
  CHECK(load.renew(1h));
  CHECK(testing::slot_called(server.after->page(), "load").asked == 7s);
}

TEST_CASE("a page that could not be made is made a second later, and not tried with each scope") {
  const FakeServer server;
  const std::string pages = server.dir() + "/scopes";
  std::filesystem::rename(pages, pages + ".removed");
  testing::write_file(pages, "");
  ConnectOptions options = server.options();
  options.missing = ConnectOptions::Missing::kIgnore;
  options.idle_timeout = 5s;
  std::optional<TimerClient> client(TimerClient::connect(options));
  { auto scope = client->expires(1h, "before"); }
  std::filesystem::remove(pages);
  std::filesystem::rename(pages + ".removed", pages);
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
  const std::string pages = server.dir() + "/scopes";
  std::filesystem::rename(pages, pages + ".removed");
  testing::write_file(pages, "");
  ConnectOptions options = server.options();
  options.missing = ConnectOptions::Missing::kIgnore;
  TimerClient client = TimerClient::connect(options);
  TimerScope scope;
  {
    const auto region = client.paused("region");
    { const auto inner = client.paused("inner"); }
    std::filesystem::remove(pages);
    std::filesystem::rename(pages + ".removed", pages);
    testing::move_clock(1s);
    scope = client.expires(1h, "step");
    CHECK(slot_word::is_paused(testing::slot_called(server.page(), "step").word));
  }
  CHECK_FALSE(slot_word::is_paused(testing::slot_called(server.page(), "step").word));
}

TEST_CASE("a region pauses a scope that stayed on the page that was replaced, too") {
  MadeAgain server;
  auto client = server.before->connect();
  const auto outer = client.expires(1h, "outer");
  const PageLayout page = server.before->page();
  const auto is_paused = [&] {
    return slot_word::is_paused(testing::slot_called(page, "outer").word);
  };
  server.make_again();
  open_later(client);
  REQUIRE(server.has_page());
  {
    const auto region = client.paused("region");
    CHECK(is_paused());
  }
  CHECK_FALSE(is_paused());
}

TEST_CASE("a running client does not make a removed directory again") {
  MadeAgain server;
  auto client = server.before->connect();
  std::filesystem::rename(server.dir, server.dir + ".removed");
  auto scope = client.expires(1h, "step");
  CHECK(scope.release());
  CHECK(testing::in_child([&] {
          auto childs = client.expires(1h, "childs");
          return childs.release() ? 1 : 0;  // the child has no page
        }) == 0);
  CHECK_FALSE(std::filesystem::exists(server.dir));
}

TEST_CASE("a client whose page is cut short continues with a new page") {
  FakeServer server;
  ConnectOptions options = server.options();
  options.idle_timeout = 5s;
  auto client = TimerClient::connect(options);
  auto outer = client.expires(1h, "outer");
  auto inner = client.expires(1h, "inner");
  const std::string first = server.worker_page_names().at(0);
  REQUIRE(::truncate(server.page_path(first).c_str(), 0) == 0);
  CHECK_FALSE(outer.renew(1h));  // its page shows zeroes
  CHECK(inner.release() == ReleaseResult::kNotOpen);
  open_later(client);
  REQUIRE(server.worker_page_names().size() == 2);
  auto scope = client.expires(1h, "later");
  for (const std::string& name : server.worker_page_names()) {
    if (name != first) {
      CHECK(has_slot(server.page(name), "later"));
      CHECK(has_slot(server.page(name), "(idle)"));
    }
  }
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

TEST_CASE("a scope for which the new page has no room wakes the server on its old page") {
  MadeAgain server;
  auto client = server.before->connect();
  auto scope = client.expires(1h, "step");
  const std::string page = server.before->worker_page_names().at(0);
  server.before->looks_in(30min);
  server.make_again();
  open_later(client);
  std::vector<TimerScope> scopes;
  for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
    scopes.push_back(client.expires(1h, "other"));
  }
  server.after->pipe().discard();
  CHECK(scope.renew(1min));
  CHECK(server.after->pipe().next().x_page == page);
}

TEST_CASE("a client whose status page is cut short continues with a new page") {
  FakeServer server;
  auto client = server.connect();
  (void)client.expires(1h, "step").release();
  const std::string first = server.worker_page_names().at(0);
  REQUIRE(::truncate((server.dir() + "/server").c_str(), 0) == 0);
  open_later(client);
  REQUIRE(server.worker_page_names().size() == 2);
  CHECK(std::filesystem::file_size(server.dir() + "/server") == kBoardBytes);
  auto scope = client.expires(1h, "later");
  for (const std::string& name : server.worker_page_names()) {
    CHECK(has_slot(server.page(name), "later") == (name != first));
  }
}
