// SPDX-License-Identifier: MIT
#include "timer_server/records/record_log.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <mutex>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "tests/support/files.hpp"
#include "tests/support/skip.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// The disk of all files that are synced here. While it `loses`, a sync loses what was written since
// the one before and reports that once, as Linux does. The syncs of the file `refused` all fail.
struct Disk {
  std::mutex mutex;
  bool loses = false;
  ino_t refused = 0;
  int failures = 0;
  off_t lost_bytes = 0;
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
    ++failures;
    lost_bytes += st.st_size - bytes;
    (void)!::ftruncate(fd, bytes);
    errno = EIO;
    return -1;
  }
  void set_loses(bool does_lose) {
    const std::lock_guard lock(mutex);
    loses = does_lose;
    failures = 0;
    lost_bytes = 0;
  }
  void set_refused(ino_t file) {
    const std::lock_guard lock(mutex);
    refused = file;
    failures = 0;
  }
  struct Lost {
    int failures;
    off_t bytes;
  };
  // Waits at most ten seconds for `wanted` syncs that fail. Returns how many there were by then,
  // and the bytes that were lost.
  Lost wait_for_failures(int wanted) {
    const Instant end = Instant::now() + 10s;
    for (;;) {
      {
        const std::lock_guard lock(mutex);
        if (failures >= wanted) {
          return {failures, lost_bytes};
        }
      }
      REQUIRE(Instant::now() < end);
      ::sched_yield();
    }
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

// Waits at most ten seconds for the file. A rotation follows the sync that drain() waits for.
bool comes_to_exist(const std::string& path) {
  const Instant end = Instant::now() + 10s;
  while (!std::filesystem::exists(path) && Instant::now() < end) {
    ::sched_yield();
  }
  return std::filesystem::exists(path);
}

// Waits at most ten seconds until the log has failed, or works again, and returns why it failed.
std::string failure_of(RecordLog& log, bool has_failed) {
  std::string failure;
  do {
    failure = log.failure();
    pollfd poll{log.event_fd(), POLLIN, 0};
    if (failure.empty() == has_failed && ::poll(&poll, 1, 10'000) <= 0) {
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

TEST_CASE("Synced records are in the file, one a line and in order") {
  const testing::TempFolder folder;
  const auto log = open_log(folder.path("log"));
  std::uint64_t last = 0;
  for (int i = 0; i < 100; ++i) {
    last = log->append(std::to_string(i));
  }
  REQUIRE(log->drain(10s));
  CHECK(log->synced() == last);
  const auto lines = lines_of(folder.path("log"));
  REQUIRE(lines.size() == 100);
  CHECK(lines[0] == "0");
  CHECK(lines[99] == "99");
}

TEST_CASE("Records that are appended together have one number and a line each") {
  const testing::TempFolder folder;
  const auto log = open_log(folder.path("log"));
  log->append("first");
  const std::uint64_t number = log->append(std::vector<std::string>{"second", "third"});
  CHECK(number == 3);
  REQUIRE(log->drain(10s));
  CHECK(log->synced() == number);
  CHECK(lines_of(folder.path("log")) == std::vector<std::string>{"first", "second", "third"});
}

TEST_CASE("A log that was removed is made again for the next record") {
  const testing::TempFolder folder;
  const auto log = open_log(folder.path("log"));
  log->append("first");
  REQUIRE(log->drain(10s));
  std::filesystem::remove(folder.path("log"));
  log->append("second");
  REQUIRE(log->drain(10s));
  CHECK(lines_of(folder.path("log")) == std::vector<std::string>{"second"});
}

TEST_CASE("A log over its largest size is renamed once, with complete lines") {
  const testing::TempFolder folder;
  const auto log = open_log(folder.path("log"), 4096);
  const auto append = [&](int records) {
    for (int i = 0; i < records; ++i) {
      log->append(std::string(100, 'x'));
    }
    REQUIRE(log->drain(10s));
  };
  append(41);
  CHECK(comes_to_exist(folder.path("log")));           // readers find it before its first record
  CHECK(lines_of(folder.path("log.1")).size() == 41);  // the one that crossed it included
  append(9);
  CHECK(lines_of(folder.path("log.1")).size() == 41);
  CHECK(lines_of(folder.path("log")).size() == 9);
}

TEST_CASE("A log is renamed at its largest size even if another server has written most of it") {
  const testing::TempFolder folder;
  const auto one = open_log(folder.path("log"), 4096);
  const auto other = open_log(folder.path("log"), 4096);
  for (int i = 0; i < 30; ++i) {
    other->append(std::string(100, 'x'));
  }
  REQUIRE(other->drain(10s));
  for (int i = 0; i < 20; ++i) {
    one->append(std::string(100, 'x'));
  }
  REQUIRE(one->drain(10s));
  CHECK(lines_of(folder.path("log.1")).size() == 41);  // the one that crossed it included
  CHECK(lines_of(folder.path("log")).size() == 9);
}

TEST_CASE("A log that a link names is not renamed, nor is the link") {
  const testing::TempFolder folder;
  REQUIRE(::symlink(folder.path("target").c_str(), folder.path("log").c_str()) == 0);
  const auto log = open_log(folder.path("log"), 4096);
  for (int i = 0; i < 100; ++i) {
    log->append(std::string(100, 'x'));
  }
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

TEST_CASE("Records that could not be written are written in order later") {
  const testing::TempFolder folder;
  std::filesystem::create_directory(folder.path("sub"));
  const auto log = open_log(folder.path("sub/log"));
  log->append("before");
  REQUIRE(log->drain(10s));
  // Neither the file nor its folder exists, so root cannot write to it either.
  std::filesystem::rename(folder.path("sub"), folder.path("moved"));
  for (int i = 0; i < 20; ++i) {
    log->append(std::to_string(i));
  }
  CHECK(failure_of(*log, true).find("cannot open the log") != std::string::npos);

  std::filesystem::create_directory(folder.path("sub"));
  REQUIRE(log->drain(10s));
  CHECK(failure_of(*log, false).empty());
  const auto lines = lines_of(folder.path("sub/log"));
  REQUIRE(lines.size() == 20);
  CHECK(lines[0] == "0");
  CHECK(lines[19] == "19");
}

TEST_CASE("Records of a sync that failed are written again, one at a time while syncs fail") {
  const testing::TempFolder folder;
  const auto log = open_log(folder.path("log"));
  log->append("before");
  REQUIRE(log->drain(10s));
  disk.set_loses(true);
  std::vector<std::string> records{"before"};
  off_t bytes = 0;
  for (int i = 0; i < 100; ++i) {
    records.push_back(std::to_string(100 + i));
    bytes += 4;
  }
  const std::uint64_t last = log->append(std::vector(records.begin() + 1, records.end()));
  const auto lost = disk.wait_for_failures(10);
  CHECK(lost.bytes <= bytes + lost.failures * 4);
  CHECK(log->synced() == last - 100);
  CHECK(log->backlog().records == 100);
  disk.set_loses(false);
  REQUIRE(log->drain(10s));
  CHECK(lines_of(folder.path("log")) == records);
  CHECK(log->backlog().bytes == 0);
}

TEST_CASE("A log is not renamed before its records are synced") {
  const testing::TempFolder folder;
  const auto log = open_log(folder.path("log"), 4096);
  std::vector<std::string> records{"before"};
  log->append("before");
  REQUIRE(log->drain(10s));
  disk.set_loses(true);
  for (int i = 0; i < 60; ++i) {
    records.push_back(fmt::format("{:0100}", i));
  }
  log->append(std::vector(records.begin() + 1, records.end()));
  disk.wait_for_failures(3);
  CHECK_FALSE(std::filesystem::exists(folder.path("log.1")));
  disk.set_loses(false);
  REQUIRE(log->drain(10s));
  std::vector<std::string> lines = lines_of(folder.path("log.1"));
  for (const std::string& line : lines_of(folder.path("log"))) {
    lines.push_back(line);
  }
  CHECK(lines == records);
}

TEST_CASE("Records of a sync that failed go to the file that has replaced the log since") {
  const testing::TempFolder folder;
  const auto log = open_log(folder.path("log"));
  struct stat st {};
  REQUIRE(::stat(folder.path("log").c_str(), &st) == 0);
  disk.set_refused(st.st_ino);
  log->append("waits");
  disk.wait_for_failures(3);
  std::filesystem::rename(folder.path("log"), folder.path("moved"));
  CHECK(log->drain(10s));
  disk.set_refused(0);
  CHECK(lines_of(folder.path("log")) == std::vector<std::string>{"waits"});
}

TEST_CASE("A record that does not fit on the disk does not count as synced") {
  const auto log = open_log("/dev/full");
  const std::uint64_t number = log->append("waits");
  CHECK(failure_of(*log, true).find("cannot write to the log") != std::string::npos);
  CHECK(log->synced() < number);
}

TEST_CASE("The backlog has what waits, and when the first record of it was appended") {
  const testing::TempFolder folder;
  std::filesystem::create_directory(folder.path("sub"));
  const auto log = open_log(folder.path("sub/log"));
  log->append("before");
  REQUIRE(log->drain(10s));
  CHECK(log->backlog().records == 0);
  CHECK(log->backlog().bytes == 0);
  CHECK(log->backlog().oldest.is_never());
  std::filesystem::rename(folder.path("sub"), folder.path("moved"));
  const Instant begun = Instant::now();
  log->append("first");
  const Instant between = Instant::now();
  log->append("second");
  CHECK(failure_of(*log, true).find("cannot open the log") != std::string::npos);
  CHECK(log->backlog().records == 2);
  CHECK(log->backlog().bytes == std::string_view("first\nsecond\n").size());
  CHECK(log->backlog().oldest >= begun);
  CHECK(log->backlog().oldest <= between);
  std::filesystem::create_directory(folder.path("sub"));
  REQUIRE(log->drain(10s));
  CHECK(log->backlog().records == 0);
  CHECK(log->backlog().oldest.is_never());
}

TEST_CASE("The backlog has a limit, and records over it are counted") {
  RecordLog::Settings settings;
  settings.path = "/dev/full";
  settings.max_bytes = 1 << 20;
  auto opened = RecordLog::open(settings);
  REQUIRE(opened);
  const std::size_t record = std::size_t{1} << 20;
  for (std::size_t i = 0; i < kMaxLogBacklogBytes / record + 4; ++i) {
    (*opened)->append(std::string(record, 'x'));
  }
  CHECK((*opened)->backlog().lost >= 4);
  CHECK((*opened)->synced() == 0);
  CHECK(!(*opened)->drain(1ms));
}

TEST_CASE("Statistics are dropped before verdicts, and are counted, too") {
  const auto log = open_log("/dev/full");
  const std::size_t record = std::size_t{1} << 20;
  for (std::size_t i = 0; i < kMaxLogBacklogBytesOfDetails / record + 4; ++i) {
    log->append_detail(std::string(record, 'x'));
  }
  const std::uint64_t lost = log->backlog().lost;
  CHECK(lost >= 4);
  log->append(std::string(record, 'x'));
  CHECK(log->backlog().lost == lost);
}

TEST_CASE("After reopen records go to a new file at the path") {
  const testing::TempFolder folder;
  const auto log = open_log(folder.path("log"));
  log->append("old");
  REQUIRE(log->drain(10s));
  std::filesystem::rename(folder.path("log"), folder.path("moved"));
  log->reopen();
  log->append("new");
  REQUIRE(log->drain(10s));
  CHECK(lines_of(folder.path("moved")) == std::vector<std::string>{"old"});
  CHECK(lines_of(folder.path("log")) == std::vector<std::string>{"new"});
}

TEST_CASE("A log that cannot be opened is an error at the start") {
  RecordLog::Settings settings;
  settings.path = "/nonexistent/folder/log";
  const auto log = RecordLog::open(settings);
  REQUIRE(!log);
  CHECK(log.error().message.find("/nonexistent/folder/log") != std::string::npos);
}

TEST_CASE("A log is private to its user") {
  const testing::TempFolder folder;
  const auto log = open_log(folder.path("log"));
  struct stat st {};
  REQUIRE(::stat(folder.path("log").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0600);
}
