// Compares the tables of bytes in docs/protocol.md with the layouts in the headers: the document
// has every field, with the offset and size of the compiler, and no other field.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/board.hpp"
#include "common/due.hpp"
#include "common/scope_page.hpp"

namespace filetimer {
namespace {

// A row of a table: the texts between the bars, without the spaces around them.
using Row = std::vector<std::string>;

// Returns the rows that begin with a number, of the tables between a heading and the next one,
// without commas.
std::vector<Row> rows_under(std::string_view heading) {
  std::ifstream file(FILETIMER_SOURCE_DIR "/docs/protocol.md");
  REQUIRE(file.good());
  std::vector<Row> rows;
  std::string line;
  bool here = false;
  while (std::getline(file, line)) {
    if (line.starts_with('#')) {
      here = line == heading;
    }
    if (!here || !line.starts_with("| ") || line[2] < '0' || line[2] > '9') {
      continue;
    }
    Row row;
    for (std::size_t begin = 1; begin < line.size();) {
      const std::size_t end = line.find('|', begin);
      std::string cell = line.substr(begin, end - begin);
      cell.erase(0, cell.find_first_not_of(' '));
      cell.erase(cell.find_last_not_of(' ') + 1);
      std::erase(cell, ',');
      row.push_back(cell);
      begin = end + 1;
    }
    rows.push_back(row);
  }
  return rows;
}

struct Field {
  const char* name;
  std::size_t offset;
  std::size_t size;
};

#define FIELD(Type, name)                           \
  Field {                                           \
#name, offsetof(Type, name), sizeof(Type::name) \
  }

void check_table(std::string_view heading, const std::vector<Field>& fields) {
  CAPTURE(heading);
  const std::vector<Row> rows = rows_under(heading);
  REQUIRE(rows.size() == fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    CAPTURE(fields[i].name);
    CHECK(rows[i][0] == fmt::format("{}", fields[i].offset));
    CHECK(rows[i][1] == fmt::format("{}", fields[i].size));
    CHECK(rows[i][2] == fmt::format("`{}`", fields[i].name));
  }
}

TEST_CASE("docs/protocol.md gives the offsets of each part of a page, and of the status page") {
  check_table("### Header",
              {FIELD(PageHeader, magic), FIELD(PageHeader, version),
               FIELD(PageHeader, header_bytes), FIELD(PageHeader, boot), FIELD(PageHeader, pid),
               FIELD(PageHeader, uid), FIELD(PageHeader, start_time), FIELD(PageHeader, created_ns),
               FIELD(PageHeader, slots), FIELD(PageHeader, statistics), FIELD(PageHeader, flags),
               FIELD(PageHeader, dump_signal), FIELD(PageHeader, wakes),
               FIELD(PageHeader, reserved), FIELD(PageHeader, rank), FIELD(PageHeader, local_rank),
               FIELD(PageHeader, job_id), FIELD(PageHeader, comm), FIELD(PageHeader, unused)});
  check_table("### Slot",
              {FIELD(Slot, deadline), FIELD(Slot, acquired), FIELD(Slot, started),
               FIELD(Slot, timeout), FIELD(Slot, grace_ms), FIELD(Slot, soft_ms), FIELD(Slot, left),
               FIELD(Slot, tid), FIELD(Slot, signal), FIELD(Slot, flags), FIELD(Slot, shown_bytes),
               FIELD(Slot, code_timeout_ms)});
  check_table("### Name", {FIELD(SlotName, words)});
  check_table(
      "### Statistics",
      {FIELD(SlotStatistics, name), FIELD(SlotStatistics, count), FIELD(SlotStatistics, total_ns),
       FIELD(SlotStatistics, last_ns), FIELD(SlotStatistics, longest_ns),
       FIELD(SlotStatistics, smallest_margin_ns), FIELD(SlotStatistics, first_ns),
       FIELD(SlotStatistics, timeout_ns), FIELD(SlotStatistics, reserved),
       FIELD(SlotStatistics, ended), FIELD(SlotStatistics, histogram)});
  check_table("## The status page",
              {FIELD(Board, magic), FIELD(Board, version), FIELD(Board, bytes), FIELD(Board, boot),
               FIELD(Board, server_pid), FIELD(Board, state), FIELD(Board, pid_namespace),
               FIELD(Board, reserved), FIELD(Board, next_wake), FIELD(Board, max_timeout),
               FIELD(Board, incarnation), FIELD(Board, warn_at), FIELD(Board, announcement),
               FIELD(Board, default_timeout), FIELD(Board, scans), FIELD(Board, counts_scans)});
}

TEST_CASE("docs/protocol.md gives the parts of a page, one behind the other") {
  const std::vector<Row> rows = rows_under("## The page");
  constexpr std::size_t kSlotsEnd = kSlotsAt + kMaxScopesPerWorker * sizeof(Slot);
  // Where each begins, and the end.
  const std::vector<std::size_t> parts{0, kSlotsAt, kSlotsEnd, kNamesAt, kStatisticsAt, kPageBytes};
  REQUIRE(rows.size() + 1 == parts.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i][0] == fmt::format("{}", parts[i]));
    CHECK(rows[i][1] == fmt::format("{}", parts[i + 1] - parts[i]));
  }
  CHECK(kSlotsAt == sizeof(PageHeader));
  CHECK(kStatisticsAt - kNamesAt == kMaxScopesPerWorker * sizeof(SlotName));
  CHECK(kPageBytes - kStatisticsAt == kMaxStatistics * sizeof(SlotStatistics));
}

TEST_CASE("the values that docs/protocol.md names are those of the headers") {
  char magic[8];
  std::memcpy(magic, &kPageMagic, 8);
  CHECK(std::string_view(magic, 8) == "TMERPAGE");
  std::memcpy(magic, &kBoardMagic, 8);
  CHECK(std::string_view(magic, 8) == "TMRBOARD");
  CHECK(kPageVersion == 1);
  CHECK(kBoardVersion == 1);
  CHECK(kBoardBytes == 4096);
  CHECK(kMemoryPage == 4096);
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();  // 2^63-1
  CHECK(slot_word::kFree == 0);
  CHECK(slot_word::kNoDeadline == (kMax >> 1) + 1);
  CHECK(slot_word::kPaused == slot_word::kNoDeadline + (kMax >> 2) + 1);
  CHECK(slot_word::kIdleWatch == -kMax + 1);
  CHECK(slot_word::kJudged == -kMax - 1);
  CHECK(slot_word::kReleasedLate == -kMax);
  CHECK(kWakeAlways == kMax);
  CHECK(kWakeNever == -kMax - 1);
  CHECK(kServersGrace == 0xFFFF'FFFF);
  CHECK(kNoSigkill == 0xFFFF'FFFE);
  CHECK(kLongestGraceMs == 0xFFFF'FFFD);
  CHECK(kLongestSoft.count() == 0xFFFF'FFFF);
  CHECK(slot_flag::kWholeProcess == 1);
  CHECK(slot_flag::kThreadEnded == 2);
  CHECK(slot_flag::kSignalFirst == 64);
  CHECK(page_flag::kStatistics == 1);
  CHECK(page_flag::kMadeByServer == 2);
  CHECK(static_cast<int>(ServerState::kServing) == 1);
  CHECK(static_cast<int>(ServerState::kStopped) == 2);
  CHECK(kHistogramBuckets == 304);
  CHECK(kEndedScopes == 16);
  CHECK(kMaxWorkers == 4096);
  CHECK(kMaxScopesPerWorker == 1024);
  CHECK(kMaxStatistics == 1024);
  CHECK(kMaxScopeNameBytes == 255);
  CHECK(kMaxPageNameBytes == 64);
  CHECK(kMaxLineBytes == 4097);
  CHECK(kMaxTimeout == std::chrono::seconds{1'000'000'000});
}

}  // namespace
}  // namespace filetimer
