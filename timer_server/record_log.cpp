// SPDX-License-Identifier: MIT
#include "timer_server/record_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "timer_server/realtime.hpp"

namespace filetimer {
namespace {

// How often the end of a log is read before it counts as half a line.
constexpr int kLooksAtHalfLine = 8;

// How long the destructor waits for the thread to come back from a system call.
constexpr std::chrono::milliseconds kJoinLimit{100};

Result<UniqueFd> open_log(const std::string& path) {
  // NONBLOCK only for the opening of what is no regular file (a FIFO without a reader).
  UniqueFd fd(::open(path.c_str(),
                     O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600));
  if (!fd) {
    return system_error(fmt::format("cannot open the log '{}'", path));
  }
  return fd;
}

// A server that was killed, or a disk that was full, may have left half a line.
bool ends_in_half_line(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  for (int look = 0; fd && look < kLooksAtHalfLine; ++look) {
    struct stat st {};
    char last = '\n';
    const bool is_half = ::fstat(fd.get(), &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 &&
                         ::pread(fd.get(), &last, 1, st.st_size - 1) == 1 && last != '\n';
    if (!is_half) {
      return false;
    }
    // Another server may be in the middle of a write: the size of a file grows page by page. This
    // call takes the lock of the file, and so waits for the end of the write.
    (void)::lseek(fd.get(), 0, SEEK_DATA);
  }
  return static_cast<bool>(fd);
}

}  // namespace

class RecordLog::Writer {
 public:
  Writer(Settings settings, UniqueFd file, UniqueFd event_fd)
      : settings_(std::move(settings)),
        event_fd_(std::move(event_fd)),
        file_(std::move(file)),
        half_line_(ends_in_half_line(settings_.path)) {}

  void run();

  std::uint64_t append(std::string record);
  void acknowledge();
  bool is_working(Instant now) const;
  std::string take_news(Instant now, bool& is_good_news);
  void reopen();
  bool drain(Duration bound);
  bool stop(std::chrono::milliseconds bound);

  const Settings settings_;
  const UniqueFd event_fd_;
  std::atomic<std::uint64_t> synced_{0};  // stored by the thread, loaded by the loop

  std::uint64_t lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

 private:
  struct Entry {
    std::uint64_t number;
    std::string line;
  };

  Status write_batch(std::deque<Entry>& batch);
  bool is_at_path() const;
  Status ensure_open();
  Status write_line(const std::string& line);
  Status sync() const;
  void rotate_if_large();
  void wake_loop() const;

  // The thread's own.
  UniqueFd file_;
  bool half_line_;  // half a line stands at the end of the file
  std::uint64_t written_ = 0;

  // Shared, under mutex_, which is never held during input or output.
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable progress_;
  std::deque<Entry> queue_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t last_number_ = 0;
  std::uint64_t lost_ = 0;
  std::string trouble_;                    // why the last attempt failed; empty: it did not
  std::string told_;                       // what take_news said last
  Instant busy_since_ = Instant::never();  // never: the thread is not at work
  bool reopen_ = false;
  bool stopping_ = false;
  bool finished_ = false;
};

std::uint64_t RecordLog::Writer::append(std::string record) {
  record += '\n';
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (queued_bytes_ + record.size() > kMaxLogBacklogBytes) {
      ++lost_;
      return last_number_;
    }
    number = ++last_number_;
    queued_bytes_ += record.size();
    queue_.push_back({number, std::move(record)});
  }
  work_.notify_one();
  return number;
}

void RecordLog::Writer::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (queue_.empty() && !reopen_) {
      work_.wait(lock);
      continue;
    }
    std::deque<Entry> batch;
    batch.swap(queue_);
    if (std::exchange(reopen_, false)) {
      file_.reset();
    }
    busy_since_ = Instant::now();
    lock.unlock();

    Status done = write_batch(batch);
    const Status on_disk = sync();
    if (on_disk) {
      synced_.store(written_, std::memory_order_release);
    } else if (done) {
      done = on_disk;
    }

    lock.lock();
    busy_since_ = Instant::never();
    // What is left goes back in front of what came meanwhile.
    for (; !batch.empty(); batch.pop_back()) {
      queue_.push_front(std::move(batch.back()));
    }
    queued_bytes_ = 0;
    for (const Entry& entry : queue_) {
      queued_bytes_ += entry.line.size();
    }
    trouble_ = done ? std::string{} : done.error().message;
    progress_.notify_all();
    wake_loop();
    if (!done && !stopping_) {
      work_.wait_for(lock, settings_.retry, [this] { return stopping_ || reopen_; });
    }
  }
  finished_ = true;
  progress_.notify_all();
}

Status RecordLog::Writer::write_batch(std::deque<Entry>& batch) {
  // Also without a record: a log rotator that sent SIGHUP looks for the new file.
  for (;;) {
    if (Status open = ensure_open(); !open) {
      return open;
    }
    if (batch.empty()) {
      return {};
    }
    if (Status line = write_line(batch.front().line); !line) {
      return line;
    }
    written_ = batch.front().number;
    batch.pop_front();
    rotate_if_large();
  }
}

// False when the open file was removed or moved, or another one is at the path.
bool RecordLog::Writer::is_at_path() const {
  struct stat ours {};
  struct stat at_path {};
  if (::fstat(file_.get(), &ours) != 0) {
    return false;
  }
  if (::stat(settings_.path.c_str(), &at_path) != 0) {
    return errno != ENOENT;
  }
  return at_path.st_ino == ours.st_ino && at_path.st_dev == ours.st_dev;
}

// The file at the path may have been removed or moved since the last record: then a new one is
// made there.
Status RecordLog::Writer::ensure_open() {
  struct stat ours {};
  const bool is_known = file_ && ::fstat(file_.get(), &ours) == 0;
  if (is_known && (!S_ISREG(ours.st_mode) || is_at_path())) {
    return {};
  }
  auto opened = open_log(settings_.path);
  if (!opened) {
    return tl::unexpected<Error>(std::move(opened.error()));
  }
  file_ = std::move(*opened);
  half_line_ = ends_in_half_line(settings_.path);
  return {};
}

Status RecordLog::Writer::write_line(const std::string& line) {
  const auto write_all = [&](const std::string& text) -> Status {
    const off_t before = ::lseek(file_.get(), 0, SEEK_END);
    const ssize_t put = retry_eintr([&] { return ::write(file_.get(), text.data(), text.size()); });
    if (put == static_cast<ssize_t>(text.size())) {
      half_line_ = false;
      return {};
    }
    const int reason = put < 0 ? errno : ENOSPC;  // a short write to a file means that it is full
    if (put > 0) {
      // Take the half line back, unless another server has written behind it.
      half_line_ = ::lseek(file_.get(), 0, SEEK_END) != before + put ||
                   ::ftruncate(file_.get(), before) != 0;
    }
    return system_error(fmt::format("cannot write to the log '{}'", settings_.path), reason);
  };
  return write_all(half_line_ ? "\n" + line : line);
}

Status RecordLog::Writer::sync() const {
  if (!file_ || ::fdatasync(file_.get()) == 0 || errno == EINVAL || errno == ENOTSUP) {
    return {};  // a pipe or a terminal has nothing to sync
  }
  return system_error(fmt::format("cannot sync the log '{}'", settings_.path));
}

void RecordLog::Writer::rotate_if_large() {
  struct stat st {};
  if (::fstat(file_.get(), &st) != 0 || !S_ISREG(st.st_mode) ||
      static_cast<std::uint64_t>(st.st_size) < settings_.max_bytes) {
    return;
  }
  // The old file is not looked at again. Only a crash of the machine right now would show that this
  // was left out.
  (void)sync();
  // Of the servers that share this log, the one that holds the lock of the full file renames it.
  // The path may name the next file by then, which must not replace this one.
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return;
  }
  if (!is_at_path() || ::rename(settings_.path.c_str(), (settings_.path + ".1").c_str()) == 0) {
    file_.reset();  // and its lock
  } else {
    ::flock(file_.get(), LOCK_UN);
  }
}

void RecordLog::Writer::wake_loop() const {
  const std::uint64_t one = 1;
  (void)!::write(event_fd_.get(), &one, sizeof one);  // full means that it is readable already
}

void RecordLog::Writer::acknowledge() {
  std::uint64_t count = 0;
  (void)!::read(event_fd_.get(), &count, sizeof count);
}

bool RecordLog::Writer::is_working(Instant now) const {
  const std::lock_guard lock(mutex_);
  return trouble_.empty() && (busy_since_.is_never() || now - busy_since_ <= kStalled);
}

std::string RecordLog::Writer::take_news(Instant now, bool& is_good_news) {
  const std::lock_guard lock(mutex_);
  std::string state = trouble_;
  if (state.empty() && !busy_since_.is_never() && now - busy_since_ > kStalled) {
    state = fmt::format("the log '{}' does not answer", settings_.path);
  }
  if (state.empty() && !told_.empty() && !busy_since_.is_never()) {
    return {};  // an attempt is under way: not better yet
  }
  if (state == told_) {
    return {};
  }
  told_ = state;
  is_good_news = state.empty();
  if (is_good_news) {
    return fmt::format("the log '{}' can be written again{}", settings_.path,
                       lost_ == 0 ? std::string{} : fmt::format("; {} records were lost", lost_));
  }
  return fmt::format("{}; records wait in memory and kills go on", state);
}

void RecordLog::Writer::reopen() {
  {
    const std::lock_guard lock(mutex_);
    reopen_ = true;
  }
  work_.notify_one();
}

bool RecordLog::Writer::drain(Duration bound) {
  std::unique_lock lock(mutex_);
  return progress_.wait_for(
      lock, bound, [this] { return synced_.load(std::memory_order_relaxed) == last_number_; });
}

bool RecordLog::Writer::stop(std::chrono::milliseconds bound) {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  work_.notify_one();
  return progress_.wait_for(lock, bound, [this] { return finished_; });
}

Result<std::unique_ptr<RecordLog>> RecordLog::open(Settings settings) {
  auto file = open_log(settings.path);
  if (!file) {
    return tl::unexpected<Error>(std::move(file.error()));
  }
  UniqueFd event_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_fd) {
    return system_error("cannot make an eventfd");
  }
  return std::unique_ptr<RecordLog>(new RecordLog(
      std::make_shared<Writer>(std::move(settings), std::move(*file), std::move(event_fd))));
}

RecordLog::RecordLog(std::shared_ptr<Writer> writer)
    : writer_(std::move(writer)), thread_([writer = writer_] {
        if (writer->settings_.realtime) {
          (void)enter_realtime();  // the loop has told the user when it may not
        }
        writer->run();
      }) {}

RecordLog::~RecordLog() {
  if (writer_->stop(kJoinLimit)) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

std::uint64_t RecordLog::append(std::string record) {
  return writer_->append(std::move(record));
}
std::uint64_t RecordLog::synced() const {
  return writer_->synced_.load(std::memory_order_acquire);
}
int RecordLog::event_fd() const {
  return writer_->event_fd_.get();
}
void RecordLog::acknowledge() {
  writer_->acknowledge();
}
bool RecordLog::is_working(Instant now) const {
  return writer_->is_working(now);
}
std::string RecordLog::take_news(Instant now, bool& is_good_news) {
  return writer_->take_news(now, is_good_news);
}
std::uint64_t RecordLog::lost_records() const {
  return writer_->lost();
}
void RecordLog::reopen() {
  writer_->reopen();
}
bool RecordLog::drain(Duration bound) {
  return writer_->drain(bound);
}
const std::string& RecordLog::path() const {
  return writer_->settings_.path;
}

}  // namespace filetimer
