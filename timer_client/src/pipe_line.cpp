// SPDX-License-Identifier: MIT
#include "timer_client/src/pipe_line.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include <system_error>

#include "common/posix.hpp"

namespace filetimer {
namespace {

// Keeps a SIGPIPE that a write of this thread causes from reaching the process, whatever the
// process does with SIGPIPE, and leaves one alone that was waiting before. (MSG_NOSIGNAL is for
// sockets only, and a process-wide SIG_IGN is not ours to set.)
class SigpipeGuard {
 public:
  SigpipeGuard() {
    ::sigemptyset(&sigpipe_);
    ::sigaddset(&sigpipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;
  ~SigpipeGuard() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  // After a write that failed with EPIPE.
  void consume() const {
    if (!was_pending_) {
      const timespec at_once{};
      retry_eintr([&] { return ::sigtimedwait(&sigpipe_, nullptr, &at_once); });
    }
  }

 private:
  sigset_t sigpipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

// Never blocks: a pipe without a reader gives ENXIO. errno says why there is no descriptor; 0: what
// is there is no pipe. It is looked at after it was opened, so that nothing can be swapped in
// between, and before anything is written: a regular file left at the path stays as it is.
UniqueFd open_pipe(const std::string& path) {
  UniqueFd fd(retry_eintr(
      [&] { return ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY); }));
  struct stat st {};
  if (fd && (::fstat(fd.get(), &st) != 0 || !S_ISFIFO(st.st_mode))) {
    fd.reset();
    errno = 0;
  }
  return fd;
}

LineSent meaning_of(int error) {
  switch (error) {
    case EAGAIN:  // these tell of this process or the system, not of the server
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return LineSent::kBusy;
    case ENXIO:
    case EPIPE:
      return LineSent::kNoReader;
    default:
      return LineSent::kNoPipe;
  }
}

}  // namespace

LineSent send_line(const std::string& path, std::string_view line) noexcept {
  const UniqueFd fd = open_pipe(path);
  if (!fd) {
    return meaning_of(errno);
  }
  const SigpipeGuard guard;
  const ssize_t written = retry_eintr([&] { return ::write(fd.get(), line.data(), line.size()); });
  if (written >= 0) {
    return LineSent::kYes;
  }
  const LineSent meaning = meaning_of(errno);
  if (errno == EPIPE) {
    guard.consume();
  }
  return meaning;
}

bool has_reader(const std::string& path, int& error) noexcept {
  if (open_pipe(path)) {
    return true;
  }
  error = errno;
  return false;
}

std::string why_no_reader(int error) {
  switch (error) {
    case 0:
    case EISDIR:
      return "what is there is not a pipe";
    case ENOENT:
    case ENOTDIR:
      return "there is no such pipe";
    case ENXIO:
      return "nobody reads it";
    case EACCES:
    case EPERM:
      return "no permission to write to it";
    default:
      return std::generic_category().message(error);
  }
}

}  // namespace filetimer
