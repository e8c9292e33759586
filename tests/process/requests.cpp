// SPDX-License-Identifier: MIT
#include "tests/process/requests.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>

#include <system_error>

#include "tests/process/harness.hpp"

namespace filetimer::testing {

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string version1(pid_t pid, std::string_view scope, double expiration, int signal) {
  return fmt::format(
      R"({{"version": 1, "pid": {}, "scope_id": "{}", "expiration_time": {}, "signal": {}}})"
      "\n",
      pid, scope, expiration, signal);
}

std::string acquire(pid_t pid, std::string_view scope, std::chrono::milliseconds from_now,
                    int signal) {
  return version1(pid, scope, unix_now() + std::chrono::duration<double>(from_now).count(), signal);
}

std::string acquire_far(pid_t pid, std::string_view scope, int signal) {
  return acquire(pid, scope, std::chrono::hours{1}, signal);
}

std::string acquire_past(pid_t pid, std::string_view scope, int signal) {
  return acquire(pid, scope, std::chrono::milliseconds{0}, signal);
}

std::string release(pid_t pid, std::string_view scope) {
  return version1(pid, scope, -1, 0);
}

std::string with_own_keys(std::string line, std::string_view keys) {
  const std::size_t end = line.rfind('}');
  return line.replace(end, 1, fmt::format(", {}}}", keys));
}

bool is_read_pipe(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  struct stat st {};
  return fd && ::fstat(fd.get(), &st) == 0 && S_ISFIFO(st.st_mode);
}

UniqueFd open_pipe(const std::string& fifo) {
  UniqueFd fd(::open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  const int reason = fd ? 0 : errno;
  REQUIRE_MESSAGE(fd, "cannot open " << fifo << ": " << std::generic_category().message(reason));
  return fd;
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(put));
      continue;
    }
    REQUIRE((errno == EAGAIN || errno == EINTR));
    pollfd room{fd, POLLOUT, 0};
    REQUIRE_MESSAGE(::poll(&room, 1, static_cast<int>(kBound.count())) != 0, "the pipe stays full");
  }
}

void send_raw(const std::string& fifo, std::string_view bytes) {
  const UniqueFd fd = open_pipe(fifo);
  write_all(fd.get(), bytes);
}

}  // namespace filetimer::testing
