// SPDX-License-Identifier: MIT
#include "timer_client/src/pipe_transport.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include <limits>
#include <new>

#include "common/posix.hpp"
#include "common/wire.hpp"

namespace filetimer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double seconds_of(std::chrono::nanoseconds duration) {
  return duration == std::chrono::nanoseconds::max()
             ? kInfinity
             : std::chrono::duration<double>(duration).count();
}

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

// Errors that tell of this process or the system, not of the server.
bool is_passing(int error) {
  return error == EAGAIN || error == EMFILE || error == ENFILE || error == ENOMEM;
}

std::string reason(int error) {
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

}  // namespace

std::string version_1_line(const TimerRequest& request) {
  wire::Request line;
  line.pid = request.pid;
  line.scope_id = request.timer_id;
  if (request.release) {
    line.expiration_time = -1;
    line.signal = 0;
    return wire::format(line);
  }
  line.expiration_time = request.expiration_time;
  line.signal = request.signal;
  line.x_timeout_s = seconds_of(request.timeout);
  if (request.grace == std::chrono::nanoseconds::max()) {
    line.x_grace_s = -1;
  } else if (request.grace >= std::chrono::nanoseconds::zero()) {
    line.x_grace_s = seconds_of(request.grace);
  }
  if (request.tid > 0) {
    line.x_tid = request.tid;
  }
  line.x_whole_process = request.whole_process;
  if (request.scope != request.timer_id) {
    line.x_scope = request.scope;
  }
  return wire::format(line);
}

Transport::Sent PipeTransport::send(const TimerRequest& request) noexcept {
  try {
    const std::string line = version_1_line(request);
    const UniqueFd fd = open_pipe(path_);
    if (!fd) {
      return is_passing(errno) ? Sent::kTryLater : Sent::kNoServer;
    }
    const SigpipeGuard guard;
    // A line is within PIPE_BUF: it is written whole or not at all.
    const ssize_t written =
        retry_eintr([&] { return ::write(fd.get(), line.data(), line.size()); });
    if (written >= 0) {
      return Sent::kYes;
    }
    if (errno == EPIPE) {
      guard.consume();
      return Sent::kNoServer;
    }
    return is_passing(errno) ? Sent::kTryLater : Sent::kNoServer;
  } catch (const std::bad_alloc&) {
    return Sent::kTryLater;
  }
}

bool PipeTransport::server_is_there(std::string& why) noexcept {
  if (open_pipe(path_)) {
    return true;
  }
  const int error = errno;
  try {
    why = reason(error);
  } catch (const std::bad_alloc&) {
    why.clear();
  }
  return false;
}

}  // namespace filetimer
