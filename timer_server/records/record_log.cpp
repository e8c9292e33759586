// SPDX-License-Identifier: MIT
#include "timer_server/records/record_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <new>

#include "timer_server/system/messages.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {
namespace {

// How often the end of a log is read before it counts as half a line.
constexpr int kLooksAtHalfLine = 8;
// The most bytes of waiting records that one write takes.
constexpr std::size_t kMostAtOnce = std::size_t{64} << 10;
// How often a thread that waits for the reader of a pipe looks whether it is to go on.
constexpr int kReaderLookMs = 50;
// How long stop() waits for a system call of the thread.
constexpr std::chrono::milliseconds kStopLimit{100};

Result<UniqueFd> open_log(const std::string& path) {
  // O_NONBLOCK: opening a FIFO would wait for its reader.
  UniqueFd fd(::open(path.c_str(),
                     O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600));
  if (!fd) {
    return system_error(fmt::format("cannot open the log '{}'", path));
  }
  return fd;
}

// Returns whether the file ends without a newline. A server that was killed, or a full disk, may
// have left half a line.
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

RecordLog::RecordLog(Settings settings, UniqueFd file, UniqueFd event_fd)
    : settings_(std::move(settings)), event_fd_(std::move(event_fd)) {
  use(std::move(file));
  // With --log /dev/stderr and 2>FILE, other text on standard error must not overwrite records.
  for (const int standard : {STDOUT_FILENO, STDERR_FILENO}) {
    if (is_regular_ && identity_of(standard) == identity_) {
      ::fcntl(standard, F_SETFL, ::fcntl(standard, F_GETFL) | O_APPEND);
    }
  }
}

Instant RecordLog::oldest_of(const std::list<Entry>& entries) {
  return entries.empty() ? Instant::never() : entries.front().appended;
}

std::uint64_t RecordLog::append(std::span<std::string> records, std::size_t most_bytes) {
  const Instant now = Instant::now();
  std::list<Entry> entries;  // all of the records, or none for want of memory
  for (std::string& record : records) {
    record += '\n';
    entries.push_back({0, now, std::move(record)});
  }
  const MutexLock lock(mutex_);
  while (!entries.empty()) {
    Entry& entry = entries.front();
    if (queued_bytes_ + entry.line.size() > most_bytes) {
      ++lost_;
      entries.pop_front();
      continue;
    }
    queued_bytes_ += entry.line.size();
    entry.number = ++last_number_;
    queue_.splice(queue_.end(), entries, entries.begin());
  }
  if (has_work()) {
    work_.notify_one();
  }
  return last_number_;
}

void RecordLog::run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (!has_work()) {
      work_.wait(lock);
      continue;
    }
    wants_open_ = std::exchange(reopen_, false) || wants_open_;
    entries_.splice(entries_.end(), queue_);  // they are this thread's until end_attempt()
    oldest_entry_ = std::min(oldest_of(written_), oldest_of(entries_));
    busy_since_ = Instant::now();
    lock.unlock();
    Status done;
    try {
      done = write_and_sync();
    } catch (const std::exception& error) {  // no memory for the text
      done = filetimer::failure(error.what(), ENOMEM);
    }
    lock.lock();
    end_attempt(done);
    // Without the lock, so that the loop does not wait for it.
    lock.unlock();
    (void)::eventfd_write(event_fd_.get(), 1);
    lock.lock();
    if (!done && !stopping_) {
      const auto until = std::chrono::steady_clock::now() + settings_.retry;
      while (!stopping_ && !reopen_ &&
             work_.wait_until(lock, until) == std::cv_status::no_timeout) {
      }
    }
  }
  finished_ = true;
  progress_.notify_all();
}

// The file is opened even if there is no record: a log rotator that sent SIGHUP expects the new
// file, and readers find a new one before its first record.
Status RecordLog::write_and_sync() {
  do {
    if (!file_ || wants_open_ || (is_regular_ && !is_at_path())) {
      FILETIMER_TRY(sync());  // before the old file is closed
      auto opened = open_log(settings_.path);
      FILETIMER_TRY(opened);
      use(std::move(*opened));  // the old file is closed now: a pipe keeps its reader
      wants_open_ = false;
    }
    const Status written = write_some();
    const bool is_full = is_regular_ && size_ >= max_bytes_;
    if (!written || has_lost_ || is_full || entries_.empty()) {
      const Status on_disk = sync();
      FILETIMER_TRY(written);
      FILETIMER_TRY(on_disk);
    }
    if (is_full) {
      rotate();
    }
  } while (!file_ || !entries_.empty());
  return {};
}

void RecordLog::end_attempt(const Status& done) {
  // The file server may not know the file any more, or another file may be at the path. A pipe
  // would lose its reader.
  if (!done && is_regular_) {
    file_.reset();
  }
  busy_since_ = Instant::never();
  oldest_entry_ = std::min(oldest_of(written_), oldest_of(entries_));
  queued_bytes_ = 0;
  for (const auto* const entries : {&written_, &entries_, &queue_}) {
    for (const Entry& entry : *entries) {
      queued_bytes_ += entry.line.size();
    }
  }
  try {
    note(done ? std::string{} : done.error().message);
  } catch (const std::bad_alloc&) {
    // The next attempt notes it.
  }
  progress_.notify_all();
}

// Writes records up to the one that makes the file too large, which is rotated after it. A pipe or
// a terminal may take a part of a long text: one record at a time. So does a disk that has lost
// records: a log whose disk fails for long must not get longer by all of them with each attempt.
Status RecordLog::write_some() {
  std::string text;
  auto end = entries_.begin();
  for (; end != entries_.end(); ++end) {
    const std::string& line = end->line;
    if (!text.empty() && (!is_regular_ || has_lost_ || text.size() + line.size() > kMostAtOnce ||
                          size_ + text.size() >= max_bytes_)) {
      break;
    }
    text += line;
  }
  if (Status written = write_text(text); !written) {
    // There may be room for the first of them.
    end = std::next(entries_.begin());
    FILETIMER_TRY(write_text(entries_.front().line));
  }
  written_.splice(written_.end(), entries_, entries_.begin(), end);
  return {};
}

void RecordLog::use(UniqueFd file) {
  file_ = std::move(file);
  struct stat st {};
  is_regular_ = ::fstat(file_.get(), &st) == 0 && S_ISREG(st.st_mode);
  const FileIdentity identity{st.st_dev, st.st_ino};
  const bool is_same_pipe = !is_regular_ && identity_ == identity;
  identity_ = identity;
  size_ = is_regular_ ? static_cast<std::uint64_t>(st.st_size) : 0;
  half_line_ = (half_line_ && is_same_pipe) || ends_in_half_line(settings_.path);
  max_bytes_ = is_linked() ? std::numeric_limits<std::uint64_t>::max() : settings_.max_bytes;
}

// Returns whether the path is a symbolic link, which is not the server's to rename.
bool RecordLog::is_linked() const {
  struct stat entry {};
  return ::lstat(settings_.path.c_str(), &entry) == 0 && S_ISLNK(entry.st_mode);
}

// Returns false if the open file was removed or moved, or another one is at the path. This is the
// only look at the file before a write: a rotator moves it without a message, and other servers
// append to it.
bool RecordLog::is_at_path() {
  struct stat at_path {};
  if (::stat(settings_.path.c_str(), &at_path) != 0) {
    return errno != ENOENT;
  }
  if (identity_ != FileIdentity{at_path.st_dev, at_path.st_ino}) {
    return false;
  }
  const auto size = static_cast<std::uint64_t>(at_path.st_size);
  // Another server has appended to it, and may have been killed in the middle of a line.
  half_line_ = half_line_ || (size != size_ && ends_in_half_line(settings_.path));
  size_ = size;
  return true;
}

ssize_t RecordLog::write_part(std::string_view text) const {
  return retry_eintr([&] { return ::write(file_.get(), text.data(), text.size()); });
}

// Writes to a pipe or a terminal. A record may be longer than a pipe, so its reader is waited for,
// until the log is stopped or opened again.
ssize_t RecordLog::write_to_reader(std::string_view text) {
  std::size_t put = 0;
  while (put < text.size()) {
    if (const ssize_t taken = write_part(text.substr(put)); taken > 0) {
      put += static_cast<std::size_t>(taken);
      continue;
    }
    if (errno != EAGAIN) {
      break;
    }
    {
      const MutexLock lock(mutex_);
      if (stopping_ || reopen_) {
        errno = EAGAIN;
        break;
      }
    }
    pollfd reader{file_.get(), POLLOUT, 0};
    (void)::poll(&reader, 1, kReaderLookMs);
  }
  return put > 0 ? static_cast<ssize_t>(put) : -1;
}

Status RecordLog::write_text(const std::string& lines) {
  if (lines.empty()) {
    return {};
  }
  const std::string text = half_line_ ? "\n" + lines : lines;
  const auto before = static_cast<off_t>(size_);
  const ssize_t put = is_regular_ ? write_part(text) : write_to_reader(text);
  if (put == static_cast<ssize_t>(text.size())) {
    half_line_ = false;
    size_ += text.size();
    return {};
  }
  const int reason = put < 0 ? errno : ENOSPC;  // a full disk makes the write short
  if (put > 0) {
    // The half line is cut off, unless another server has appended a record before or after it. A
    // half line of an earlier write is still in the file.
    half_line_ |=
        ::lseek(file_.get(), 0, SEEK_END) != before + put || ::ftruncate(file_.get(), before) != 0;
  }
  return system_error(fmt::format("cannot write to the log '{}'", settings_.path), reason);
}

// What was written before a sync that failed may be lost, and the kernel reports that once. So it
// is written again.
Status RecordLog::sync() {
  // A pipe or a terminal has nothing to sync.
  if (!written_.empty() && ::fdatasync(file_.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    entries_.splice(entries_.begin(), written_);
    has_lost_ = true;
    return system_error(fmt::format("cannot sync the log '{}'", settings_.path));
  }
  if (!written_.empty()) {
    has_lost_ = false;
    synced_.store(written_.back().number, std::memory_order_release);
    written_.clear();
  }
  return {};
}

void RecordLog::rotate() {
  // Several servers may share the log. The server that holds the lock of the full file renames it,
  // unless another server has done so before: then the path names the new file.
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return;
  }
  const char* const path = settings_.path.c_str();
  if (!is_at_path() ||
      (!is_linked() && ::rename(path, (settings_.path + ".1").c_str()) == 0 &&
       (!is_at_path() || ::unlink(path) == 0))) {  // rename() removes no link to the same file
    file_.reset();                                 // releases the lock
  } else {
    const auto why = system_error(fmt::format("cannot rename the log '{}'", settings_.path));
    messages::warning("{}; it grows over --log-max", why.value().message);
    max_bytes_ = std::numeric_limits<std::uint64_t>::max();  // until it is opened again
    ::flock(file_.get(), LOCK_UN);
  }
}

std::string RecordLog::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

Instant RecordLog::note_stall(Instant now) {
  const MutexLock lock(mutex_);
  if (!failure_.empty() || (queue_.empty() && !is_busy())) {
    return Instant::never();
  }
  const Instant stalls = (is_busy() ? busy_since_ : now) + kStalled;
  if (stalls > now) {
    return stalls;
  }
  note(fmt::format("the log '{}' does not answer", settings_.path));
  return Instant::never();
}

void RecordLog::note(std::string failure) {
  if (failure.empty() && !failure_.empty()) {
    messages::info("the log '{}' can be written again{}", settings_.path,
                   lost_ == 0 ? std::string{} : fmt::format("; {} records were lost", lost_));
  } else if (failure != failure_) {
    messages::error("{}; records wait in memory and kills continue", failure);
  }
  failure_ = std::move(failure);
}

void RecordLog::hold(bool is_held) {
  const MutexLock lock(mutex_);
  is_held_ = is_held;
  if (has_work()) {
    work_.notify_one();
  }
}

void RecordLog::reopen() {
  const MutexLock lock(mutex_);
  reopen_ = true;
  work_.notify_one();
}

bool RecordLog::drain(Duration bound) {
  MutexLock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + bound;
  while (synced_.load(std::memory_order_relaxed) != last_number_ &&
         progress_.wait_until(lock, until) == std::cv_status::no_timeout) {
  }
  return synced_.load(std::memory_order_relaxed) == last_number_;
}

RecordLog::Backlog RecordLog::backlog() const {
  const MutexLock lock(mutex_);
  const std::uint64_t waiting = last_number_ - synced_.load(std::memory_order_relaxed);
  if (waiting == 0) {
    return {.lost = lost_};  // though a batch that is synced may not have ended yet
  }
  return {waiting, queued_bytes_, std::min(oldest_entry_, oldest_of(queue_)), lost_};
}

void RecordLog::stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  work_.notify_one();
  const auto until = std::chrono::steady_clock::now() + kStopLimit;
  while (!finished_ && progress_.wait_until(lock, until) == std::cv_status::no_timeout) {
  }
}

Result<std::shared_ptr<RecordLog>> RecordLog::open(Settings settings) {
  auto file = open_log(settings.path);
  FILETIMER_TRY(file);
  UniqueFd event_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_fd) {
    return system_error("cannot make an eventfd");
  }
  const std::shared_ptr<RecordLog> log(
      new RecordLog(std::move(settings), std::move(*file), std::move(event_fd)));
  start_detached_thread([log] { log->run(); });
  return std::shared_ptr<RecordLog>(log.get(), [log](RecordLog*) { log->stop(); });
}

}  // namespace filetimer
