// The records that `timer_client log` shows, and the rows of its table.
// SPDX-License-Identifier: MIT
#pragma once

#include "timer_client/cli/log/reader.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {

// Returns every event that a log of schema 1 may hold.
std::vector<std::string> known_events();

struct LogFilter {
  std::vector<std::string> events;  // none: all but those that are long and of use elsewhere
  bool with_details = false;        // those, too
  std::optional<std::string> scope;
  std::optional<std::int64_t> rank;
  std::optional<std::int64_t> pid;
  std::optional<std::string> host;
  std::optional<std::int64_t> since_us;
  std::optional<std::int64_t> until_us;

  [[nodiscard]] bool is_in_time(const Record& record) const;
  [[nodiscard]] bool admits(const Record& record) const;
};

// Returns what a record says beyond who and when, in a few words.
std::string in_few_words(const Record& record);

// The table of the records. Its first rows are kept until they are enough to decide how wide the
// columns are, or until print(); the rest is printed at once.
class LogTable {
 public:
  explicit LogTable(Output& out);

  // Return false if no process reads the output any more.
  bool add(const Record& record);
  // Prints what was not printed yet. If more may come, the columns have room for it.
  bool print(Rows rows);

 private:
  static constexpr std::size_t kRowsFitted = 1'000;

  Output& out_;
  const std::string zone_;  // of now
  Table table_;
  std::size_t rows_ = 0;
};

}  // namespace filetimer::cli
