// Clients of a server that has announced on its status page that it watches no new scopes.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::Connected;
using testing::FakeServer;
using testing::hold;

namespace {

void announce(const FakeServer& server, Announcement announcement) {
  server.board().announcement = static_cast<std::uint32_t>(announcement);
}

}  // namespace

TEST_CASE_FIXTURE(
    Connected, "scopes are opened for the next server after one was killed during its shutdown") {
  auto process = hold({server.dir() + "/server"});
  announce(server, Announcement::kShutdown);
  CHECK_FALSE(client.expires(1h, "refused").release());
  process->end();
  auto scope = client.expires(1h, "scope");
  client.start(1h);
  CHECK(server.slots().size() == 2);
  CHECK(scope.release());
}

TEST_CASE("no scope is opened while the server drains or shuts down") {
  FakeServer server;
  const auto process = hold({server.dir() + "/server"});
  auto client = server.connect();
  auto before = client.expires(1h, "before");
  client.start(1h);
  REQUIRE(server.slots().size() == 2);
  for (const Announcement announced : {Announcement::kDraining, Announcement::kShutdown}) {
    announce(server, announced);
    auto scope = client.expires(1h, "new");
    CHECK_FALSE(scope.renew(2h));
    CHECK_FALSE(scope.release());
    auto warned = client.expires(1h, "warned", {.warn_after = 30min});
    CHECK_FALSE(warned.release());
    CHECK(server.slots().size() == 2);
    CHECK_THROWS_AS((void)client.expires(0s, "wrong"), InvalidArgument);
  }
  CHECK(before.renew(2h));
  client.start(2h);
  CHECK(client.stop());
  CHECK(before.release());
  client.start(1h);
  CHECK_FALSE(client.stop());
  CHECK(server.slots().empty());
  announce(server, Announcement::kNone);
  auto after = client.expires(1h, "after");
  CHECK(server.slots().size() == 1);
}

TEST_CASE("what is not watched while the server drains ends the idleness of a worker, too") {
  FakeServer server;
  const auto process = hold({server.dir() + "/server"});
  auto client = server.connect({.idle_timeout = 5s});
  const auto outer = client.expires(1h, "outer");
  announce(server, Announcement::kDraining);
  const PageLayout page = server.page();
  REQUIRE(slots_in_use(page) == 2);
  const auto moved_by = [&](const auto& open) {
    const std::int64_t before = page.slot(0).started;
    open();
    return Duration{page.slot(0).started - before};
  };
  CHECK(moved_by([&] { (void)client.expires(1h, "scope"); }) > 0s);
  CHECK(moved_by([&] { client.start(1h); }) > 0s);
  CHECK(moved_by([&] { (void)client.stop(); }) == 0s);
  CHECK(moved_by([&] { (void)client.expires(1min, "short"); }) == 0s);
  CHECK(moved_by([&] { (void)client.expires(1s, "first", {.first_timeout = 2h}); }) > 59min);
  CHECK(page.slot(1).started == page.slot(1).acquired);
}
