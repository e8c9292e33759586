// A client takes the page where there is a server with a board, and lines everywhere else.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <thread>

#include "tests/support/variable.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::FakeServer;
using testing::message_of;
using testing::Variable;

namespace {

// What a scope of the client does: a page (true) or a line.
bool uses_page(FakeServer& server, TimerClient client) {
  bool announced = false;
  if (!server.page_names().empty()) {
    announced = !server.pipe().next().x_page.empty();
  }
  auto scope = client.expires(1h, "step");
  if (server.pipe().is_silent()) {
    return announced;
  }
  CHECK(server.pipe().next().scope_id == "step");
  CHECK(scope.release());
  CHECK(server.pipe().next().is_release());
  return false;
}

}  // namespace

TEST_CASE("FILETIMER_TRANSPORT chooses between page and pipe") {
  FakeServer server;
  SUBCASE("pipe") {
    const Variable chosen("FILETIMER_TRANSPORT", "pipe");
    CHECK_FALSE(uses_page(server, server.connect()));
    CHECK(server.page_names().empty());
  }
  SUBCASE("page") {
    const Variable chosen("FILETIMER_TRANSPORT", "page");
    CHECK(uses_page(server, server.connect()));
  }
  SUBCASE("empty") {
    const Variable chosen("FILETIMER_TRANSPORT", "");
    CHECK(uses_page(server, server.connect()));
  }
  SUBCASE("anything else") {
    const Variable chosen("FILETIMER_TRANSPORT", "pi\npe");
    CHECK_THROWS_AS((void)server.connect(), InvalidArgument);
    CHECK(message_of([&] { (void)server.connect(); }) ==
          "$FILETIMER_TRANSPORT is 'pi\\npe': expected 'page' or 'pipe'");
  }
}

TEST_CASE("the run folder may come from the environment, a pipe that is named has no page") {
  FakeServer server;
  SUBCASE("FILETIMER_DIR") {
    const Variable dir("FILETIMER_DIR", server.dir().c_str());
    CHECK(uses_page(server, TimerClient::connect()));
  }
  SUBCASE("TORCHELASTIC_TIMER_FILE, where nothing else names a folder") {
    const Variable file("TORCHELASTIC_TIMER_FILE", server.pipe().path().c_str());
    CHECK_FALSE(uses_page(server, TimerClient::connect()));
  }
  SUBCASE("TORCHELASTIC_TIMER_FILE beside a folder") {
    const Variable file("TORCHELASTIC_TIMER_FILE", "/nowhere");
    CHECK(uses_page(server, server.connect()));
  }
  SUBCASE("ConnectOptions::fifo") {
    ConnectOptions options;
    options.fifo = server.pipe().path();
    CHECK_FALSE(uses_page(server, TimerClient::connect(std::move(options))));
  }
}

TEST_CASE("a board that can't be believed is none") {
  FakeServer server;
  const std::string board = server.dir() + "/server";
  const auto put = [&](const char* what) {
    std::filesystem::rename(board, board + ".real");
    return std::string(what);
  };
  SUBCASE("missing") {
    put("");
  }
  SUBCASE("too short") {
    REQUIRE(::truncate(board.c_str(), kBoardBytes - 1) == 0);
  }
  SUBCASE("empty") {
    REQUIRE(::truncate(board.c_str(), 0) == 0);
  }
  SUBCASE("another mark") {
    server.board().magic = 1;
  }
  SUBCASE("another version") {
    server.board().version = 99;
  }
  SUBCASE("another boot") {
    server.board().boot[3] ^= 1;
  }
  SUBCASE("a symlink") {
    put("");
    std::filesystem::create_symlink(board + ".real", board);
  }
  SUBCASE("a pipe") {
    put("");
    REQUIRE(::mkfifo(board.c_str(), 0600) == 0);
  }
  SUBCASE("a folder") {
    put("");
    std::filesystem::create_directory(board);
  }
  SUBCASE("another user's") {
    if (::geteuid() != 0) {
      return;
    }
    REQUIRE(::chown(board.c_str(), 12345, 12345) == 0);
  }
  SUBCASE("of a server that has stopped") {
    server.board().state = static_cast<std::uint32_t>(ServerState::kStopped);
  }
  CHECK_FALSE(uses_page(server, server.connect()));
  CHECK(server.page_names().empty());
}

TEST_CASE("a server that is about to serve is waited for") {
  FakeServer server;
  server.board().state = static_cast<std::uint32_t>(ServerState::kNone);
  std::thread start(
      [&] { server.board().state = static_cast<std::uint32_t>(ServerState::kServing); });
  ConnectOptions options = server.options();
  options.timeout = 10s;
  auto client = TimerClient::connect(std::move(options));
  start.join();
  CHECK(uses_page(server, std::move(client)));
}

TEST_CASE("without a server there is no page, though its board is there") {
  FakeServer server;
  server.pipe().close();
  CHECK_THROWS_AS((void)server.connect(), ServerUnavailable);
  ConnectOptions options = server.options();
  options.when_missing = ConnectOptions::Missing::kUnwatched;
  auto client = TimerClient::connect(std::move(options));
  CHECK(server.page_names().empty());
  CHECK_FALSE(client.is_watched());
}

TEST_CASE("a folder of pages that is missing is an error at connect") {
  FakeServer server;
  std::filesystem::remove(server.dir() + "/scopes");
  CHECK(message_of([&] {
          (void)server.connect();
        }).starts_with("cannot make the scope page '" + server.dir() + "/scopes/."));
}

TEST_CASE("two paths to one run folder lead to one page") {
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

TEST_CASE("a client whose pids mean others to the server names none of them on the pipe") {
  FakeServer server;
  server.board().pid_namespace = 1;
  auto client = server.connect();
  const auto own = client.expires(1h, "own");
  ScopeOptions another;
  another.pid = ::getppid();
  CHECK_THROWS_WITH_AS((void)client.acquire("other", 1h, another),
                       doctest::Contains("another pid namespace"), TimerError);
  server.board().pid_namespace = this_pid_namespace();
  CHECK(client.acquire("other", 1h, another));
}
