// Pages that no server has seen, of processes that have ended.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <fstream>
#include <iterator>
#include <string>

#include "common/scope_page.hpp"
#include "tests/support/children.hpp"
#include "tests/timer_client/fake_server.hpp"
#include "timer_client/client/page/page_file.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::in_child;
using testing::page_of;
using testing::pages_in;

namespace {

// Runs a child that leaves its page behind, as a killed process does.
void leave_page(const std::string& dir) {
  REQUIRE(in_child([&] {
            auto client = TimerClient::connect({.dir = dir});
            auto scope = client.expires(1h, "step");
            ::_exit(0);
            return 1;
          }) == 0);
}

// Gives the page an owner, as a server that registers it.
void register_page(const std::string& dir, const std::string& name) {
  std::filesystem::create_directory(dir + "/scopes/.owners");
  std::filesystem::create_symlink("1-2-3", dir + "/scopes/.owners/" + name);
}

struct WithoutServer {
  testing::TempFolder folder;
  std::string dir = folder.path("run");
};

}  // namespace

TEST_CASE_FIXTURE(WithoutServer, "a process that exits removes its page if no server has seen it") {
  CHECK(in_child([&] {
          auto client = TimerClient::connect({.dir = dir});
          auto scope = client.expires(1h, "step");
          testing::write_file(client.stacks_file(), "");
          std::exit(pages_in(dir).size() == 1 ? 0 : 1);
          return 2;
        }) == 0);
  CHECK(pages_in(dir).empty());
  CHECK(std::filesystem::is_empty(dir + "/scopes/.stacks"));
}

TEST_CASE_FIXTURE(WithoutServer,
                  "each forked child removes the pages of children that have ended") {
  auto client = TimerClient::connect({.dir = dir});
  for (int i = 0; i < 3; ++i) {
    CHECK(in_child([&] { return client.expires(1h, "step").release() ? 0 : 1; }) == 0);
  }
  CHECK(pages_in(dir).size() == 2);  // of this process and of the last child
}

TEST_CASE_FIXTURE(WithoutServer,
                  "a page that a server has registered stays when its process exits") {
  CHECK(in_child([&] {
          auto client = TimerClient::connect({.dir = dir});
          register_page(dir, pages_in(dir).at(0));
          std::exit(0);
          return 2;
        }) == 0);
  CHECK(pages_in(dir).size() == 1);
}

TEST_CASE_FIXTURE(WithoutServer,
                  "a client removes the pages of killed processes, and no other file") {
  leave_page(dir);
  const std::string abandoned = pages_in(dir).at(0);
  testing::write_file(dir + "/scopes/.stacks/" + abandoned, "");
  auto client = TimerClient::connect({.dir = dir});
  CHECK(pages_in(dir).size() == 1);
  CHECK_FALSE(std::filesystem::exists(dir + "/scopes/" + abandoned));
  CHECK_FALSE(std::filesystem::exists(dir + "/scopes/.stacks/" + abandoned));
  leave_page(dir);  // this child has removed no page: this process holds the lock of its own
  REQUIRE(pages_in(dir).size() == 2);
  for (const std::string& name : pages_in(dir)) {
    register_page(dir, name);
    if (name != page_of(dir, ::getpid())) {
      std::filesystem::copy_file(dir + "/scopes/" + name, dir + "/scopes/0-locked");
    }
  }
  testing::write_file(dir + "/scopes/1-not-a-page", "");
  testing::write_file(dir + "/scopes/1-no-page-either", "");
  std::filesystem::resize_file(dir + "/scopes/1-no-page-either", kPageBytes);
  const auto locker = testing::hold({dir + "/scopes/0-locked"});
  const Child other([&] {
    static auto its_client = TimerClient::connect({.dir = dir});
    (void)its_client;
  });
  const std::string living = dir + "/scopes/0-of-a-living-process";
  std::filesystem::copy_file(dir + "/scopes/" + page_of(dir, other.pid()), living);
  std::filesystem::copy_file(living, dir + "/scopes/0-of-a-reused-pid");
  const std::string unfinished = dir + "/scopes/.0-being-made";
  std::fstream reused(dir + "/scopes/0-of-a-reused-pid", std::ios::in | std::ios::out);
  reused.seekp(offsetof(PageHeader, start_time)).write("12345678", 8).flush();
  std::filesystem::copy_file(dir + "/scopes/0-of-a-reused-pid", unfinished);
  remove_abandoned_pages(dir + "/scopes");
  CHECK(pages_in(dir).size() == 7);
  CHECK_FALSE(std::filesystem::exists(dir + "/scopes/0-of-a-reused-pid"));
  CHECK(std::filesystem::exists(unfinished));
}

TEST_CASE_FIXTURE(WithoutServer,
                  "a client looks at 256 pages of other processes, the next one at the others") {
  leave_page(dir);
  const std::string many = folder.path("many");
  std::filesystem::create_directory(many);
  for (int i = 0; i < kMaxPagesLookedAt + 2; ++i) {
    std::filesystem::create_hard_link(dir + "/scopes/" + pages_in(dir).at(0),
                                      many + "/0-" + std::to_string(i));
  }
  remove_abandoned_pages(many);
  const std::filesystem::directory_iterator left(many);
  CHECK(std::distance(left, std::filesystem::directory_iterator()) == 2);
}

TEST_CASE("where a server runs, the pages of ended processes are left to it") {
  const testing::FakeServer server;
  const auto process = testing::hold({server.dir() + "/server"});
  leave_page(server.dir());
  auto client = server.connect();
  CHECK(pages_in(server.dir()).size() == 2);
  CHECK(in_child([&] {
          std::exit(client.expires(1h, "step").release() ? 0 : 1);
          return 2;
        }) == 0);
  CHECK(pages_in(server.dir()).size() == 3);
}
