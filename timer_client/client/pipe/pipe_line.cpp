// SPDX-License-Identifier: MIT
#include "timer_client/client/pipe/pipe_line.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <system_error>

#include "timer_client/client/write_signals.hpp"

namespace filetimer {
namespace {

// Opens the pipe without blocking: a pipe without a reader gives ENXIO. If no descriptor is
// returned, errno has the error; 0: the file is not a pipe. The type is checked after the file was
// opened, so the file cannot be replaced in between, and before anything is written, so a regular
// file at the path is not changed.
UniqueFd open_pipe(const std::string& path) {
  UniqueFd fd = open_file(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY);
  struct stat st {};
  if (fd && (::fstat(fd.get(), &st) != 0 || !S_ISFIFO(st.st_mode))) {
    fd.reset();
    errno = 0;
  }
  return fd;
}

Sent meaning_of(int error) {
  // These are errors of this process or the system, not of the server.
  const bool is_own = error == EAGAIN || error == EMFILE || error == ENFILE || error == ENOMEM;
  return is_own ? Sent::kBusy : Sent::kNoServer;
}

// Returns the Unix time that is `after` from now. Reads the monotonic clock first and rounds up, so
// that the time between the two readings makes the deadline later, never earlier.
double unix_time_in(Duration after) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (after == kForever) {
    return kInfinity;
  }
  const auto nanoseconds = static_cast<double>(ClockReading::now().wall_ns + after.count());
  return std::max(0.0, std::nextafter(nanoseconds / 1e9, kInfinity));
}

}  // namespace

Sent send_line(const std::string& path, std::string_view line) noexcept {
  const NoCancellation uncancelled;
  const UniqueFd fd = open_pipe(path);
  if (!fd) {
    return meaning_of(errno);
  }
  const WriteSignalsGuard guard;
  const ssize_t written = retry_eintr([&] { return ::write(fd.get(), line.data(), line.size()); });
  if (written >= 0) {
    return Sent::kYes;
  }
  const Sent meaning = meaning_of(errno);
  if (errno == EPIPE) {
    guard.consume();
  }
  return meaning;
}

Sent send_request(const std::string& path, const wire::Request& request) {
  return send_line(path, wire::format(request));
}

bool has_reader(const std::string& path) noexcept {
  const NoCancellation uncancelled;
  return static_cast<bool>(open_pipe(path));
}

std::string why_no_reader(const std::string& path) {
  if (has_reader(path)) {
    return {};
  }
  const int error = errno;
  return error == 0 || error == EISDIR         ? "it is not a pipe"
         : error == ENOENT || error == ENOTDIR ? "there is no such pipe"
         : error == ENXIO                      ? "no process reads it"
         : error == EACCES || error == EPERM   ? "no permission to write to it"
                                               : std::generic_category().message(error);
}

wire::Request acquire_request(Duration after, std::string_view scope_id,
                              const PipeTimerOptions& options) {
  wire::Request request;
  const pid_t self = ::getpid();
  request.pid = options.pid == 0 ? self : options.pid;
  request.scope_id = scope_id;
  request.expiration_time = unix_time_in(after);
  request.signal = options.signal;
  request.x_timeout_s = seconds_or_infinity(after);
  if (options.grace) {
    request.x_grace_s = *options.grace == kForever ? -1 : in_seconds(*options.grace);
  }
  if (options.warn_after) {
    request.x_soft_s = in_seconds(*options.warn_after);
  }
  if (request.pid == self) {
    request.x_tid = ::gettid();
  }
  return request;
}

wire::Request release_request(std::string_view scope_id, pid_t pid) {
  wire::Request request;  // a release, unless it gets an expiration time
  request.pid = pid == 0 ? ::getpid() : pid;
  request.scope_id = scope_id;
  return request;
}

}  // namespace filetimer
