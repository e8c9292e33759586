// SPDX-License-Identifier: MIT
#include "common/own_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "common/posix.hpp"
#include "tests/support/files.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/users.hpp"

namespace filetimer {
namespace {

std::string error_of(const std::string& path, int access = O_RDONLY) {
  const auto file = open_own_file(path, access, "it");
  return file ? "opened" : file.error().message;
}

TEST_CASE("a regular file of this user is opened with its size, and closed by exec") {
  const testing::TempFolder folder;
  folder.write("file", "12345");
  for (const int access : {O_RDONLY, O_RDWR}) {
    const auto file = open_own_file(folder.path("file"), access);
    REQUIRE(file);
    CHECK(file->status.st_size == 5);
    CHECK((::fcntl(file->fd.get(), F_GETFL) & O_ACCMODE) == access);
    CHECK((::fcntl(file->fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
}

TEST_CASE("what is not a regular file is refused, not waited for and not followed") {
  const testing::TempFolder folder;
  folder.write("file", "");
  std::filesystem::create_symlink(folder.path("file"), folder.path("link"));
  CHECK(error_of(folder.path("link")) == "it is a symlink: expected a regular file");
  REQUIRE(::mkfifo(folder.path("fifo").c_str(), 0600) == 0);
  CHECK(error_of(folder.path("fifo")) == "it is not a regular file");
  CHECK(error_of(folder.path("fifo"), O_RDWR) == "it is not a regular file");
  CHECK(error_of(folder.path()) == "it is not a regular file");
  CHECK(error_of("/dev/null") == "it is not a regular file");
}

TEST_CASE("a file that cannot be opened is an error with its path and the reason") {
  const testing::TempFolder folder;
  const auto missing = open_own_file(folder.path("missing"), O_RDONLY);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().errno_value == ENOENT);
  CHECK(missing.error().message ==
        fmt::format("cannot open '{}': No such file or directory", folder.path("missing")));
}

TEST_CASE("a file of another user is refused, though it could be read") {
  const testing::TempFolder folder;
  folder.write("file", "");
  if (::chown(folder.path("file").c_str(), testing::kSomebodyElse, testing::kSomebodyElse) != 0) {
    FILETIMER_SKIP("giving a file away is not allowed here");
  }
  CHECK(error_of(folder.path("file")) == fmt::format("it belongs to user {}: expected user {}",
                                                     testing::kSomebodyElse, ::geteuid()));
}

TEST_CASE("a write that fails says why") {
  const testing::TempFolder folder;
  folder.write("file", "12345");
  const auto file = open_own_file(folder.path("file"), O_RDONLY);
  REQUIRE(file);
  CHECK_FALSE(write_at(file->fd.get(), "x", 1, 0));
  CHECK(errno == EBADF);
}

TEST_CASE("a file gets no number of a standard descriptor, though all are closed") {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      ::close(standard);
    }
    const UniqueFd file = above_standard_descriptors(UniqueFd(::open("/", O_RDONLY | O_CLOEXEC)));
    ::_exit(file.get() > STDERR_FILENO ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace
}  // namespace filetimer
