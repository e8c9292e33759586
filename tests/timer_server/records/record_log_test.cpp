// SPDX-License-Identifier: MIT
#include "timer_server/records/record_log.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <mutex>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/files.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// The disk of all files that are synced here. While it `loses`, a sync loses what was written since
// the one before and reports that once, as Linux does. The syncs of the file `refused` all fail.
struct Disk {
  struct Lost {
    int failures = 0;
    off_t bytes = 0;
  };
  std::mutex mutex;
  bool loses = false;
  ino_t refused = 0;
  Lost lost;                    // since set()
  std::map<ino_t, off_t> kept;  // bytes of each file

  int sync(int fd) {
    const std::lock_guard lock(mutex);
    struct stat st {};
    ::fstat(fd, &st);
    off_t& bytes = kept[st.st_ino];
    bytes = std::min(bytes, st.st_size);
    const bool fails = st.st_ino == refused || (loses && bytes < st.st_size);
    if (!fails) {
      bytes = st.st_size;
      return static_cast<int>(::syscall(SYS_fdatasync, fd));
    }
    ++lost.failures;
    lost.bytes += st.st_size - bytes;
    (void)!::ftruncate(fd, bytes);
    errno = EIO;
    return -1;
  }
  void set(bool does_lose, ino_t refuses = 0) {
    const std::lock_guard lock(mutex);
    loses = does_lose;
    refused = refuses;
    lost = {};
  }
  // Waits at most ten seconds for `wanted` syncs that fail. Returns what was lost by then.
  Lost wait_for_failures(int wanted) {
    Lost seen;
    REQUIRE(testing::wait_until(
        [&] {
          const std::lock_guard lock(mutex);
          seen = lost;
          return seen.failures >= wanted;
        },
        10s));
    return seen;
  }
} disk;

std::shared_ptr<RecordLog> open_log(const std::string& path,
                                    std::uint64_t max_bytes = std::uint64_t{1} << 30) {
  RecordLog::Settings settings;
  settings.path = path;
  settings.max_bytes = max_bytes;
  settings.retry = 5ms;
  auto log = RecordLog::open(settings);
  REQUIRE(log);
  return std::move(*log);
}

std::vector<std::string> lines_of(const std::string& path) {
  return testing::lines_of(testing::read_file(path));
}

// A log in a folder of its own.
struct LogStage {
  explicit LogStage(std::uint64_t max_bytes = std::uint64_t{1} << 30)
      : log(open_log(path, max_bytes)) {}
  // Appends the records one by one, and waits until they are synced.
  void write(const std::vector<std::string>& records) {
    for (const std::string& record : records) {
      log->append(record);
    }
    REQUIRE(log->drain(10s));
  }
  [[nodiscard]] std::vector<std::string> lines() const { return lines_of(path); }
  // Returns the lines of the renamed log and of the log.
  [[nodiscard]] std::vector<std::string> all_lines() const {
    return testing::lines_of(testing::read_file(path + ".1") + testing::read_file(path));
  }

  const testing::TempFolder temp;
  const bool has_folder = std::filesystem::create_directory(temp.path("folder"));
  const std::string path = temp.path("folder/log");
  const std::shared_ptr<RecordLog> log;
};

using Lines = std::vector<std::string>;

// So many records, of 101 bytes with their newlines, behind some others.
Lines records(std::size_t count, Lines records = {}) {
  for (std::size_t i = 0; i < count; ++i) {
    records.push_back(fmt::format("{:0100}", i));
  }
  return records;
}

// Waits at most ten seconds until the log has failed, or works again, and returns why it failed.
std::string failure_of(RecordLog& log, bool has_failed) {
  std::string failure;
  do {
    failure = log.failure();
    if (failure.empty() == has_failed && !is_readable_within(log.event_fd(), 10s)) {
      return "no change within the bound";
    }
    std::uint64_t events = 0;
    (void)!::read(log.event_fd(), &events, sizeof events);
  } while (failure.empty() == has_failed);
  return failure;
}

}  // namespace

extern "C" int fdatasync(int fd) {
  return disk.sync(fd);
}

TEST_CASE("Records that are appended together have a line each, also in a log made again") {
  LogStage stage;
  stage.log->append("first");
  const std::uint64_t number = stage.log->append(Lines{"second", "third"});
  CHECK(number == 3);
  REQUIRE(stage.log->drain(10s));
  CHECK(stage.log->synced() == number);
  CHECK(stage.lines() == Lines{"first", "second", "third"});
  std::filesystem::remove(stage.path);
  stage.write({"fourth"});
  CHECK(stage.lines() == Lines{"fourth"});
}

TEST_CASE("A log over its largest size is renamed once, with complete lines") {
  LogStage stage(4096);
  stage.write(records(41));
  // A rotation follows the sync that drain() waits for. Readers find the new log before its first
  // record.
  CHECK(testing::wait_until([&] { return testing::exists(stage.path); }));
  CHECK(lines_of(stage.path + ".1") == records(41));  // the one that crossed it included
  stage.write(records(9));
  CHECK(lines_of(stage.path + ".1").size() == 41);
  CHECK(stage.lines() == records(9));
}

TEST_CASE("A log is renamed at its largest size even if another server has written most of it") {
  LogStage stage(4096);
  const auto other = open_log(stage.path, 4096);
  other->append(records(30));
  REQUIRE(other->drain(10s));
  stage.write(records(20));
  CHECK(lines_of(stage.path + ".1").size() == 41);  // the one that crossed it included
  CHECK(stage.lines().size() == 9);
}

TEST_CASE("A log whose old name is another link to it is renamed as any other") {
  LogStage stage(4096);
  stage.write({"before"});
  std::filesystem::create_hard_link(stage.path, stage.path + ".1");
  stage.write(records(60));
  stage.write({"after"});
  CHECK(lines_of(stage.path + ".1").size() < 60);
  Lines wanted = records(60, {"before"});
  wanted.push_back("after");
  CHECK(stage.all_lines() == wanted);
}

TEST_CASE("A log that a link names is not renamed, nor is the link") {
  const testing::TempFolder folder;
  REQUIRE(::symlink(folder.path("target").c_str(), folder.path("log").c_str()) == 0);
  const auto log = open_log(folder.path("log"), 4096);
  log->append(records(100));
  REQUIRE(log->drain(10s));
  CHECK(std::filesystem::is_symlink(folder.path("log")));
  CHECK(lines_of(folder.path("target")).size() == 100);
}

TEST_CASE("A record that is longer than a pipe reaches the reader of the pipe once, whole") {
  const testing::TempFolder folder;
  const std::string path = folder.path("log");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const auto log = open_log(path);
  const std::string record(200'000, 'x');
  log->append(record);
  const std::uint64_t last = log->append("last");
  std::string read;
  for (std::array<char, 4096> bytes{}; !read.ends_with("\nlast\n");) {
    REQUIRE(is_readable_within(reader.get(), 10s));
    const ssize_t got = ::read(reader.get(), bytes.data(), bytes.size());
    REQUIRE(got > 0);
    read.append(bytes.data(), static_cast<std::size_t>(got));
  }
  CHECK(read == record + "\nlast\n");
  REQUIRE(log->drain(10s));
  CHECK(log->synced() == last);
}

TEST_CASE("Servers that share a log rename it once and lose no record") {
  for (int round = 0; round < 12; ++round) {
    const testing::TempFolder folder;
    const std::string path = folder.path("log");
    // The bytes of each server: together one and a half times the largest size.
    constexpr int kRecords = 1000;
    const std::string filling(100, 'x');
    const std::uint64_t most = 2 * kRecords * (filling.size() + 1) * 2 / 3;
    const auto one = open_log(path, most);
    const auto other = open_log(path, most);
    for (int i = 0; i < kRecords; ++i) {
      one->append(filling);
      other->append(filling);
    }
    REQUIRE(one->drain(10s));
    REQUIRE(other->drain(10s));
    CHECK(lines_of(path).size() + lines_of(path + ".1").size() == 2 * kRecords);
  }
}

TEST_CASE("Records of a sync that failed are written again, one at a time while syncs fail") {
  LogStage stage;
  stage.write({"before"});
  disk.set(true);
  const std::uint64_t last = stage.log->append(records(100));
  const auto lost = disk.wait_for_failures(10);
  CHECK(lost.bytes <= (100 + lost.failures) * 101);
  CHECK(stage.log->synced() == last - 100);
  CHECK(stage.log->backlog().records == 100);
  disk.set(false);
  REQUIRE(stage.log->drain(10s));
  CHECK(stage.lines() == records(100, {"before"}));
  CHECK(stage.log->backlog().bytes == 0);
}

TEST_CASE("A log is not renamed before its records are synced") {
  LogStage stage(4096);
  stage.write({"before"});
  disk.set(true);
  stage.log->append(records(60));
  disk.wait_for_failures(3);
  CHECK_FALSE(std::filesystem::exists(stage.path + ".1"));
  disk.set(false);
  REQUIRE(stage.log->drain(10s));
  CHECK(stage.all_lines() == records(60, {"before"}));
}

TEST_CASE("Records of a sync that failed go to the file that has replaced the log since") {
  LogStage stage;
  struct stat st {};
  REQUIRE(::stat(stage.path.c_str(), &st) == 0);
  disk.set(false, st.st_ino);
  stage.log->append("waits");
  disk.wait_for_failures(3);
  std::filesystem::rename(stage.path, stage.temp.path("moved"));
  CHECK(stage.log->drain(10s));
  disk.set(false);
  CHECK(stage.lines() == Lines{"waits"});
}

TEST_CASE("Records that could not be written are the backlog, and are written in order later") {
  LogStage stage;
  stage.write({"before"});
  CHECK(stage.log->backlog().records == 0);
  CHECK(stage.log->backlog().bytes == 0);
  CHECK(stage.log->backlog().oldest.is_never());
  // Neither the file nor its folder exists then, so root cannot write to it either.
  std::filesystem::rename(stage.temp.path("folder"), stage.temp.path("moved"));
  const Instant begun = Instant::now();
  stage.log->append("first");
  const Instant between = Instant::now();
  for (const std::string& record : records(20)) {
    stage.log->append(record);
  }
  CHECK(failure_of(*stage.log, true).find("cannot open the log") != std::string::npos);
  CHECK(stage.log->backlog().records == 21);
  CHECK(stage.log->backlog().bytes == std::string_view("first\n").size() + 20 * 101);
  CHECK(stage.log->backlog().oldest >= begun);
  CHECK(stage.log->backlog().oldest <= between);
  std::filesystem::create_directory(stage.temp.path("folder"));
  REQUIRE(stage.log->drain(10s));
  CHECK(failure_of(*stage.log, false).empty());
  CHECK(stage.log->backlog().records == 0);
  CHECK(stage.log->backlog().oldest.is_never());
  CHECK(stage.lines() == records(20, {"first"}));
}

TEST_CASE("An old half line keeps its line where the disk has room for the first record only") {
  const testing::TempFolder folder;
  const std::string path = folder.path("log");
  folder.write("log", "half");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{200, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
  const auto log = open_log(path);
  log->append(records(2));
  const std::string failure = failure_of(*log, true);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(failure.find("cannot write to the log") != std::string::npos);
  REQUIRE(log->drain(10s));
  CHECK(lines_of(path) == records(2, {"half"}));
}

// On a full disk nothing is written.
TEST_CASE("The backlog has a limit, a lower one for statistics, and what is over it is counted") {
  const auto log = open_log("/dev/full");
  const std::string record(std::size_t{1} << 20, 'x');
  for (std::size_t i = 0; i < kMaxLogBacklogBytesOfDetails / record.size() + 4; ++i) {
    log->append_detail(record);
  }
  CHECK(failure_of(*log, true).find("cannot write to the log") != std::string::npos);
  const std::uint64_t lost = log->backlog().lost;
  CHECK(lost >= 4);
  log->append(record);
  CHECK(log->backlog().lost == lost);
  constexpr std::size_t kOthers = kMaxLogBacklogBytes - kMaxLogBacklogBytesOfDetails;
  for (std::size_t i = 0; i < kOthers / record.size() + 4; ++i) {
    log->append(record);
  }
  CHECK(log->backlog().lost >= lost + 4);
  CHECK(log->synced() == 0);
  CHECK(!log->drain(1ms));
}
