// connect(): where a client looks for its server, and what it makes if no server runs.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <thread>

#include "common/limits.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/variable.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::FakeServer;
using testing::message_of;
using testing::Variable;

namespace {

ConnectOptions unwatched(const std::string& dir) {
  ConnectOptions options;
  options.dir = dir;
  options.missing = ConnectOptions::Missing::kIgnore;
  return options;
}

}  // namespace

TEST_CASE("the error of connect has the path, the reason and the time that it waited") {
  const testing::TempFolder folder;
  ConnectOptions options;
  options.dir = folder.path("run");
  options.timeout = 30ms;
  options.missing = ConnectOptions::Missing::kWait;
  const std::string message = message_of([&] { TimerClient::connect(options); });
  CHECK(message == "no timer server at '" + folder.path("run/requests") +
                       "': there is no such pipe (tried for 30ms)");
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
  ConnectOptions negative;
  negative.timeout = -1s;
  CHECK(message_of([&] { TimerClient::connect(negative); }) ==
        "the timeout of connect() is -1s: expected 0 or more");
  CHECK_THROWS_AS(TimerClient::connect(std::move(negative)), InvalidArgument);
  options.timeout = 0s;
  CHECK(message_of([&] { TimerClient::connect(options); }).ends_with("': there is no such pipe"));
}

TEST_CASE("an idle timeout is 100 ms at least, and a billion seconds at most") {
  const FakeServer server;
  ConnectOptions options = server.options();
  for (const Timeout idle : {Timeout(99ms), Timeout(kMaxTimeout + 1ns), Timeout(-1s)}) {
    options.idle_timeout = idle;
    CHECK(message_of([&] { TimerClient::connect(options); }).starts_with("the idle timeout is "));
  }
  for (const Timeout idle : {Timeout(100ms), Timeout(kMaxTimeout), Timeout(0s)}) {
    options.idle_timeout = idle;
    CHECK_NOTHROW(TimerClient::connect(options));
  }
}

TEST_CASE("clients of two directories in which no status page can be made have their own pipes") {
  const testing::TempFolder folder;
  folder.write("file", "");
  for (const char* const name : {"file/one", "file/other"}) {
    const auto client = TimerClient::connect(unwatched(folder.path(name)));
    CHECK(client.target() == folder.path(name) + "/requests");
  }
}

TEST_CASE("connect calls while_waiting while it waits, and passes on its exception") {
  const testing::TempFolder folder;
  ConnectOptions options;
  options.dir = folder.path();
  options.timeout = 1h;
  options.missing = ConnectOptions::Missing::kWait;
  int asked = 0;
  options.while_waiting = [&] {
    if (++asked == 2) {
      throw std::domain_error("enough");
    }
  };
  CHECK_THROWS_AS(TimerClient::connect(std::move(options)), std::domain_error);
}

TEST_CASE("connect waits for a server that is being started") {
  FakeServer server;
  server.pipe().close();
  ConnectOptions options = server.options();
  options.timeout = 10s;
  options.missing = ConnectOptions::Missing::kWait;
  std::thread start;
  options.while_waiting = [&] {
    if (!start.joinable()) {
      start = std::thread([&] { server.pipe().open(); });
    }
  };
  auto client = TimerClient::connect(std::move(options));
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

TEST_CASE("two paths of one runtime directory have one page") {
  FakeServer server;
  const testing::TempFolder other;
  std::filesystem::create_directory_symlink(server.dir(), other.path("link"));
  auto one = server.connect();
  ConnectOptions options = server.options();
  options.dir = other.path("link");
  auto two = TimerClient::connect(std::move(options));
  auto scope = two.expires(1h, "step");
  CHECK(server.page_names().size() == 1);
  CHECK(testing::slot_called(server.page(), "step").asked == 1h);
}

TEST_CASE(
    "a client without a server makes the runtime directory, a blank status page and its page") {
  const testing::TempFolder folder;
  const std::string dir = folder.path("made/run");
  auto client = TimerClient::connect(unwatched(dir));
  CHECK_FALSE(client.is_watched());
  struct stat st {};
  REQUIRE(::stat(dir.c_str(), &st) == 0);
  CHECK((st.st_mode & 07777) == 0700);
  REQUIRE(::stat((dir + "/server").c_str(), &st) == 0);
  CHECK(st.st_size == static_cast<off_t>(kBoardBytes));
  CHECK((st.st_mode & 07777) == 0600);
  std::ifstream board(dir + "/server", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(board)), {});
  CHECK(bytes == std::string(kBoardBytes, '\0'));
  // A server that starts finds the scope, which has written nothing to the pipe.
  auto scope = client.expires(1h, "step");
  CHECK(scope.times()->remaining > 59min);  // a blank page has no limit
  FakeServer server(dir);
  CHECK(testing::slot_called(server.page(server.worker_page_names().at(0)), "step").asked == 1h);
  CHECK(server.pipe().is_silent());
  CHECK(client.is_watched());
  // From now on scopes wake the server, since it has not published its next reading.
  announce_scan(server.board());
  auto inner = client.expires(1h, "inner");
  CHECK(server.pipe().next().x_page == server.worker_page_names().at(0));
}

TEST_CASE("two clients that connect at the same time without a server share what they make") {
  const testing::TempFolder folder;
  const std::string dir = folder.path("run");
  for (int round = 0; round < 20; ++round) {
    const auto start = [&] {
      const pid_t child = ::fork();
      if (child == 0) {
        auto client = TimerClient::connect(unwatched(dir));
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

TEST_CASE("a folder of pages that is missing is made by the client") {
  FakeServer server;
  std::filesystem::remove(server.dir() + "/scopes");
  auto client = server.connect();
  auto scope = client.expires(1h, "step");
  CHECK(testing::slot_called(server.page(server.worker_page_names().at(0)), "step").asked == 1h);
}

TEST_CASE("a status page of another boot that no server holds is replaced by a blank one") {
  FakeServer server;
  server.board().boot[3] ^= 1;
  server.board().next_wake = kWakeAlways;
  auto client = server.connect();
  server.pipe().next();  // of the page
  auto scope = client.expires(1h, "step");
  CHECK(server.pipe().is_silent());
  std::ifstream board(server.dir() + "/server", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(board)), {});
  CHECK(bytes == std::string(kBoardBytes, '\0'));
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
    if (::chown(board.c_str(), 12345, 12345) != 0) {
      FILETIMER_SKIP("giving a file away is not allowed here");
    }
  }
  CHECK(testing::contains(message_of([&] { (void)server.connect(); }), "'" + board + "'"));
  ConnectOptions options = server.options();
  options.missing = ConnectOptions::Missing::kIgnore;
  auto client = TimerClient::connect(std::move(options));
  auto scope = client.expires(1h, "step");
  CHECK_FALSE(client.is_watched());
  CHECK_FALSE(scope.release());
  CHECK(std::filesystem::exists(std::filesystem::symlink_status(board)));
  CHECK((own.empty() || testing::read_file(board) == own));
}

TEST_CASE("a status page that is too short is extended") {
  FakeServer server;
  REQUIRE(::truncate((server.dir() + "/server").c_str(), kBoardBytes - 1) == 0);
  auto client = server.connect();
  auto scope = client.expires(1h, "step");
  CHECK(testing::slot_called(server.page(), "step").asked == 1h);
}

TEST_CASE("a client does nothing under FILETIMER=off, or after it was moved from") {
  const testing::TempFolder folder;
  std::optional<TimerClient> client;
  SUBCASE("off") {
    for (const char* word : {"0", "false", "no", "off"}) {
      const Variable off("FILETIMER", word);
      client.emplace(TimerClient::connect(unwatched(folder.path("run"))));
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
    TimerClient other = TimerClient::connect(unwatched(folder.path("run")));
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
  ConnectOptions options = unwatched(folder.path("run"));
  {
    const Variable missing("FILETIMER_MISSING", "raise");
    CHECK_THROWS_AS(TimerClient::connect(options), ServerUnavailable);
    CHECK(message_of([&] { TimerClient::connect(options); }) ==
          "no timer server at '" + folder.path("run/requests") + "': there is no such pipe");
  }
  {
    const Variable missing("FILETIMER_MISSING", "wait");
    options.timeout = 1ms;
    CHECK(testing::contains(message_of([&] { TimerClient::connect(options); }), "tried for 1ms"));
  }
  options.missing = ConnectOptions::Missing::kRaise;
  const Variable missing("FILETIMER_MISSING", "ignore");
  CHECK_NOTHROW(TimerClient::connect(options));
}

TEST_CASE("beyond the limit of names each scope with a first timeout counts as the first") {
  FakeServer server;
  auto client = server.connect();
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
}
