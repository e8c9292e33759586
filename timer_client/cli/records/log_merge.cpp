// SPDX-License-Identifier: MIT
#include "timer_client/cli/records/log_merge.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <string_view>
#include <utility>

namespace filetimer::cli {
namespace {

// A log and the records of it that are next.
class Source {
 public:
  Source(LogFile& log, bool more_to_come) : log_(&log), more_to_come_(more_to_come) {}

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
      const auto more = log_->read_piece(collect);
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

  [[nodiscard]] Integer next_us() const { return waiting_.front().time_us; }
  Record take() {
    Record record = std::move(waiting_.front());
    waiting_.pop_front();
    return record;
  }

 private:
  LogFile* log_;
  bool more_to_come_;
  bool ended_ = false;
  Integer last_us_;
  std::deque<Record> waiting_;
};

// Copies of one log have the same lines, which come one after the other: no two records of one
// host are the same, their `mono_ns` differ.
class Repeats {
 public:
  bool is_repeated(const Record& record, std::size_t source) {
    if (record.time_us != time_us_) {
      time_us_ = record.time_us;
      lines_.clear();
    }
    const std::size_t line = std::hash<std::string_view>{}(record.raw);
    const bool repeated = std::any_of(lines_.begin(), lines_.end(), [&](const auto& known) {
      return known.first == line && known.second != source;
    });
    if (!repeated) {
      lines_.emplace_back(line, source);
    }
    return repeated;
  }

 private:
  Integer time_us_;
  std::vector<std::pair<std::size_t, std::size_t>> lines_;  // of that time
};

}  // namespace

Merged read_merged(std::vector<LogFile>& logs, bool more_to_come, const RecordReader::Sink& sink) {
  Merged merged;
  std::vector<Source> sources;
  using Next = std::pair<Integer, std::size_t>;  // of logs whose next ones are of one time in order
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  const auto queue = [&](std::size_t source) {
    if (sources[source].look(merged.problems)) {
      next.emplace(sources[source].next_us(), source);
    }
  };
  for (LogFile& log : logs) {
    sources.emplace_back(log, more_to_come);
    queue(sources.size() - 1);
  }
  Repeats repeats;
  while (!next.empty()) {
    const std::size_t source = next.top().second;
    next.pop();
    Record record = sources[source].take();
    if (logs.size() > 1 && record.time_us && repeats.is_repeated(record, source)) {
      ++merged.repeated;
    } else if (!sink(std::move(record))) {
      break;
    }
    queue(source);
  }
  return merged;
}

}  // namespace filetimer::cli
