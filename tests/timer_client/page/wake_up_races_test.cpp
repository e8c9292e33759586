// Moments of a wake-up message that lie just after a system call: a server starts, reads a page, or
// another scope is opened. The model of tests/model has two of them as faults.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <functional>

#include "tests/support/moved_clock.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::Connected;
using testing::FakeServer;

namespace {

// Called once, after the next call of this kind on a pipe.
std::function<void()> after_failed_open;
std::function<void()> after_write;

bool is_wake_up(const void* bytes, std::size_t size) {
  return std::string_view(static_cast<const char*>(bytes), size).find("x_page") !=
         std::string_view::npos;
}

}  // namespace

extern "C" {

int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  const int fd = __real_open(path, flags, mode);
  if (fd < 0 && errno == ENXIO && after_failed_open) {
    std::exchange(after_failed_open, nullptr)();
    errno = ENXIO;
  }
  return fd;
}

ssize_t __real_write(int fd, const void* bytes, std::size_t size);
ssize_t __wrap_write(int fd, const void* bytes, std::size_t size) {
  const ssize_t written = __real_write(fd, bytes, size);
  if (written > 0 && after_write && is_wake_up(bytes, size)) {
    std::exchange(after_write, nullptr)();
  }
  return written;
}

}  // extern "C"

TEST_CASE_FIXTURE(
    Connected,
    "a server that starts just after a wake-up message found no reader is woken by the next") {
  const std::string page = server.pipe().next().page();
  announce_scan(server.board());
  server.pipe().close();
  after_failed_open = [&] {
    server.pipe().open();
    server.board().incarnation.fetch_add(1);
    server.looks_in(1h);  // it has read the deadline of `first`
  };
  auto first = client.expires(1h, "first");
  REQUIRE(!after_failed_open);
  CHECK(server.pipe().is_silent());
  auto second = client.expires(30min, "second");
  CHECK(server.pipe().next().page() == page);
}

TEST_CASE(
    "an idle timeout wakes a server that read its new page just before the timeout was on it") {
  const testing::TempFolder folder;
  const std::string dir = folder.path("run");
  std::filesystem::create_directory(dir);
  const FakeServer before(dir);
  auto client = before.connect({.idle_timeout = 5s});
  std::filesystem::rename(dir, dir + ".removed");
  std::filesystem::create_directory(dir);
  FakeServer server(dir);
  std::string page;
  after_write = [&] {
    page = server.pipe().next().page();
    server.looks_in(1h);
  };
  testing::move_clock(1s);
  (void)client.expires(2h, "step").release();
  REQUIRE(!after_write);
  CHECK(server.pipe().next().page() == page);
}
