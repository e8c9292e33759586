// Which records `timer_client log` shows, and what a record looks like as a row of its table.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "timer_client/cli/log/record.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/table.hpp"

namespace filetimer::cli {

// Returns every event that a log of schema 1 may hold.
std::span<const std::string_view> known_events();

struct LogFilter {
  std::vector<std::string> events;  // none: all but those that are long and of use elsewhere
  bool with_details = false;        // those, too
  std::optional<std::string> scope;
  std::optional<std::int64_t> rank;
  std::optional<std::int64_t> pid;
  std::optional<std::string> host;
  std::optional<std::int64_t> since_us;

  [[nodiscard]] bool is_late_enough(const Record& record) const;
  [[nodiscard]] bool admits(const Record& record) const;
};

// Returns what a record says beyond who and when, in a few words.
std::string in_few_words(const Record& record);

// The table of the records. It is printed as soon as enough of them have decided how wide the
// columns are; what comes later is printed at once and has to fit in.
class LogTable {
 public:
  // `has_end`: all records may be there before the first is printed. Else the table keeps room for
  // what may come, HOST included if `several_files` are read.
  LogTable(Output& out, bool has_end, bool several_files)
      : out_(out), has_end_(has_end), several_files_(several_files) {}

  // False if no process reads the output any more.
  bool add(const Record& record);
  // Prints what was added; no more decides the widths. Without any record: the header.
  void begin();

 private:
  static constexpr std::size_t kColumns = 8;
  static constexpr std::size_t kRowsFitted = 10'000;

  struct Kept {
    std::array<std::string, kColumns> texts;
    std::string_view colour;
    Integer day;
  };
  // The texts of one row, until the next one.
  struct Row {
    std::array<Cell, kColumns> cells;
    std::string time;
    std::string host;
    std::string rank;
    std::string pid;
    std::string what;
    Integer day;
  };

  void fill_row(const Record& record);
  [[nodiscard]] bool are_of_one_day() const;
  // Returns how wide the column HOST has to be; 0: all rows are of one host.
  std::size_t fit_hosts();
  [[nodiscard]] std::string short_host(std::string_view host) const;
  [[nodiscard]] std::vector<Column> columns(std::size_t host_width) const;

  Output& out_;
  bool has_end_;
  bool several_files_;
  std::vector<Kept> kept_;  // until the widths are decided
  std::optional<Table> table_;
  std::string title_;        // of the times, if all are of one day
  std::string host_prefix_;  // with what the names of all hosts begin, if that is long
  std::string line_;
  Row row_;
  std::string date_;  // "11-21", of date_day_
  Integer date_day_;
};

}  // namespace filetimer::cli
