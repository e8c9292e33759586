// SPDX-License-Identifier: MIT
#include "timer_server/evidence/flight_recorder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {
namespace {

std::string with_reason_of_errno(std::string what) {
  return system_error(std::move(what)).value().message;
}

// Opens a path as a process does whose root directory is `root`: a symlink on the way leads to a
// place below `root`, also an absolute one. Where the system call is not
// allowed, and before Linux 5.6, an absolute symlink leads to a file of the caller's root.
UniqueFd open_below(const std::string& root, const std::string& path, int flags) {
  const UniqueFd folder(
      retry_eintr([&] { return ::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); }));
  if (!folder) {
    return {};
  }
  constexpr int kTries = 8;  // a rename elsewhere may disturb the resolution of ".."
  open_how how{};
  how.flags = static_cast<unsigned>(flags);
  how.resolve = RESOLVE_IN_ROOT;
  UniqueFd found;
  for (int i = 0; i < kTries && !found && (i == 0 || errno == EAGAIN); ++i) {
    found = UniqueFd(static_cast<int>(retry_eintr(
        [&] { return ::syscall(SYS_openat2, folder.get(), path.c_str(), &how, sizeof how); })));
  }
  if (!found && (errno == ENOSYS || errno == EPERM)) {  // EPERM: by an older seccomp profile
    found = UniqueFd(retry_eintr([&] { return ::open((root + path).c_str(), flags); }));
  }
  return found;
}

}  // namespace

FlightRecorder::FlightRecorder(std::shared_ptr<const RecorderFiles> files, uid_t uid,
                               std::string root)
    : files_(std::move(files)), uid_(uid), root_(std::move(root)) {}

void FlightRecorder::ask() {
  failure_ = files_->unusable;
  if (failure_.empty()) {
    for (const std::string& dump : files_->dumps) {
      before_.push_back(state_of(dump));
    }
    last_ = before_;
    failure_ = write_byte();
  }
  stage_ = failure_.empty() ? Stage::kAsked : Stage::kFailed;
}

void FlightRecorder::look() {
  for (std::size_t i = 0; i < files_->dumps.size() && is_waiting(); ++i) {
    const std::optional<FileState> now = state_of(files_->dumps[i]);
    const bool rests = now == std::exchange(last_[i], now);
    if (!now || now == before_[i] || now->size == 0) {
      continue;  // PyTorch truncates the file before it writes
    }
    path_ = files_->dumps[i];
    size_ = now->size;
    stage_ = rests ? Stage::kRests : stage_;
  }
}

std::string FlightRecorder::reason() const {
  switch (stage_) {
    case Stage::kNew:
      return "it was not asked: time was up";
    case Stage::kFailed:
      return failure_;
    case Stage::kAsked:
      return path_.empty() ? "it was asked and wrote no dump in time"
                           : fmt::format("'{}' was still growing when time was up", path_);
    case Stage::kRests:
      break;
  }
  return {};
}

std::optional<FlightRecorder::FileState> FlightRecorder::state_of(const std::string& path) const {
  const UniqueFd found = open_below(root_, path, O_PATH | O_CLOEXEC);
  struct stat st {};
  if (!found || ::fstat(found.get(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != uid_) {
    return std::nullopt;
  }
  return FileState{st.st_ino, st.st_size, st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec};
}

// The file is opened for writing when it is known to be a FIFO: opening a device may do something.
std::string FlightRecorder::write_byte() const {
  const std::string name = fmt::format("'{}'", files_->pipe);
  const UniqueFd found = open_below(root_, files_->pipe, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  struct stat st {};
  if (!found || ::fstat(found.get(), &st) != 0) {
    return with_reason_of_errno("cannot open " + name);
  }
  if (!S_ISFIFO(st.st_mode)) {
    return S_ISLNK(st.st_mode) ? name + " is a symlink: expected a FIFO" : name + " is not a FIFO";
  }
  if (st.st_uid != uid_) {
    return fmt::format("{} belongs to user {}: expected user {}", name, st.st_uid, uid_);
  }
  const std::string opened = fmt::format("/proc/self/fd/{}", found.get());
  const UniqueFd fifo(retry_eintr(
      [&] { return ::open(opened.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY); }));
  if (!fifo) {
    return errno == ENXIO ? "no process reads " + name
                          : with_reason_of_errno("cannot open " + name);
  }
  if (retry_eintr([&] { return ::write(fifo.get(), "1", 1); }) != 1) {
    return errno == EAGAIN ? name + " is full: it was not read for a long time"
                           : with_reason_of_errno("cannot write to " + name);
  }
  return {};
}

}  // namespace filetimer
