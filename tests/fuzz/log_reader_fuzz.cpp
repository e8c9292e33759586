// Any bytes as a log: read whole and in pieces, shown as a table and as pages. Invariants: the
// places of the cuts make no difference, every line is a record, skipped or empty, and all output
// is text no wider than the page.
// SPDX-License-Identifier: MIT
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/text.hpp"
#include "fuzz_check.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"

namespace {

using namespace filetimer;
using namespace filetimer::cli;

struct Reading {
  std::vector<std::string> lines;
  std::size_t skipped = 0;
};

// Returns a file in memory with these bytes.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : file_(::memfd_create("log", MFD_CLOEXEC)) {
    FUZZ_CHECK(file_ && ::write(file_.get(), bytes.data(), bytes.size()) ==
                            static_cast<ssize_t>(bytes.size()));
  }

  [[nodiscard]] LogReader reader(std::size_t block_bytes) const {
    FUZZ_CHECK(::lseek(file_.get(), 0, SEEK_SET) == 0);
    LogReader reader("log", UniqueFd(::dup(file_.get())));
    reader.set_block_bytes(block_bytes);
    return reader;
  }

 private:
  UniqueFd file_;
};

Reading read(const MemoryFile& file, std::size_t block_bytes) {
  LogReader reader = file.reader(block_bytes);
  Reading reading;
  while (const Record* const record = reader.next()) {
    FUZZ_CHECK(!record->event.empty());
    FUZZ_CHECK(record->line.find('\n') == record->line.npos);
    reading.lines.emplace_back(record->line);
  }
  reading.skipped = reader.skipped();
  return reading;
}

void check_printed(std::string_view text, std::size_t width) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    FUZZ_CHECK(end != text.npos);
    const std::string_view line = text.substr(0, end);
    FUZZ_CHECK(printable(line) == line);
    FUZZ_CHECK(display_width(line) <= width);
    text.remove_prefix(end + 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const MemoryFile file(bytes);
  const Reading whole = read(file, std::size_t{1} << 20);
  const Reading pieces = read(file, 1 + size % 13);
  const auto lines = static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n')) + 1;

  FUZZ_CHECK(whole.lines == pieces.lines);
  FUZZ_CHECK(whole.skipped == pieces.skipped);
  FUZZ_CHECK(whole.lines.size() <= lines && whole.skipped <= lines);

  const std::vector<Column> columns{text_column("EVENT"), text_column("SCOPE"),
                                    text_column("WHAT")};
  Table table(columns);
  Table growing(columns);
  std::vector<ExpiryKey> keys;
  LogReader reader = file.reader(4096);
  while (const Record* const record = reader.next()) {
    for (Table* const each : {&table, &growing}) {
      each->add({{record->event}, {record->scope}, {in_few_words(*record)}});
    }
    check_printed(growing.text(Rows::kMoreCome), std::string::npos);
    if (!record->id.empty()) {
      keys.push_back(
          {std::string(record->host), std::string(record->id), record->pid, record->time_us});
    }
  }
  check_printed(table.text(), std::string::npos);
  for (std::size_t i = 0; i < keys.size(); i += std::max(keys.size() - 1, std::size_t{1})) {
    IncidentRecords records(keys[i]);  // the first and the last one
    FUZZ_CHECK(reader.rewind());
    while (const Record* const record = reader.next()) {
      records.take(*record);
    }
    check_printed(expiry_page(records, read_incident(records), {}), kPageWidth);
  }
  return 0;
}
