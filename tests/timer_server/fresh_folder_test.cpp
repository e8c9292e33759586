// SPDX-License-Identifier: MIT
#include "timer_server/fresh_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "common/run_folder.hpp"
#include "tests/support/children.hpp"
#include "tests/support/files.hpp"

using namespace filetimer;
namespace fs = std::filesystem;

namespace {

// Makes a folder as a server that was killed leaves it.
std::string make_abandoned(const testing::TempFolder& parent, const std::string& name) {
  const std::string path = parent.path(name);
  fs::create_directories(path + "/scopes");
  testing::write_file(path + "/server", "");
  REQUIRE(::mkfifo((path + "/requests").c_str(), 0600) == 0);
  return path;
}

}  // namespace

TEST_CASE("A fresh folder is private, locked and named after the server") {
  const testing::TempFolder parent;
  const auto made = make_fresh_folder(parent.path("new"));
  REQUIRE(made);
  CHECK(made->path.starts_with(parent.path(fmt::format("new/run-{}-", ::getpid()))));
  CHECK(made->lock.is_of(made->path + "/server"));
  struct stat st {};
  REQUIRE(::stat(made->path.c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0700);
}

TEST_CASE("A fresh folder of a server that was killed is removed by the next one") {
  const testing::TempFolder parent;
  const std::string abandoned = make_abandoned(parent, "run-4711-a1B2c3");
  REQUIRE(make_fresh_folder(parent.path()));
  CHECK_FALSE(testing::exists(abandoned));
}

TEST_CASE("A fresh folder with a reader of its pipe, a log or a lock is left alone") {
  const testing::TempFolder parent;
  const std::string read = make_abandoned(parent, "run-1-aaaaaa");
  const UniqueFd reader(::open((read + "/requests").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(reader);
  const std::string logged = make_abandoned(parent, "run-2-aaaaaa");
  testing::write_file(logged + "/expired.jsonl", "");
  const std::string locked = make_abandoned(parent, "run-3-aaaaaa");
  const Child server([&] { (void)new auto(ServerLock::take(locked + "/server")); });
  REQUIRE(make_fresh_folder(parent.path()));
  CHECK(testing::exists(read));
  CHECK(testing::exists(logged));
  CHECK(testing::exists(locked));
}

TEST_CASE("A folder with another name is left alone, and so is a file named like a fresh folder") {
  const testing::TempFolder parent;
  for (const char* name : {"run-4711", "run-x-a1B2c3", "run-4711-a1B2c", "run-4711-a1B2c3d",
                           "run-4711-a1B2.3", "run--a1B2c3", "walk-4711-a1B2c3"}) {
    make_abandoned(parent, name);
  }
  parent.write("run-4711-ffffff", "a file");
  REQUIRE(make_fresh_folder(parent.path()));
  // And the new one.
  CHECK(std::distance(fs::directory_iterator(parent.path()), fs::directory_iterator()) == 9);
}

TEST_CASE("A folder without its final name is removed once its maker has certainly ended") {
  const testing::TempFolder parent;
  const std::string young = make_abandoned(parent, ".run-1-aaaaaa");
  const std::string old = make_abandoned(parent, ".run-2-aaaaaa");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours{2});
  REQUIRE(make_fresh_folder(parent.path()));
  CHECK(testing::exists(young));
  CHECK_FALSE(testing::exists(old));
}
