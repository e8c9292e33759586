// SPDX-License-Identifier: MIT
#include "timer_client/client/pipe/pipe_line.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <system_error>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/scope_name.hpp"
#include "common/text.hpp"
#include "timer_client/client/sigpipe_guard.hpp"

namespace filetimer {
namespace {

// Opens the pipe without blocking: a pipe without a reader gives ENXIO. If no descriptor is
// returned, errno has the error; 0: the file is not a pipe. The type is checked after the file was
// opened, so the file cannot be replaced in between, and before anything is written, so a regular
// file at the path is not changed.
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

PipeClient::Sent meaning_of(int error) {
  switch (error) {
    case EAGAIN:  // these are errors of this process or the system, not of the server
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return PipeClient::Sent::kBusy;
    default:
      return PipeClient::Sent::kNoServer;
  }
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double seconds_of(std::chrono::nanoseconds duration) {
  return duration == std::chrono::nanoseconds::max()
             ? kInfinity
             : std::chrono::duration<double>(duration).count();
}

// Returns the Unix time that is `after` from now. Reads the monotonic clock first and rounds up, so
// that the time between the two readings makes the deadline later, never earlier.
double unix_time_in(std::chrono::nanoseconds after) {
  if (after == std::chrono::nanoseconds::max()) {
    return kInfinity;
  }
  const auto nanoseconds = static_cast<double>(ClockReading::now().wall_ns + after.count());
  return std::max(0.0, std::nextafter(nanoseconds / 1e9, kInfinity));
}

}  // namespace

PipeClient::Sent send_line(const std::string& path, std::string_view line) noexcept {
  const UniqueFd fd = open_pipe(path);
  if (!fd) {
    return meaning_of(errno);
  }
  const SigpipeGuard guard;
  const ssize_t written = retry_eintr([&] { return ::write(fd.get(), line.data(), line.size()); });
  if (written >= 0) {
    return PipeClient::Sent::kYes;
  }
  const PipeClient::Sent meaning = meaning_of(errno);
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
      return "it is not a pipe";
    case ENOENT:
    case ENOTDIR:
      return "there is no such pipe";
    case ENXIO:
      return "no process reads it";
    case EACCES:
    case EPERM:
      return "no permission to write to it";
    default:
      return std::generic_category().message(error);
  }
}

// --- PipeClient ---

PipeClient::Sent send_request(const std::string& pipe, const wire::Request& request) {
  return send_line(pipe, wire::format(request));
}

wire::Request acquire_request(std::chrono::nanoseconds after, std::string_view scope_id,
                              const PipeTimerOptions& options) {
  wire::Request request;
  const pid_t self = ::getpid();
  request.pid = options.pid == 0 ? self : options.pid;
  request.scope_id = scope_id;
  request.expiration_time = unix_time_in(after);
  request.signal = options.signal;
  request.x_timeout_s = seconds_of(after);
  if (options.grace) {
    const bool is_endless = *options.grace == std::chrono::nanoseconds::max();
    request.x_grace_s = is_endless ? -1 : seconds_of(*options.grace);
  }
  if (options.warn_after) {
    request.x_soft_s = seconds_of(*options.warn_after);
  }
  if (request.pid == self) {
    request.x_tid = ::gettid();
  }
  return request;
}

wire::Request release_request(std::string_view scope_id, pid_t pid) {
  wire::Request request;
  request.pid = pid == 0 ? ::getpid() : pid;
  request.scope_id = scope_id;
  request.expiration_time = -1;
  request.signal = 0;
  return request;
}

PipeClient::Sent PipeClient::acquire(std::chrono::nanoseconds after, std::string_view name,
                                     const PipeTimerOptions& options) const noexcept {
  try {
    // Made valid before it is cut, so that names that differ in the line differ for its reader,
    // too.
    const std::string id = bounded_scope_name(valid_utf8(name));
    return send_request(path_, acquire_request(after, id, options));
  } catch (const std::bad_alloc&) {
    return Sent::kBusy;
  }
}

PipeClient::Sent PipeClient::release(std::string_view name, pid_t pid) const noexcept {
  try {
    const std::string id = bounded_scope_name(valid_utf8(name));
    return send_request(path_, release_request(id, pid));
  } catch (const std::bad_alloc&) {
    return Sent::kBusy;
  }
}

std::string PipeClient::why_no_server() const {
  int error = 0;
  return has_reader(path_, error) ? std::string() : why_no_reader(error);
}

}  // namespace filetimer
