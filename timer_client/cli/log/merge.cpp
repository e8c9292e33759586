// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/merge.hpp"

#include <algorithm>
#include <queue>
#include <utility>

namespace filetimer::cli {
namespace {

// What the blocks of all logs together have in memory, unless records are longer than a block.
constexpr std::size_t kAllBlocksBytes = std::size_t{16} << 20;
constexpr std::size_t kLeastBlockBytes = std::size_t{4} << 10;
constexpr std::size_t kMostBlockBytes = std::size_t{64} << 10;

// A log whose next line is known.
class Source {
 public:
  explicit Source(LogReader& log) : log_(&log) {}

  // False at the end of the log.
  bool go_on() {
    const Record* const record = log_->next();
    if (record == nullptr) {
      return false;
    }
    line_ = record->line;
    // Records behind a clock that was set back, or without a time, stay where they are in their
    // log.
    latest_us_ = std::max(latest_us_, record->time_us);
    mono_ns_ = record->mono_ns;
    return true;
  }
  [[nodiscard]] std::string_view line() const { return line_; }
  // Its place among the next lines of all logs.
  [[nodiscard]] std::pair<Integer, Integer> place() const { return {latest_us_, mono_ns_}; }

 private:
  LogReader* log_;
  std::string_view line_;
  Integer latest_us_;
  Integer mono_ns_;
};

}  // namespace

void read_merged(std::vector<LogReader>& logs, const std::function<bool(const Record&)>& sink) {
  if (logs.size() == 1) {
    while (const Record* const record = logs[0].next()) {
      if (!sink(*record)) {
        return;
      }
    }
    return;
  }
  std::vector<Source> sources;
  using Next = std::pair<std::pair<Integer, Integer>, std::size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  const auto queue = [&](std::size_t source) {
    if (sources[source].go_on()) {
      next.emplace(sources[source].place(), source);
    }
  };
  for (LogReader& log : logs) {
    log.set_block_bytes(
        std::clamp(kAllBlocksBytes / logs.size(), kLeastBlockBytes, kMostBlockBytes));
    sources.emplace_back(log);
    queue(sources.size() - 1);
  }
  while (!next.empty()) {
    const std::size_t source = next.top().second;
    next.pop();
    // Parsed again: the records of other logs have used the parser since. Whole records of all logs
    // would take more memory than that takes time.
    const auto record = parse_record(sources[source].line());
    if (record && !sink(*record)) {
      return;
    }
    queue(source);
  }
}

}  // namespace filetimer::cli
