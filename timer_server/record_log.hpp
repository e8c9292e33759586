// Appends records to expired.jsonl on a thread of its own, because a file system may take any time
// to answer (a full disk, a hung NFS). append() never waits. A record counts as synced when
// fdatasync has returned behind it. What cannot be written is kept, up to kMaxLogBacklogBytes, and
// written in order when it can be again.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/result.hpp"

namespace filetimer {

class RecordLog {
 public:
  struct Settings {
    std::string path;
    std::uint64_t max_bytes = 0;           // past this it is renamed to PATH.1
    std::chrono::milliseconds retry{500};  // between attempts while it can't be written
    bool realtime = false;  // the thread takes part in the way from a deadline to its signal
  };

  // Opens the file at once, so that a wrong path is told at start.
  static Result<std::unique_ptr<RecordLog>> open(Settings settings);
  // Does not wait for records (call drain() first). A thread that hangs in a system call is left
  // behind with what it needs.
  ~RecordLog();
  RecordLog(const RecordLog&) = delete;
  RecordLog& operator=(const RecordLog&) = delete;

  // Queues a record (a JSON object without its newline) and returns its number. A record with which
  // the backlog would be longer than `most_bytes` is lost.
  std::uint64_t append(std::string record, std::size_t most_bytes = kMaxLogBacklogBytes);
  // Queues records that are written and synced together. Returns the number of the last.
  std::uint64_t append(std::vector<std::string> records);
  // All records up to this number are on disk.
  [[nodiscard]] std::uint64_t synced() const;
  // Becomes readable when synced() has grown or there is news; acknowledge() clears it.
  [[nodiscard]] int event_fd() const;
  void acknowledge();

  // False while the last attempt failed or has not come back for longer than kStalled: a kill then
  // does not wait for the log at all.
  [[nodiscard]] bool is_working(Instant now) const;
  static constexpr Duration kStalled = std::chrono::milliseconds{250};

  // One line for the daemon's messages when something has changed for the worse or the better;
  // empty when not. `is_good_news` tells which.
  std::string take_news(Instant now, bool& is_good_news);
  // Records that were dropped because the backlog was full.
  [[nodiscard]] std::uint64_t lost_records() const;

  // Opens the file anew before the next record (a log rotator moved it).
  void reopen();
  // Waits until everything is on disk, at most `bound`. False when it is not.
  bool drain(Duration bound);

  [[nodiscard]] const std::string& path() const;

 private:
  class Writer;
  explicit RecordLog(std::shared_ptr<Writer> writer);

  std::shared_ptr<Writer> writer_;  // shared with the thread, which may outlive us
  std::thread thread_;
};

}  // namespace filetimer
