// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/log_merge.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace filetimer::cli {
namespace {

// What all logs together have in memory, apart from records longer than their share of it.
constexpr std::size_t kAllPiecesBytes = std::size_t{16} << 20;
constexpr std::size_t kLeastPieceBytes = std::size_t{4} << 10;
constexpr std::size_t kMostPieceBytes = std::size_t{64} << 10;
// A copy that begins later than its original, behind a clock that was set back, is this far apart
// from it at most.
constexpr std::size_t kRecordsRemembered = std::size_t{1} << 16;

// A log and the records of it that are next.
class Source {
 public:
  Source(LogFile& log, std::size_t piece_bytes, bool more_to_come)
      : log_(&log), piece_bytes_(piece_bytes), more_to_come_(more_to_come) {}

  // Whether there is a record more. Fills `problems` when that cannot be told.
  bool look(std::vector<std::string>& problems) {
    while (waiting_.empty() && !ended_) {
      const RecordReader::Sink collect = [this](Record&& record) {
        // A record without a time stays behind the one that it was written after.
        record.time_us = record.time_us ? record.time_us : last_us_;
        last_us_ = record.time_us;
        waiting_.push_back(std::move(record));
        return true;
      };
      const auto more = log_->read_piece(piece_bytes_, collect);
      if (!more) {
        problems.push_back(more.error().message);
      }
      ended_ = !more || !*more;
      if (ended_ && !more_to_come_) {
        log_->finish(collect);
      }
    }
    return !waiting_.empty();
  }

  // Its place among the next ones of all logs. Records behind a clock that was set back stay where
  // it was set, and in their order: so those of a copy come next to those of its original.
  using Place = std::pair<Integer, Integer>;
  [[nodiscard]] Place next_place() {
    const Record& next = waiting_.front();
    latest_us_ = std::max(latest_us_, next.time_us);
    return {latest_us_, next.mono_ns};
  }
  Record take() {
    Record record = std::move(waiting_.front());
    waiting_.pop_front();
    return record;
  }

 private:
  LogFile* log_;
  std::size_t piece_bytes_;
  bool more_to_come_;
  bool ended_ = false;
  Integer last_us_;
  Integer latest_us_;
  std::deque<Record> waiting_;
};

// Copies of one log have the same lines, and no two records of one host are the same: their
// `mono_ns` differ.
class Repeats {
 public:
  bool is_repeated(const Record& record, std::size_t source) {
    const std::size_t line = std::hash<std::string_view>{}(record.raw);
    const auto [known, is_new] = source_of_.try_emplace(line, source);
    if (!is_new) {
      return known->second != source;
    }
    order_.push_back(line);
    if (order_.size() > kRecordsRemembered) {
      source_of_.erase(order_.front());
      order_.pop_front();
    }
    return false;
  }

 private:
  std::unordered_map<std::size_t, std::size_t> source_of_;
  std::deque<std::size_t> order_;
};

}  // namespace

Merged read_merged(std::vector<LogFile>& logs, bool more_to_come, const RecordReader::Sink& sink) {
  Merged merged;
  std::vector<Source> sources;
  using Next = std::pair<Source::Place, std::size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  const auto queue = [&](std::size_t source) {
    if (sources[source].look(merged.problems)) {
      next.emplace(sources[source].next_place(), source);
    }
  };
  const std::size_t piece_bytes = std::clamp(
      kAllPiecesBytes / std::max<std::size_t>(logs.size(), 1), kLeastPieceBytes, kMostPieceBytes);
  for (LogFile& log : logs) {
    sources.emplace_back(log, piece_bytes, more_to_come);
    queue(sources.size() - 1);
  }
  Repeats repeats;
  while (!next.empty()) {
    const std::size_t source = next.top().second;
    next.pop();
    Record record = sources[source].take();
    if (logs.size() > 1 && record.mono_ns && repeats.is_repeated(record, source)) {
      ++merged.repeated;
    } else if (!sink(std::move(record))) {
      break;
    }
    queue(source);
  }
  return merged;
}

}  // namespace filetimer::cli
