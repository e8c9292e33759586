// The log: a file of records, one JSON object a line.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/system/mutex.hpp"

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

  // Opens the file, or makes it with mode 0600. Fails if the file cannot be opened. The last copy
  // of the pointer ends the thread, and drops records that were not written: call drain() before. A
  // thread that hangs in a system call is abandoned; it shares the log.
  static Result<std::shared_ptr<RecordLog>> open(Settings settings);

  // Queues a record, which is a JSON object without a newline, and returns its number, from 1.
  // Drops the record and returns the number of the previous one if the backlog would be longer than
  // kMaxLogBacklogBytes with this record.
  std::uint64_t append(std::string record) { return append({&record, 1}, kMaxLogBacklogBytes); }
  // Queues a record likewise, but drops it already if the backlog would be longer than
  // kMaxLogBacklogBytesOfDetails: the rest is for verdicts and outcomes.
  std::uint64_t append_detail(std::string record) {
    return append({&record, 1}, kMaxLogBacklogBytesOfDetails);
  }
  // Queues records that are written and synced together. Returns the number of the last.
  std::uint64_t append(std::vector<std::string> records) {
    return append(records, kMaxLogBacklogBytes);
  }
  // Keeps the thread from beginning with the records that are appended in its lifetime: it would
  // compete with the signals of their kills for the processors.
  class Hold : NotCopied {
   public:
    explicit Hold(RecordLog& log) : log_(log) { log_.hold(true); }
    ~Hold() { log_.hold(false); }

   private:
    RecordLog& log_;
  };

  // Returns the number of the last record that is synced.
  [[nodiscard]] std::uint64_t synced() const { return synced_.load(std::memory_order_acquire); }
  // Returns an eventfd that is written to when synced() or failure() has changed. A loop that
  // watches it with EPOLLET need not read it.
  [[nodiscard]] int event_fd() const { return event_fd_.get(); }

  // Returns why the last attempt to write failed, or that it has taken longer than kStalled. Empty:
  // the log works. Each change is written to standard error.
  [[nodiscard]] std::string failure() const;
  static constexpr Duration kStalled = std::chrono::milliseconds{250};

  // Notes that the write under way has taken too long. Returns when to call it again, if that write
  // does not end before; never() if the log does not work now, or has nothing to write.
  Instant note_stall(Instant now);
  struct Backlog {
    std::uint64_t records = 0;  // that are not synced
    // Of those that are not written, are being written, or were written before a sync that failed:
    std::size_t bytes = 0;
    Instant oldest = Instant::never();  // when the first one was appended
    std::uint64_t lost = 0;             // dropped since the start, because the backlog was full
  };
  // Returns what waits in memory.
  [[nodiscard]] Backlog backlog() const;
  // Returns how many bytes of lists a verdict may have, so that the backlog has room for outcomes.
  [[nodiscard]] std::size_t room_for_details() const {
    return kMaxLogBacklogBytesOfDetails - std::min(backlog().bytes, kMaxLogBacklogBytesOfDetails);
  }

  // Opens the file at the path again: a log rotator has renamed the old one.
  void reopen();
  // Waits until all records are synced, at most `bound`. Returns whether they are.
  bool drain(Duration bound);

  [[nodiscard]] const std::string& path() const { return settings_.path; }

 private:
  struct Entry {
    std::uint64_t number;
    Instant appended;
    std::string line;
  };
  RecordLog(Settings settings, UniqueFd file, UniqueFd event_fd);
  std::uint64_t append(std::span<std::string> records, std::size_t most_bytes);
  static Instant oldest_of(const std::list<Entry>& entries);
  void hold(bool is_held);
  void run();
  void stop();
  [[nodiscard]] bool is_busy() const FILETIMER_REQUIRES(mutex_) { return !busy_since_.is_never(); }
  // After a failure the file is opened and synced again though no record waits: then it is known
  // that the log works again.
  [[nodiscard]] bool has_work() const FILETIMER_REQUIRES(mutex_) {
    return !is_held_ && (!queue_.empty() || reopen_ || !failure_.empty());
  }
  Status write_and_sync();
  void end_attempt(const Status& done) FILETIMER_REQUIRES(mutex_);
  Status write_some();
  void use(UniqueFd file);
  bool is_at_path();
  [[nodiscard]] bool is_linked() const;
  Status write_text(const std::string& text);
  ssize_t write_part(std::string_view text) const;
  ssize_t write_to_reader(std::string_view text);
  Status sync();
  void rotate();
  void note(std::string failure) FILETIMER_REQUIRES(mutex_);

  const Settings settings_;
  const UniqueFd event_fd_;
  std::atomic<std::uint64_t> synced_{0};  // stored by the thread

  // Used by the thread.
  UniqueFd file_;
  std::list<Entry> written_;  // not synced, in order
  std::list<Entry> entries_;  // behind these, not written
  bool wants_open_ = false;   // reopen() was called, and the file was not opened since
  bool has_lost_ = false;     // a sync has failed, and no record was synced since
  bool is_regular_ = false;
  FileIdentity identity_;        // of the file
  std::uint64_t size_ = 0;       // or less than the file has: other servers may append meanwhile
  std::uint64_t max_bytes_ = 0;  // a file that a link names is not renamed, however large it is
  bool half_line_ = false;       // the file ends in half a line

  // Is not held during input or output, so nothing waits for a file system in order to get it.
  mutable Mutex mutex_;
  std::condition_variable work_;
  std::condition_variable progress_;
  std::list<Entry> queue_ FILETIMER_GUARDED_BY(mutex_);
  std::size_t queued_bytes_ FILETIMER_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_number_ FILETIMER_GUARDED_BY(mutex_) = 0;
  std::uint64_t lost_ FILETIMER_GUARDED_BY(mutex_) = 0;
  std::string failure_ FILETIMER_GUARDED_BY(mutex_);  // see failure()
  // never(): no attempt to write is under way.
  Instant busy_since_ FILETIMER_GUARDED_BY(mutex_) = Instant::never();
  Instant oldest_entry_ FILETIMER_GUARDED_BY(mutex_) = Instant::never();
  bool is_held_ FILETIMER_GUARDED_BY(mutex_) = false;
  bool reopen_ FILETIMER_GUARDED_BY(mutex_) = false;
  bool stopping_ FILETIMER_GUARDED_BY(mutex_) = false;
  bool finished_ FILETIMER_GUARDED_BY(mutex_) = false;
};

}  // namespace filetimer
