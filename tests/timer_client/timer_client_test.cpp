// connect(): where a client looks for its server, and what it makes if no server runs.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "common/limits.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/variable.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::Connected;
using testing::FakeServer;
using testing::message_of;
using testing::Variable;

namespace {

using Missing = ConnectOptions::Missing;

bool is_blank_board(const std::string& path) {
  return testing::read_file(path) == std::string(kBoardBytes, '\0');
}

}  // namespace

TEST_CASE("the error of connect has the path, the reason and the time that it waited") {
  const testing::TempFolder folder;
  ConnectOptions options{.dir = folder.path("run"), .missing = Missing::kWait, .timeout = 30ms};
  CHECK(message_of([&] { TimerClient::connect(options); }) ==
        "no timer server at '" + folder.path("run/requests") +
            "': there is no such pipe (tried for 30ms)");
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
  CHECK(message_of([&] { TimerClient::connect({.timeout = -1s}); }) ==
        "the timeout of connect() is -1s: expected 0 or more");
  CHECK_THROWS_AS(TimerClient::connect({.timeout = -1s}), InvalidArgument);
  options.timeout = 0s;
  CHECK(message_of([&] { TimerClient::connect(options); }).ends_with("': there is no such pipe"));
}

TEST_CASE("an idle timeout is 100 ms at least, and a billion seconds at most") {
  const FakeServer server;
  const auto message = [&](Timeout idle) {
    return message_of([&] { (void)server.connect({.idle_timeout = idle}); });
  };
  for (const Timeout idle : {Timeout(99ms), Timeout(kMaxTimeout + 1ns), Timeout(-1s)}) {
    CHECK(message(idle).starts_with("the idle timeout is "));
  }
  for (const Timeout idle : {Timeout(100ms), Timeout(kMaxTimeout), Timeout(0s)}) {
    CHECK(message(idle) == "nothing was thrown");
  }
}

TEST_CASE("clients of two directories in which no status page can be made have their own pipes") {
  const testing::TempFolder folder;
  folder.write("file", "");
  for (const char* const name : {"file/one", "file/other"}) {
    const auto client = TimerClient::connect({.dir = folder.path(name)});
    CHECK(client.target() == folder.path(name) + "/requests");
  }
}

TEST_CASE("connect calls while_waiting while it waits, and passes on its exception") {
  const testing::TempFolder folder;
  int asked = 0;
  const auto throw_at_second = [&] {
    if (++asked == 2) {
      throw std::domain_error("enough");
    }
  };
  CHECK_THROWS_AS(TimerClient::connect({.dir = folder.path(),
                                        .missing = Missing::kWait,
                                        .timeout = 1h,
                                        .while_waiting = throw_at_second}),
                  std::domain_error);
}

TEST_CASE("connect waits for a server that is being started") {
  FakeServer server;
  server.pipe().close();
  std::thread start;
  const auto start_once = [&] {
    if (!start.joinable()) {
      start = std::thread([&] { server.pipe().open(); });
    }
  };
  const auto client = TimerClient::connect(
      {.dir = server.dir(), .missing = Missing::kWait, .while_waiting = start_once});
  start.join();
  CHECK(client.is_watched());
  CHECK(client.target() == server.dir() + "/requests");
}

TEST_CASE("the runtime directory is that of the environment, and PyTorch's pipe is ignored") {
  FakeServer server;
  const Variable file("TORCHELASTIC_TIMER_FILE", "/nowhere/timer");
  const Variable dir("FILETIMER_DIR", server.dir().c_str());
  auto client = TimerClient::connect();
  CHECK(client.target() == server.dir() + "/requests");
  CHECK(server.page_names().size() == 1);
}

TEST_CASE_FIXTURE(Connected, "two paths of one runtime directory have one page") {
  const testing::TempFolder other;
  std::filesystem::create_directory_symlink(server.dir(), other.path("link"));
  auto two = TimerClient::connect({.dir = other.path("link")});
  auto scope = two.expires(1h, "step");
  CHECK(server.page_names().size() == 1);
  CHECK(server.slot("step").asked == 1h);
}

TEST_CASE(
    "a client without a server makes the runtime directory, a blank status page and its page") {
  const testing::TempFolder folder;
  const std::string dir = folder.path("made/run");
  auto client = TimerClient::connect({.dir = dir});
  CHECK_FALSE(client.is_watched());
  struct stat st {};
  REQUIRE(::stat(dir.c_str(), &st) == 0);
  CHECK((st.st_mode & 07777) == 0700);
  REQUIRE(::stat((dir + "/server").c_str(), &st) == 0);
  CHECK((st.st_mode & 07777) == 0600);
  CHECK(is_blank_board(dir + "/server"));
  // A server that starts finds the scope, which has written nothing to the pipe.
  auto scope = client.expires(1h, "step");
  CHECK(scope.times()->remaining > 59min);  // a blank page has no limit
  FakeServer server(dir);
  CHECK(server.slot("step").asked == 1h);
  CHECK(server.pipe().is_silent());
  CHECK(client.is_watched());
  // From now on scopes wake the server, since it has not published its next reading.
  announce_scan(server.board());
  auto inner = client.expires(1h, "inner");
  CHECK(server.pipe().next().page() == server.worker_page_names().at(0));
}

TEST_CASE("two clients that connect at the same time without a server share what they make") {
  const testing::TempFolder folder;
  const std::string dir = folder.path("run");
  for (int round = 0; round < 20; ++round) {
    const auto start = [&] {
      const pid_t child = ::fork();
      if (child == 0) {
        auto client = TimerClient::connect({.dir = dir});
        auto scope = client.expires(1h, "step");
        ::_exit(client.stacks_file().starts_with(dir) && scope.release() ? 0 : 1);
      }
      return child;
    };
    const pid_t one = start();
    const pid_t other = start();
    CHECK(testing::exit_code_of(one) == 0);
    CHECK(testing::exit_code_of(other) == 0);
    std::filesystem::remove_all(dir);
  }
}

TEST_CASE("a missing folder of pages is made, and a status page that is too short is extended") {
  const FakeServer server;
  SUBCASE("the folder") {
    std::filesystem::remove(server.dir() + "/scopes");
  }
  SUBCASE("the status page") {
    REQUIRE(::truncate((server.dir() + "/server").c_str(), kBoardBytes - 1) == 0);
  }
  auto client = server.connect();
  auto scope = client.expires(1h, "step");
  CHECK(server.slot("step").asked == 1h);
}

TEST_CASE("a status page of another boot that no server holds is replaced by a blank one") {
  FakeServer server;
  server.board().boot[3] ^= 1;
  server.board().next_wake = kWakeAlways;
  auto client = server.connect();
  server.pipe().next();  // of the page
  auto scope = client.expires(1h, "step");
  CHECK(server.pipe().is_silent());
  CHECK(is_blank_board(server.dir() + "/server"));
}

TEST_CASE("connect fails for a status page that cannot be used, and keeps it") {
  FakeServer server;
  const std::string board = server.dir() + "/server";
  std::string own;
  const auto move_away = [&] { std::filesystem::rename(board, board + ".real"); };
  SUBCASE("another mark") {
    server.board().magic = 1;
  }
  SUBCASE("a version without the mark") {
    server.board().magic = 0;
  }
  SUBCASE("another version") {
    server.board().version = 99;
  }
  SUBCASE("somebody's own file") {
    move_away();
    own = "notes";
    testing::write_file(board, own);
  }
  SUBCASE("a symlink") {
    move_away();
    std::filesystem::create_symlink(board + ".real", board);
  }
  SUBCASE("a pipe") {
    move_away();
    REQUIRE(::mkfifo(board.c_str(), 0600) == 0);
  }
  SUBCASE("a folder") {
    move_away();
    std::filesystem::create_directory(board);
  }
  SUBCASE("another user's") {
    FILETIMER_SKIP_IF(::chown(board.c_str(), 12345, 12345) != 0,
                      "giving a file away is not allowed here");
  }
  CHECK(testing::contains(message_of([&] { (void)server.connect(); }), "'" + board + "'"));
  auto client = TimerClient::connect({.dir = server.dir()});
  auto scope = client.expires(1h, "step");
  CHECK_FALSE(client.is_watched());
  CHECK_FALSE(scope.release());
  CHECK(std::filesystem::exists(std::filesystem::symlink_status(board)));
  CHECK((own.empty() || testing::read_file(board) == own));
}

TEST_CASE("a client does nothing under FILETIMER=off, or after it was moved from") {
  const testing::TempFolder folder;
  std::optional<TimerClient> client;
  SUBCASE("off") {
    for (const char* word : {"0", "false", "no", "off"}) {
      const Variable off("FILETIMER", word);
      client.emplace(TimerClient::connect({.dir = folder.path("run")}));
      CHECK_FALSE(std::filesystem::exists(folder.path("run")));
    }
  }
  SUBCASE("moved from") {
    FakeServer server;
    client.emplace(server.connect());
    const TimerClient other = std::move(*client);
    CHECK(other.is_watched());
  }
  SUBCASE("moved from, into another client") {
    FakeServer server;
    client.emplace(server.connect());
    TimerClient other = TimerClient::connect({.dir = folder.path("run")});
    other = std::move(*client);
    CHECK(other.is_watched());
    CHECK(other.expires(1h, "step").release() == ReleaseResult::kReleased);
  }
  CHECK_FALSE(client->is_watched());
  auto scope = client->expires(1h, "step");
  CHECK_FALSE(scope.renew(1h));
  CHECK(scope.release() == ReleaseResult::kNotOpen);
  const auto region = client->paused("checkpoint");
  client->start(1h);
  client->start();
  CHECK_FALSE(client->stop());
  CHECK(client->heartbeat(1h, "heart").release() == ReleaseResult::kNotOpen);
  CHECK(client->stacks_file().empty());
  CHECK_THROWS_AS((void)client->expires(0s, "wrong"), InvalidArgument);
}

TEST_CASE("FILETIMER_MISSING overrides what the program chooses for connect without a server") {
  const testing::TempFolder folder;
  ConnectOptions options{.dir = folder.path("run"), .timeout = 1ms};
  {
    const Variable missing("FILETIMER_MISSING", "raise");
    CHECK_THROWS_AS(TimerClient::connect(options), ServerUnavailable);
    CHECK(message_of([&] { TimerClient::connect(options); }) ==
          "no timer server at '" + folder.path("run/requests") + "': there is no such pipe");
  }
  {
    const Variable missing("FILETIMER_MISSING", "wait");
    CHECK(testing::contains(message_of([&] { TimerClient::connect(options); }), "tried for 1ms"));
  }
  options.missing = Missing::kRaise;
  const Variable missing("FILETIMER_MISSING", "ignore");
  CHECK_NOTHROW(TimerClient::connect(options));
}

TEST_CASE_FIXTURE(Connected,
                  "beyond the limit of names each scope with a first timeout counts as the first") {
  const ScopeOptions slow_start{.first_timeout = 2h};
  for (int i = 0; i < 1024; ++i) {
    (void)client.expires(1h, "s" + std::to_string(i), slow_start).release();
  }
  auto known = client.expires(1h, "s1", slow_start);
  CHECK(known.times()->remaining <= 1h);
  for (int i = 0; i < 2; ++i) {
    auto scope = client.expires(1h, "one more", slow_start);
    CHECK(scope.times()->remaining > 1h);
  }
  auto later = client.expires(1h, "one more", {.first_timeout = 1min});
  CHECK(later.times()->remaining > 1min);
}
