// Any bytes as a log: read whole and in pieces, shown as a table and as pages. What holds: where
// the bytes are cut makes no difference, every line is a record, skipped or empty, and nothing that
// is printed is wider than the page or more than text.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/text.hpp"
#include "fuzz_check.hpp"
#include "timer_client/cli/log/expiry.hpp"
#include "timer_client/cli/log/expiry_page.hpp"
#include "timer_client/cli/log/hang_page.hpp"
#include "timer_client/cli/log/log_reader.hpp"
#include "timer_client/cli/log/log_view.hpp"

namespace {

using namespace filetimer;
using namespace filetimer::cli;

struct Reading {
  std::vector<Record> records;
  std::size_t skipped = 0;
};

Reading read(std::string_view bytes, std::size_t piece) {
  RecordReader reader;
  Reading reading;
  const auto sink = [&](Record&& record) {
    reading.records.push_back(std::move(record));
    return true;
  };
  while (!bytes.empty()) {
    const std::size_t length = std::min(piece, bytes.size());
    FUZZ_CHECK(reader.feed(bytes.substr(0, length), sink));
    bytes.remove_prefix(length);
  }
  FUZZ_CHECK(reader.finish(sink));
  reading.skipped = reader.skipped();
  return reading;
}

void check_printed(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    FUZZ_CHECK(end != text.npos);
    const std::string_view line = text.substr(0, end);
    FUZZ_CHECK(printable(line) == line);
    FUZZ_CHECK(utf8_length(line) <= kPageWidth);
    text.remove_prefix(end + 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Reading whole = read(bytes, bytes.size());
  const Reading pieces = read(bytes, 1 + size % 13);
  const auto lines = static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n')) + 1;

  FUZZ_CHECK(whole.records.size() == pieces.records.size());
  FUZZ_CHECK(whole.skipped == pieces.skipped);
  FUZZ_CHECK(whole.records.size() <= lines && whole.skipped <= lines);
  for (std::size_t i = 0; i < whole.records.size(); ++i) {
    const Record& record = whole.records[i];
    FUZZ_CHECK(record.raw == pieces.records[i].raw);
    FUZZ_CHECK(!record.event.empty());
    FUZZ_CHECK(record.raw.find('\n') == record.raw.npos);
  }
  check_printed(LogTable(whole.records, {}).text());
  LogTable followed({}, {.followed = true, .several_files = true});
  check_printed(followed.text());
  for (const Record& record : whole.records) {
    check_printed(followed.line(record));
  }
  ExpiryIds ids;
  HangFinder hangs(kClocksUs);
  for (const Record& record : whole.records) {
    ids.take(record);
    hangs.take(record);
  }
  hangs.finish();
  check_printed(hangs_page(hangs, false));
  for (const std::string_view wanted : {"last", "k", ""}) {
    if (const auto key = ids.find(wanted, {}, "the log")) {
      check_printed(expiry_page(gather_expiry(whole.records, *key), false));
    }
  }
  return 0;
}
