// SPDX-License-Identifier: MIT
#include "timer_server/runtime_directory.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

#include "common/run_folder.hpp"
#include "tests/support/files.hpp"
#include "tests/support/variable.hpp"

using namespace filetimer;
namespace fs = std::filesystem;

namespace {

struct DirectoryStage {
  DirectoryStage() { settings.dir = folder.path("job"); }

  [[nodiscard]] std::string path(std::string_view name) const {
    return settings.dir + "/" + std::string(name);
  }
  // Takes and opens the directory. Returns the error; empty: none.
  std::optional<StartFailure> open(UniqueFd passed = {}) {
    auto taken = RuntimeDirectory::take(settings);
    if (!taken) {
      return taken.error();
    }
    directory.emplace(std::move(*taken));
    auto opened = directory->open(settings, std::move(passed));
    if (!opened) {
      return opened.error();
    }
    log = std::move(*opened);
    return std::nullopt;
  }
  void serve() {
    REQUIRE_FALSE(open());
    directory->serve();
  }
  testing::TempFolder folder;
  Settings settings;
  std::optional<RuntimeDirectory> directory;
  std::unique_ptr<RecordLog> log;
};

bool is_pipe(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && S_ISFIFO(st.st_mode);
}

ServerState state_of(const Board& board) {
  return static_cast<ServerState>(board.state.load());
}

Announcement announcement_on(const Board& board) {
  return static_cast<Announcement>(board.announcement.load());
}

}  // namespace

TEST_CASE("A new runtime directory has a request pipe, a status page, two folders and a log") {
  DirectoryStage stage;
  REQUIRE_FALSE(stage.open());
  CHECK(stage.directory->path() == stage.settings.dir);
  CHECK(stage.directory->log_path() == stage.path("expired.jsonl"));
  CHECK(stage.directory->pipe().path() == stage.path("requests"));
  CHECK(is_pipe(stage.path("requests")));
  CHECK(fs::is_directory(stage.path("scopes")));
  CHECK(fs::is_directory(stage.path("replies")));
  CHECK(fs::is_regular_file(stage.path("expired.jsonl")));
  CHECK(state_of(stage.directory->status_page()) == ServerState::kNone);
  stage.directory->serve();
  CHECK(state_of(stage.directory->status_page()) == ServerState::kServing);
  stage.directory->stop_serving();
  CHECK(state_of(stage.directory->status_page()) == ServerState::kStopped);
}

TEST_CASE("A folder that was removed is made again, once") {
  DirectoryStage stage;
  stage.serve();
  CHECK_FALSE(stage.directory->restore());
  for (const char* name : {"scopes", "replies"}) {
    CAPTURE(name);
    fs::remove_all(stage.path(name));
    CHECK(stage.directory->restore());
    CHECK(fs::is_directory(stage.path(name)));
    CHECK(stage.directory->take_replies().is_in_place());
    CHECK_FALSE(stage.directory->restore());
  }
}

TEST_CASE("A runtime directory that was removed is made again, with a status page that serves") {
  DirectoryStage stage;
  stage.serve();
  stage.directory->announce(Announcement::kDraining);
  const Board& before = stage.directory->status_page();
  fs::remove_all(stage.settings.dir);
  REQUIRE(stage.directory->restore());
  const Board& after = stage.directory->status_page();
  CHECK(&after != &before);
  CHECK(fs::is_regular_file(stage.path("server")));
  CHECK(state_of(after) == ServerState::kServing);
  CHECK(announcement_on(after) == Announcement::kDraining);
  CHECK_FALSE(stage.directory->restore());
}

TEST_CASE("A client that has mapped a removed status page gets the announcements and the end") {
  DirectoryStage stage;
  stage.serve();
  Board& before = stage.directory->status_page();
  before.next_wake.store(kWakeNever);
  fs::remove(stage.path("server"));
  REQUIRE(stage.directory->restore());
  CHECK(before.next_wake.load() == kWakeAlways);
  stage.directory->announce(Announcement::kShutdown);
  CHECK(announcement_on(before) == Announcement::kShutdown);
  CHECK(announcement_on(stage.directory->status_page()) == Announcement::kShutdown);
  stage.directory->stop_serving();
  CHECK(state_of(before) == ServerState::kStopped);
  stage.directory->announce(Announcement::kDraining);
  CHECK(announcement_on(before) == Announcement::kNone);
  CHECK(announcement_on(stage.directory->status_page()) == Announcement::kNone);
}

TEST_CASE("A folder that cannot be made again is tried again later") {
  DirectoryStage stage;
  stage.serve();
  fs::remove_all(stage.path("scopes"));
  testing::write_file(stage.path("scopes"), "in the way");
  CHECK_FALSE(stage.directory->restore());
  fs::remove(stage.path("scopes"));
  CHECK(stage.directory->restore());
}

TEST_CASE("A request pipe that was removed is replaced, and clients try again") {
  DirectoryStage stage;
  stage.serve();
  CHECK_FALSE(stage.directory->replace_pipe());
  const auto incarnation = stage.directory->status_page().incarnation.load();
  fs::remove(stage.path("requests"));
  auto pipe = stage.directory->replace_pipe();
  REQUIRE(pipe);
  CHECK(is_pipe(stage.path("requests")));
  stage.directory->use(std::move(*pipe));
  CHECK(stage.directory->status_page().incarnation.load() == incarnation + 1);
  CHECK_FALSE(stage.directory->replace_pipe());
  CHECK(stage.directory->pipe_trouble().empty());
}

TEST_CASE("A file in the place of the request pipe is kept under another name") {
  DirectoryStage stage;
  stage.serve();
  fs::remove(stage.path("requests"));
  testing::write_file(stage.path("requests"), "precious");
  REQUIRE(stage.directory->replace_pipe());
  CHECK(is_pipe(stage.path("requests")));
  CHECK(testing::read_file(stage.path("requests.not-a-pipe")) == "precious");
}

TEST_CASE("A pipe that another process reads is left alone and reported until that ends") {
  DirectoryStage stage;
  stage.serve();
  fs::remove(stage.path("requests"));
  REQUIRE(::mkfifo(stage.path("requests").c_str(), 0600) == 0);
  UniqueFd reader(::open(stage.path("requests").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(reader);
  CHECK_FALSE(stage.directory->replace_pipe());
  CHECK(testing::contains(stage.directory->pipe_trouble(), "that another process reads"));
  reader.reset();
  auto pipe = stage.directory->replace_pipe();
  REQUIRE(pipe);
  stage.directory->use(std::move(*pipe));
  CHECK(stage.directory->pipe_trouble().empty());
}

TEST_CASE("A pipe and a log elsewhere are linked from the directory, also after it was removed") {
  DirectoryStage stage;
  stage.settings.fifo = stage.folder.path("pipe");
  stage.settings.log = stage.folder.path("log.jsonl");
  stage.serve();
  const auto check_links = [&] {
    CHECK(fs::read_symlink(stage.path("requests")) == stage.settings.fifo);
    CHECK(fs::read_symlink(stage.path("log_link")) == stage.settings.log);
  };
  check_links();
  fs::remove_all(stage.settings.dir);
  REQUIRE(stage.directory->restore());
  check_links();
  stage.directory->clean_up();
  CHECK_FALSE(testing::exists(stage.settings.fifo));
  CHECK_FALSE(testing::exists(stage.path("requests")));
  CHECK(testing::exists(stage.path("log_link")));  // the log is read after the end, too
}

TEST_CASE("Links that an earlier server has left are removed") {
  DirectoryStage stage;
  REQUIRE(create_run_folder(stage.settings.dir));
  fs::create_symlink("/elsewhere/pipe", stage.path("requests"));
  fs::create_symlink("/elsewhere/log", stage.path("log_link"));
  REQUIRE_FALSE(stage.open());
  CHECK(is_pipe(stage.path("requests")));
  CHECK_FALSE(testing::exists(stage.path("log_link")));
}

TEST_CASE("A file where a link belongs is left alone, and the server does not start") {
  DirectoryStage stage;
  stage.settings.fifo = stage.folder.path("pipe");
  REQUIRE(create_run_folder(stage.settings.dir));
  testing::write_file(stage.path("requests"), "precious");
  const auto failure = stage.open();
  REQUIRE(failure);
  CHECK(failure->status == exit_status::kFailed);
  CHECK(testing::contains(failure->message, "is in the way: expected a symlink, or nothing"));
  CHECK(testing::read_file(stage.path("requests")) == "precious");
}

TEST_CASE("A passed file that is not a pipe is a usage error, because a restart would not help") {
  DirectoryStage stage;
  const auto failure = stage.open(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  REQUIRE(failure);
  CHECK(failure->status == exit_status::kUsage);
}

TEST_CASE("A server around COMMAND removes its fresh directory whole, and no other") {
  DirectoryStage stage;
  const testing::Variable runtime("XDG_RUNTIME_DIR", stage.folder.path().c_str());
  const testing::Variable none("FILETIMER_DIR", nullptr);
  stage.settings.dir.clear();
  stage.settings.log = stage.folder.path("log.jsonl");
  stage.settings.command = {"true"};
  REQUIRE_FALSE(stage.open());
  const std::string path = stage.directory->path();
  CHECK(path.starts_with(stage.folder.path("filetimer/run-")));
  CHECK(is_pipe(path + "/requests"));
  stage.directory->clean_up();
  CHECK_FALSE(testing::exists(path));

  DirectoryStage named;
  named.settings.command = {"true"};
  REQUIRE_FALSE(named.open());
  named.directory->clean_up();
  CHECK(testing::exists(named.settings.dir));
  CHECK_FALSE(testing::exists(named.path("requests")));
}
