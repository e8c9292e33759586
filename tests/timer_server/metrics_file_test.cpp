// The file of --metrics: replaced at once, or not at all.
// SPDX-License-Identifier: MIT
#include "timer_server/metrics_file.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <utility>

#include "tests/support/files.hpp"
#include "tests/timer_server/busy_threads.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

std::ptrdiff_t files_in(const testing::TempFolder& folder) {
  using Files = std::filesystem::directory_iterator;
  return std::distance(Files(folder.path()), Files());
}

}  // namespace

TEST_CASE("A file is replaced by another one with mode 0644, whatever the umask") {
  const testing::TempFolder folder;
  const std::string path = folder.path("m.prom");
  folder.write("m.prom", "a long old text");
  struct stat before {};
  REQUIRE(::stat(path.c_str(), &before) == 0);
  const mode_t umask_before = ::umask(0077);
  const Status written = replace_file(path, "new");
  ::umask(umask_before);
  REQUIRE(written);
  CHECK(testing::read_file(path) == "new");
  struct stat after {};
  REQUIRE(::stat(path.c_str(), &after) == 0);
  CHECK(after.st_ino != before.st_ino);
  CHECK((after.st_mode & 07777) == 0644);
  CHECK(files_in(folder) == 1);
}

TEST_CASE("What is no regular file is not replaced, and no temporary file is left") {
  const testing::TempFolder folder;
  std::filesystem::create_symlink("target", folder.path("link"));
  std::filesystem::create_directory(folder.path("folder"));
  using NameAndKind = std::pair<const char*, const char*>;
  for (const NameAndKind& row :
       {NameAndKind("link", "a symbolic link"), NameAndKind("folder", "a directory")}) {
    CAPTURE(row.first);
    const Status written = replace_file(folder.path(row.first), "new");
    REQUIRE_FALSE(written);
    CHECK(testing::contains(written.error().message,
                            fmt::format("it is {}: expected a regular file", row.second)));
  }
  CHECK(files_in(folder) == 2);
  const Status written = replace_file(folder.path("missing/m.prom"), "new");
  REQUIRE_FALSE(written);
  CHECK(testing::contains(written.error().message, "No such file or directory"));
}

TEST_CASE("The last metrics are in the file when write_last() returns") {
  const testing::TempFolder folder;
  SideThreads side_threads;
  MetricsFile file(folder.path("m.prom"), side_threads);
  Metrics metrics;
  metrics.rejected = 7;
  file.write(metrics);
  metrics.rejected = 8;
  metrics.is_running = false;
  file.write_last(metrics, 10s);
  const std::string text = testing::read_file(folder.path("m.prom"));
  CHECK(text == metrics_text(metrics));
}

// As the evidence of a worker does if its memory lock is held.
TEST_CASE("Metrics are written while every thread for slow jobs hangs") {
  const testing::TempFolder folder;
  SideThreads side_threads;
  const BusyThreads hung(side_threads, SideThreads::Lane::kSlow);
  MetricsFile file(folder.path("m.prom"), side_threads);
  file.write_last({}, 10s);
  const bool is_written = testing::read_file(folder.path("m.prom")) == metrics_text({});
  CHECK(is_written);
}

TEST_CASE("Without a path there is no file to write") {
  SideThreads side_threads;
  MetricsFile file({}, side_threads);
  CHECK(!file.is_wanted());
  file.write({});
  file.write_last({}, 10s);
  CHECK(file.is_ready());
}
