// SPDX-License-Identifier: MIT
#include "timer_server/requests/request_pipe.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <utility>

#include "tests/support/children.hpp"
#include "tests/support/files.hpp"

using namespace filetimer;

TEST_CASE("A regular file, a folder and a symlink are refused and left as they are") {
  const testing::TempFolder folder;
  folder.write("file", "precious");
  std::filesystem::create_directory(folder.path("folder"));
  std::filesystem::create_symlink("elsewhere", folder.path("link"));
  for (const auto& [name, what] :
       {std::pair("file", "a regular file"), std::pair("folder", "a folder"),
        std::pair("link", "a symlink")}) {
    const auto pipe = RequestPipe::open(folder.path(name));
    REQUIRE(!pipe);
    CHECK(pipe.error().message ==
          fmt::format("'{}' is {}: expected a named pipe, or nothing", folder.path(name), what));
  }
  CHECK(testing::read_file(folder.path("file")) == "precious");
}

TEST_CASE("A pipe with a reader is refused, and its reader stays") {
  const testing::TempFolder folder;
  auto first = RequestPipe::open(folder.path("p"));
  REQUIRE(first);
  std::array<char, 16> room{};
  CHECK(first->read(room) == 0);        // which never blocks
  CHECK(first->capacity() >= 262'144);  // 2,000 requests
  const auto second = RequestPipe::open(folder.path("p"));
  REQUIRE(!second);
  CHECK(second.error().errno_value == EBUSY);
  CHECK(second.error().message ==
        fmt::format("'{}' is being read by another process", folder.path("p")));
  CHECK(first->condition() == RequestPipe::Condition::kInPlace);
}

TEST_CASE("Of two servers that find a pipe without a reader one reads it") {
  const testing::TempFolder folder;
  const std::string path = folder.path("p");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  UniqueFd read_end(::open(path.c_str(), O_RDWR));
  const UniqueFd other(::open(path.c_str(), O_WRONLY));
  read_end.reset();
  REQUIRE(::flock(other.get(), LOCK_EX) == 0);
  const auto refused = RequestPipe::open(path);
  REQUIRE(!refused);
  CHECK(refused.error().errno_value == EBUSY);
}

TEST_CASE("A refusal names the process that reads the pipe, and none that only writes") {
  const testing::TempFolder folder;
  const std::string path = folder.path("p");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  UniqueFd read_end(::open(path.c_str(), O_RDWR));
  UniqueFd write_end(::open(path.c_str(), O_WRONLY));
  REQUIRE(write_end);
  const Child writer([&] { read_end.reset(); });  // the first one in /proc
  const Child reader([] {});
  read_end.reset();
  write_end.reset();
  const auto pipe = RequestPipe::open(path);
  REQUIRE(!pipe);
  CHECK(pipe.error().message ==
        fmt::format("'{}' is being read by process {}", path, reader.pid()));
}

TEST_CASE("A pipe that was removed or replaced is noticed") {
  const testing::TempFolder folder;
  const auto pipe = RequestPipe::open(folder.path("p"));
  REQUIRE(pipe);
  ::unlink(folder.path("p").c_str());
  CHECK(pipe->condition() == RequestPipe::Condition::kGone);

  REQUIRE(::mkfifo(folder.path("p").c_str(), 0600) == 0);
  CHECK(pipe->condition() == RequestPipe::Condition::kGone);  // the other pipe has no reader
  const UniqueFd reader(::open(folder.path("p").c_str(), O_RDONLY | O_NONBLOCK));
  CHECK(pipe->condition() == RequestPipe::Condition::kTakenOver);

  pipe->remove_from_path();  // keeps another process's pipe
  CHECK(std::filesystem::exists(folder.path("p")));
  std::filesystem::rename(folder.path("p"), folder.path("elsewhere"));
  std::filesystem::create_symlink(folder.path("elsewhere"), folder.path("p"));
  CHECK(pipe->condition() == RequestPipe::Condition::kTakenOver);
}

TEST_CASE("A passed pipe is read with flags of the server's own") {
  const testing::TempFolder folder;
  REQUIRE(::mkfifo(folder.path("p").c_str(), 0600) == 0);
  // As systemd passes it: a read of it waits.
  const UniqueFd manager(::open(folder.path("p").c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::write(manager.get(), "before\n", 7) == 7);
  auto pipe = RequestPipe::take(folder.path("p"), UniqueFd(::dup(manager.get())));
  REQUIRE(pipe);
  CHECK(pipe->outlives_server());
  CHECK(pipe->condition() == RequestPipe::Condition::kInPlace);
  CHECK(pipe->waiting() == 7);
  std::array<char, 16> room{};
  CHECK(pipe->read(room) == 7);
  CHECK(pipe->waiting() == 0);
  CHECK(pipe->read(room) == 0);
  CHECK((::fcntl(pipe->fd(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((::fcntl(manager.get(), F_GETFL) & O_NONBLOCK) == 0);
}
