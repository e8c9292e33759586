// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/reader.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/limits.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

std::string record_line(const std::string& event, const std::string& time,
                        const std::string& more = "") {
  return R"({"schema":1,"event":")" + event + R"(","time":")" + time + R"(")" + more + "}\n";
}

struct Reading {
  std::vector<std::string> lines;
  std::vector<std::string> events;
  std::size_t skipped = 0;
};

LogReader reader_of(const std::string& path) {
  return {path, UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC))};
}

Reading read_text(std::string_view text, std::size_t block_bytes = 1 << 20) {
  const TempFolder folder;
  folder.write("log", std::string(text));
  LogReader reader = reader_of(folder.path("log"));
  reader.set_block_bytes(block_bytes);
  Reading reading;
  while (const Record* const record = reader.next()) {
    reading.lines.emplace_back(record->line);
    reading.events.emplace_back(record->event);
  }
  CHECK(reader.problem().empty());
  reading.skipped = reader.skipped();
  return reading;
}

std::vector<std::string> merged(std::vector<LogReader>& logs) {
  std::vector<std::string> events;
  read_merged(logs, [&](const Record& record) {
    events.emplace_back(record.event);
    return true;
  });
  CHECK(problems_of(logs).empty());
  return events;
}

TEST_CASE("lines cut anywhere give the same records, and the last one needs no newline") {
  const std::string text = read_data("foreign.jsonl") + "\n" + read_data("hang.jsonl");
  const Reading whole = read_text(text);
  for (const std::size_t chunk : {1U, 2U, 7U, 64U, 1000U}) {
    const Reading cut = read_text(text, chunk);
    CHECK(cut.lines == whole.lines);
    CHECK(cut.skipped == whole.skipped);
  }
  const Reading last = read_text(R"({"schema":1,"event":"killed"})");
  CHECK(last.events == std::vector<std::string>{"killed"});
  CHECK(last.skipped == 0);
}

TEST_CASE("a value of the wrong type counts as absent") {
  LogReader log = reader_of(data_path("foreign.jsonl"));
  const Record* record = log.next();
  while (record != nullptr && record->id != "types-1") {
    record = log.next();
  }
  REQUIRE(record != nullptr);
  CHECK_FALSE(record->time_us);
  CHECK_FALSE(record->pid);
  CHECK_FALSE(record->rank);
  CHECK_FALSE(record->number("timeout_s"));
  CHECK_FALSE(record->number("overdue_ms"));
  CHECK(record->scope.empty());
}

TEST_CASE("a line over the limit is dropped without being kept, the longest allowed is read") {
  const std::string start = R"({"schema":1,"event":"evidence","pad":")";
  const std::string longest =
      start + std::string(kMaxRecordBytes - start.size() - 2, 'x') + "\"}\n";
  const std::string too_long = start + std::string(3 * kMaxRecordBytes, 'x') + "\"}\n";
  // Its end would be a record.
  const std::string padded = std::string(3 * kMaxRecordBytes, ' ') + record_line("expired", "x");
  const Reading reading = read_text(longest + too_long + padded + record_line("killed", "x"), 4096);
  CHECK(reading.events == std::vector<std::string>{"evidence", "killed"});
  CHECK(reading.skipped == 2);
}

TEST_CASE("NULs, deep nesting and bytes that are no UTF-8 are skipped") {
  std::string text(3, '\0');
  text += "\n" + record_line("killed", "x", R"(,"a":)" + std::string(2000, '[')) +
          record_line("killed", "x", ",\"a\":\"\xff\"") + record_line("expired", "x");
  const Reading reading = read_text(text);
  CHECK(reading.events == std::vector<std::string>{"expired"});
  CHECK(reading.skipped == 3);
}

TEST_CASE("the rotated log is read before the log it made room for") {
  const TempFolder folder;
  folder.write("expired.jsonl.1", record_line("server_started", "2026-11-21T03:00:01Z"));
  folder.write("expired.jsonl", record_line("expired", "2026-11-21T03:00:01Z"));
  auto logs = open_logs(folder.path(), {}).logs;
  CHECK(merged(logs) == std::vector<std::string>{"server_started", "expired"});
  SUBCASE("but not when the file was named") {
    auto named = open_logs("", {folder.path("expired.jsonl")}).logs;
    CHECK(merged(named) == std::vector<std::string>{"expired"});
  }
  SUBCASE("and alone while no new one is there") {
    std::filesystem::remove(folder.path("expired.jsonl"));
    auto rotated = open_logs(folder.path(), {}).logs;
    CHECK(merged(rotated) == std::vector<std::string>{"server_started"});
  }
  SUBCASE("and is a problem where it cannot be opened") {
    const std::string name = folder.path("expired.jsonl.1");
    std::filesystem::remove(name);
    std::filesystem::create_symlink("expired.jsonl.1", name);  // a loop
    auto opened = open_logs(folder.path(), {});
    CHECK(opened.problems == std::vector<std::string>{"cannot open '" + name +
                                                      "': Too many levels of symbolic links"});
    CHECK(merged(opened.logs) == std::vector<std::string>{"expired"});
  }
}

// A record of `bytes` in all, the `number`-th of its host.
std::string long_record(const std::string& host, int number, std::size_t bytes) {
  std::string line = record_line("evidence", fmt::format("2026-11-21T03:00:{:02}Z", number),
                                 fmt::format(R"(,"host":"{}","mono_ns":{},"pad":")", host, number));
  line.resize(line.size() - 2);
  line += std::string(bytes - line.size() - 3, 'x') + "\"}\n";
  return line;
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  file >> pages >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

TEST_CASE("the records of many logs take no memory but their own, however long they are") {
  const TempFolder folder;
  constexpr int kLogs = 100;
  constexpr std::size_t kBytes = 400'000;
  for (int log = 0; log < kLogs; ++log) {
    const std::string host = fmt::format("host{:02}", log);
    folder.write(host + ".jsonl", long_record(host, 1, kBytes) + long_record(host, 2, kBytes));
  }
  auto opened = open_logs("", {folder.path()});
  REQUIRE(opened.logs.size() == kLogs);
  const std::int64_t before = resident_bytes();
  std::int64_t most = 0;
  std::size_t records = 0;
  read_merged(opened.logs, [&](const Record&) {
    most = std::max(most, resident_bytes());
    ++records;
    return true;
  });
  CHECK(records == 2 * kLogs);
  // One record of each log, the half of another, and what one parser needs.
  CHECK(most - before < static_cast<std::int64_t>(4 * kLogs * kBytes));
}

TEST_CASE("more logs than the soft limit allows files are all read") {
  const TempFolder folder;
  constexpr int kLogs = 100;
  for (int log = 0; log < kLogs; ++log) {
    folder.write(fmt::format("{}.jsonl", log), record_line("expired", "2026-11-21T03:00:00Z"));
  }
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit soft{64, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &soft) == 0);
  auto opened = open_logs("", {folder.path()});
  CHECK(opened.problems.empty());
  CHECK(merged(opened.logs).size() == kLogs);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("a followed log gives its news across rotation and removal, and counts half a line") {
  const TempFolder folder;
  folder.write("log", record_line("server_started", "x") + R"({"schema":1,"eve)");
  LogReader log = reader_of(folder.path("log"));
  log.follow();
  const auto news = [&] {
    std::vector<std::string> events;
    while (const Record* const record = log.next()) {
      events.emplace_back(record->event);
    }
    CHECK(log.problem().empty());
    return events;
  };
  CHECK(news() == std::vector<std::string>{"server_started"});
  CHECK(news().empty());
  folder.append("log", "nt\":\"expired\"}\n");
  CHECK(news() == std::vector<std::string>{"expired"});

  // Rotated, with a last record that was written before the rename and not read yet.
  folder.append("log", record_line("killed", "x"));
  std::filesystem::rename(folder.path("log"), folder.path("log.1"));
  folder.write("log", record_line("warned", "x"));
  CHECK(news() == std::vector<std::string>{"killed", "warned"});
  CHECK(news().empty());

  std::filesystem::remove(folder.path("log"));
  CHECK(news().empty());
  folder.write("log", record_line("deferred", "x"));
  CHECK(news() == std::vector<std::string>{"deferred"});

  folder.append("log", record_line("left_open", "x"));
  CHECK(news() == std::vector<std::string>{"left_open"});
  CHECK(log.skipped() == 0);

  folder.append("log", R"({"schema":1,"eve)");  // and is rotated before its end
  CHECK(news().empty());
  std::filesystem::rename(folder.path("log"), folder.path("log.1"));
  folder.write("log", record_line("expired", "x"));
  CHECK(news() == std::vector<std::string>{"expired"});
  CHECK(log.skipped() == 1);

  folder.write("log.1", R"({"schema":1,"event":"killed"})");  // which gets no more
  LogReader rotated = reader_of(folder.path("log.1"));
  rotated.follow();
  CHECK(rotated.next() != nullptr);
}

TEST_CASE("a log that could not be read to its end is read again") {
  const TempFolder folder;
  folder.write("log", record_line("expired", "x"));
  UniqueFd unreadable(::open(folder.path().c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = unreadable.get();
  LogReader log(folder.path("log"), std::move(unreadable));
  CHECK(log.next() == nullptr);
  CHECK_FALSE(log.problem().empty());
  const UniqueFd file(::open(folder.path("log").c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(::dup2(file.get(), fd) == fd);
  CHECK(log.rewind());
  CHECK(log.next() != nullptr);
}

TEST_CASE("a log is read from where its file was when it was given, also again") {
  const TempFolder folder;
  const std::string first = record_line("expired", "x");
  folder.write("log", first + record_line("killed", "x"));
  UniqueFd file(::open(folder.path("log").c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(::lseek(file.get(), std::ssize(first), SEEK_SET) == std::ssize(first));
  LogReader log(folder.path("log"), std::move(file));
  CHECK(log.rewind());
  REQUIRE(log.next() != nullptr);
  CHECK(log.next() == nullptr);
}

TEST_CASE("times are read as records have them, and nothing else is") {
  CHECK(parse_rfc3339("1970-01-01T00:00:00Z") == 0);
  CHECK(parse_rfc3339("1970-01-01T00:00:00.0000019Z") == 1);
  CHECK(parse_rfc3339("1970-01-01T23:59:60.25Z") == 86'400'250'000);
  CHECK(parse_rfc3339("2261-12-31T23:59:59Z"));
  const std::string fine = "2026-11-21T03:15:53.1Z";
  CHECK(parse_rfc3339(fine) == 1795230953'100'000);
  for (std::size_t i = 0; i < fine.size(); ++i) {
    std::string wrong = fine;
    wrong[i] = 'x';
    CHECK_FALSE_MESSAGE(parse_rfc3339(wrong), wrong);
  }
  for (const char* text :
       {"", "2026-11-21", "2026-11-21T03:15:53", "2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z",
        "2026-11-21T24:00:00Z", "2026-11-21T03:15:53.Z", "2026-11-21T03:15:53Zx",
        "2026-11-21T03:15:5", "9999-01-01T00:00:00Z", "2026-11-21T03:15:53+01:00",
        "1969-12-31T23:59:59Z", "2262-01-01T00:00:00Z", "2026-11-21T03:60:00Z",
        "2026-11-21T03:15:61Z"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_rfc3339(text));
  }
  CHECK(parse_since("10m", 1'000'000'000) == 400'000'000);
  CHECK(parse_since("1970-01-01T00:00:01Z", 0) == 1'000'000);
  CHECK(parse_since("2026-11-21T03:15:53-00:30", 0) == 1795232753'000'000);
  CHECK(parse_since("2026-11-21T04:15:53.1+01:00", 0) == 1795230953'100'000);
  CHECK(parse_since("2026-11-21 04:15:53+01:00", 0) == 1795230953'000'000);
  CHECK(parse_since("2026-11-21 03:15:53.1Z", 0) == 1795230953'100'000);
  for (const char* text : {"2026-02-31T00:00:00+01:00", "2026-11-21T04:15:53.+01:00",
                           "2026-11-21T04:15:53+", "2026-11-21T04:15:53+01:00x"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_since(text, 0));
  }
  REQUIRE_FALSE(parse_since("yesterday", 0));
  CHECK(parse_since("yesterday", 0).error().message.starts_with("'yesterday' is no time"));
}

}  // namespace
}  // namespace filetimer::cli
