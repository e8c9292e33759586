// Which files the server opens as reply pipes.
// SPDX-License-Identifier: MIT
#include "timer_server/control/reply_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/support/files.hpp"

using namespace filetimer;
namespace fs = std::filesystem;

namespace {

struct ReplyStage {
  std::string path(const std::string& name) const { return folder.path("replies/" + name); }
  void make_pipe(const std::string& name) const {
    REQUIRE(::mkfifo(path(name).c_str(), 0600) == 0);
  }
  [[nodiscard]] UniqueFd read(const std::string& name) const {
    return UniqueFd(::open(path(name).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }
  std::string refusal(const std::string& name) const {
    const auto opened = replies->open(name);
    return opened ? "" : opened.error().message;
  }
  testing::TempFolder folder;
  Result<ReplyFolder> replies = ReplyFolder::make(folder.path());
};

}  // namespace

TEST_CASE("A pipe with a reader is opened without blocking") {
  const ReplyStage stage;
  stage.make_pipe("4711-a");
  CHECK(stage.refusal("4711-a") == "x_reply is '4711-a': the pipe has no reader");
  const UniqueFd reader = stage.read("4711-a");
  const auto writer = stage.replies->open("4711-a");
  REQUIRE(writer.has_value());
  CHECK((::fcntl(writer->get(), F_GETFL) & O_NONBLOCK) != 0);
  CHECK(::write(writer->get(), "x", 1) == 1);
}

TEST_CASE("Only a named pipe in the folder is opened") {
  const ReplyStage stage;
  fs::create_directory(stage.path("folder"));
  const UniqueFd file(::open(stage.path("file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  REQUIRE(file);
  REQUIRE(::mkfifo(stage.folder.path("outside").c_str(), 0600) == 0);
  const UniqueFd reader(
      ::open(stage.folder.path("outside").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  fs::create_symlink("../outside", stage.path("link"));
  for (const char* name : {"folder", "file", "link"}) {
    CHECK(stage.refusal(name) ==
          fmt::format("x_reply is '{}': expected a named pipe of user {}", name, ::geteuid()));
  }
  CHECK(stage.refusal("none") == "x_reply is 'none': No such file or directory");
  for (const std::string name : {"../outside", "", ".", "a.b", "a b", "a\nb"}) {
    CAPTURE(name);
    CHECK(stage.refusal(name).ends_with("expected letters, digits and '-', at most 64 bytes"));
  }
  CHECK(stage.refusal(std::string(65, 'a')).ends_with("at most 64 bytes"));
}

TEST_CASE("Old pipes without a reader are removed, and other files are not") {
  const ReplyStage stage;
  const auto age = [&](const std::string& name) {
    const timespec times[2] = {{0, UTIME_OMIT}, {1, 0}};
    REQUIRE(::utimensat(AT_FDCWD, stage.path(name).c_str(), times, 0) == 0);
  };
  for (const char* name : {"left", "fresh", "read"}) {
    stage.make_pipe(name);
  }
  const UniqueFd file(::open(stage.path("file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  const UniqueFd reader = stage.read("read");
  for (const char* name : {"left", "read", "file"}) {
    age(name);
  }
  stage.replies->remove_abandoned();
  CHECK(!fs::exists(stage.path("left")));
  CHECK(fs::exists(stage.path("fresh")));
  CHECK(fs::exists(stage.path("read")));
  CHECK(fs::exists(stage.path("file")));
}
