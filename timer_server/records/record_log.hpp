// The log: a file of records, one JSON object a line.
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

// Appends records to the log on a thread of its own, because a full disk or a hung file server may
// take any time to answer. A record is synced when fdatasync() has returned after it was written.
// Records that cannot be written wait in memory, up to kMaxLogBacklogBytes, and are
// written in order later.
//
//   const std::uint64_t number = log->append(record);
//   ...                                          // event_fd() is readable
//   if (log->synced() >= number) { ... }
//
// append() never waits for a device. All members may be called from any thread; the server calls
// them from its loop.
class RecordLog {
 public:
  struct Settings {
    std::string path;
    std::uint64_t max_bytes = 0;           // a file of this size is renamed to PATH.1
    std::chrono::milliseconds retry{500};  // between attempts to write after a failure
  };

  class Writer;
  // Opens the file, or makes it with mode 0600. Fails if the file cannot be opened.
  static Result<std::unique_ptr<RecordLog>> open(Settings settings);
  // Drops records that were not written: call drain() before. Abandons the thread if it hangs in a
  // system call; the thread owns what it uses.
  ~RecordLog();
  RecordLog(const RecordLog&) = delete;
  RecordLog& operator=(const RecordLog&) = delete;

  // Queues a record, which is a JSON object without a newline, and returns its number, from 1.
  // Drops the record and returns the number of the previous one if the backlog would be longer than
  // kMaxLogBacklogBytes with this record.
  std::uint64_t append(std::string record);
  // Queues a record likewise, but drops it already if the backlog would be longer than
  // kMaxLogBacklogBytesOfDetails: the rest is for verdicts and outcomes.
  std::uint64_t append_detail(std::string record);
  // Queues records that are written and synced together. Returns the number of the last.
  std::uint64_t append(std::vector<std::string> records);
  // Keeps the thread from beginning with the records that are appended in its lifetime: it would
  // compete with the signals of their kills for the processors.
  class Hold {
   public:
    explicit Hold(RecordLog& log);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Writer& writer_;
  };

  // Returns the number of the last record that is synced.
  [[nodiscard]] std::uint64_t synced() const;
  // Returns an eventfd that is written to when synced() has grown or a message waits. A loop that
  // watches it with EPOLLET need not read it.
  [[nodiscard]] int event_fd() const;

  // Returns false if the last attempt to write failed, or has taken longer than kStalled. A hook
  // then does not wait for its record.
  [[nodiscard]] bool is_working(Instant now) const;
  static constexpr Duration kStalled = std::chrono::milliseconds{250};

  // Returns when is_working() turns false, if the write under way does not end before; never() if
  // it does not work now, or has nothing to write.
  [[nodiscard]] Instant stalls_at(Instant now) const;
  // Returns a line for the server's standard error if the log has failed, fails for another reason,
  // or works again since the last call. Sets `is_good_news` if the log works again. Returns an
  // empty string otherwise.
  std::string take_message(Instant now, bool& is_good_news);
  struct Backlog {
    std::uint64_t records = 0;  // that are not synced
    // Of those that are not written, are being written, or were written before a sync that failed:
    std::size_t bytes = 0;
    Instant oldest = Instant::never();  // when the first one was appended
  };
  // Returns what waits in memory.
  [[nodiscard]] Backlog backlog() const;
  // Returns how many bytes of lists a verdict may have, so that the backlog has room for outcomes.
  [[nodiscard]] std::size_t room_for_details() const;
  // Returns the number of records that were dropped because the backlog was full.
  [[nodiscard]] std::uint64_t lost_records() const;

  // Opens the file at the path again: a log rotator has renamed the old one.
  void reopen();
  // Waits until all records are synced, at most `bound`. Returns whether they are.
  bool drain(Duration bound);

  [[nodiscard]] const std::string& path() const;

 private:
  explicit RecordLog(std::shared_ptr<Writer> writer);

  std::shared_ptr<Writer> writer_;  // shared with the thread, which may outlive the log
  std::thread thread_;
};

}  // namespace filetimer
