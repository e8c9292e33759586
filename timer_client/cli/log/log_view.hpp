// Which records `timer_client log` shows, and what a record looks like as a row of its table.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "timer_client/cli/log/log_reader.hpp"
#include "timer_client/cli/text/table.hpp"

namespace filetimer::cli {

// Every event that a log of schema 1 may hold.
std::span<const std::string_view> known_events();
bool is_known_event(std::string_view event);

struct LogFilter {
  std::vector<std::string> events;  // none: all but those that are long and of use elsewhere
  bool with_details = false;        // those too
  std::optional<std::string> scope;
  std::optional<std::int64_t> rank;
  std::optional<std::int64_t> pid;
  std::optional<std::string> host;
  std::optional<std::int64_t> since_us;

  [[nodiscard]] bool is_late_enough(const Record& record) const;
  // Whether it chooses by more than time.
  [[nodiscard]] bool is_narrow() const;
  [[nodiscard]] bool admits(const Record& record) const;
};

// What a record says beyond who and when, in a few words.
std::string in_few_words(const Record& record);

struct TableUse {
  bool followed = false;       // keeps room for rows to come
  bool several_files = false;  // which may be of several hosts
  bool colour = false;
};

// The records as rows. Where all are of one day, the day stands in the title of the first column
// and gives its room to the last one.
class LogTable {
 public:
  LogTable(std::span<const Record> records, const TableUse& use);

  std::string text() { return table_.text(); }
  // A record that came after text().
  [[nodiscard]] std::string line(const Record& record) const { return table_.line(row(record)); }

 private:
  [[nodiscard]] Row row(const Record& record) const;

  bool one_day_;
  Table table_;
};

}  // namespace filetimer::cli
