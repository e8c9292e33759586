// SPDX-License-Identifier: MIT
#include "timer_server/evidence/flight_recorder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "common/posix.hpp"
#include "tests/support/files.hpp"

using namespace filetimer;

namespace {

// A FIFO with a reader, and the places of its dumps.
struct RecordedRank {
  testing::TempFolder folder;
  std::string fifo = make_fifo(folder.path("pipe_0.pipe"));
  UniqueFd reader{::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  std::string dump = folder.path("dump_0");
  std::string other_dump = folder.path("other_0");
  FlightRecorder recorder = with({fifo, {dump, other_dump}, {}});

  static std::string make_fifo(const std::string& path) {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    return path;
  }
  static FlightRecorder with(RecorderFiles files, uid_t uid = ::geteuid()) {
    return {std::make_shared<RecorderFiles>(std::move(files)), uid};
  }
  [[nodiscard]] std::string read_bytes() const {
    char bytes[128];
    const ssize_t got = ::read(reader.get(), bytes, sizeof bytes);
    return {bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }
};

std::string reason_of(const std::string& pipe, uid_t uid = ::geteuid()) {
  FlightRecorder recorder = RecordedRank::with({pipe, {"/nowhere/dump"}, {}}, uid);
  recorder.ask();
  CHECK_FALSE(recorder.is_waiting());
  return recorder.reason();
}

}  // namespace

TEST_CASE("A rank is asked by one byte, and its dump counts when it rests") {
  RecordedRank rank;
  rank.recorder.ask();
  CHECK(rank.read_bytes() == "1");
  rank.recorder.look();
  CHECK(rank.recorder.is_waiting());
  CHECK(rank.recorder.reason() == "it was asked and wrote no dump in time");
  testing::write_file(rank.dump, "abc");
  rank.recorder.look();
  CHECK(rank.recorder.is_waiting());
  CHECK(rank.recorder.reason() ==
        fmt::format("'{}' was still growing when time was up", rank.dump));
  testing::write_file(rank.dump, "abcdef");
  rank.recorder.look();
  CHECK(rank.recorder.is_waiting());
  rank.recorder.look();
  CHECK_FALSE(rank.recorder.is_waiting());
  CHECK(rank.recorder.reason() == "");
  CHECK(rank.recorder.path() == rank.dump);
  CHECK(rank.recorder.size() == 6);
}

TEST_CASE("An absolute symlink leads to a place below the root of the worker") {
  const testing::TempFolder root;
  std::filesystem::create_directory(root.path("scratch"));
  std::filesystem::create_directory_symlink("/scratch", root.path("tmp"));
  const std::string fifo = RecordedRank::make_fifo(root.path("scratch/pipe_0.pipe"));
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const RecorderFiles files{"/tmp/pipe_0.pipe", {"/tmp/dump_0"}, {}};
  FlightRecorder recorder(std::make_shared<RecorderFiles>(files), ::geteuid(), root.path());
  recorder.ask();
  CHECK(recorder.reason() == "it was asked and wrote no dump in time");
  testing::write_file(root.path("scratch/dump_0"), "abc");
  recorder.look();
  recorder.look();
  CHECK_FALSE(recorder.is_waiting());
  CHECK(recorder.reason() == "");
  CHECK(recorder.path() == "/tmp/dump_0");
}

TEST_CASE("A dump from before the request is not the dump, though it rests") {
  RecordedRank rank;
  testing::write_file(rank.dump, "old");
  std::filesystem::last_write_time(
      rank.dump, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  rank.recorder.ask();
  for (int look = 0; look < 3; ++look) {
    rank.recorder.look();
  }
  CHECK(rank.recorder.is_waiting());
  // The size is the same: the change shows in the time.
  testing::write_file(rank.dump, "new");
  rank.recorder.look();
  rank.recorder.look();
  CHECK_FALSE(rank.recorder.is_waiting());
  CHECK(rank.recorder.size() == 3);
}

TEST_CASE("An empty file is a dump that has only begun") {
  RecordedRank rank;
  rank.recorder.ask();
  testing::write_file(rank.dump, "");
  rank.recorder.look();
  rank.recorder.look();
  CHECK(rank.recorder.is_waiting());
}

TEST_CASE("The dump may be at any place where a version of PyTorch writes it") {
  RecordedRank rank;
  rank.recorder.ask();
  testing::write_file(rank.other_dump, "abcd");
  rank.recorder.look();
  rank.recorder.look();
  CHECK(rank.recorder.path() == rank.other_dump);
  CHECK(rank.recorder.size() == 4);
}

TEST_CASE("Only a FIFO of the worker's user that is read gets a byte") {
  RecordedRank rank;
  const std::string fifo = rank.fifo;
  const uid_t other = ::geteuid() + 1;
  CHECK(reason_of(fifo, other) ==
        fmt::format("'{}' belongs to user {}: expected user {}", fifo, ::geteuid(), other));
  const std::string link = rank.folder.path("link.pipe");
  std::filesystem::create_symlink(fifo, link);
  CHECK(reason_of(link) == fmt::format("'{}' is a symlink: expected a FIFO", link));
  const std::string file = rank.folder.path("file.pipe");
  testing::write_file(file, "text");
  CHECK(reason_of(file) == fmt::format("'{}' is not a FIFO", file));
  CHECK(testing::read_file(file) == "text");
  CHECK(reason_of(rank.folder.path()) == fmt::format("'{}' is not a FIFO", rank.folder.path()));
  CHECK(reason_of("/dev/null") == "'/dev/null' is not a FIFO");
  CHECK(reason_of("/nowhere/0.pipe") == "cannot open '/nowhere/0.pipe': No such file or directory");
  const std::string unread = RecordedRank::make_fifo(rank.folder.path("unread.pipe"));
  CHECK(reason_of(unread) == fmt::format("no process reads '{}'", unread));
  CHECK(rank.read_bytes() == "");
}

TEST_CASE("A FIFO that is full is not waited for") {
  RecordedRank rank;
  const UniqueFd writer(::open(rank.fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  const std::string block(4096, 'x');
  while (::write(writer.get(), block.data(), block.size()) > 0) {
  }
  CHECK(reason_of(rank.fifo) ==
        fmt::format("'{}' is full: it was not read for a long time", rank.fifo));
}

TEST_CASE("A rank whose environment names no usable file is not asked") {
  FlightRecorder recorder = RecordedRank::with({{}, {}, "why"});
  CHECK(recorder.reason() == "it was not asked: time was up");
  recorder.ask();
  CHECK_FALSE(recorder.is_waiting());
  CHECK(recorder.reason() == "why");
}
