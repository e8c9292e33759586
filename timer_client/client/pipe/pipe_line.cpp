// SPDX-License-Identifier: MIT
#include "timer_client/client/pipe/pipe_line.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <system_error>

#include "common/posix.hpp"
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

LineSent meaning_of(int error) {
  switch (error) {
    case EAGAIN:  // these are errors of this process or the system, not of the server
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return LineSent::kBusy;
    default:
      return LineSent::kNoReader;
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

}  // namespace filetimer
