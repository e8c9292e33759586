// The effects of fork, clone, vfork and exec on a page and its lock: the child never writes to its
// parent's page, and the kernel still names the parent as the owner.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filetimer/timer_client.hpp>
#include <optional>
#include <string>

#include "common/mapped_file.hpp"
#include "tests/support/moved_clock.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::Connected;
using testing::exit_code_of;
using testing::in_child;

namespace {

// Returns whether this process holds the lock of the page, or none does, as another process sees
// it.
bool has_owner(const std::string& path, pid_t owner) {
  return in_child([&] {
           const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
           const auto lock = lock_state(file.get());
           return lock && lock->is_held == (owner != 0) && lock->holder == owner ? 0 : 1;
         }) == 0;
}

// Returns this process's descriptors of the file.
std::vector<int> descriptors_of(const std::string& path) {
  std::vector<int> found;
  for (int fd = 3; fd < 1024; ++fd) {
    if (identity_of(fd) == identity_of(path)) {
      found.push_back(fd);
    }
  }
  return found;
}

// The handler of a fork that a static object of the program has registered.
TimerClient* client_of_handler = nullptr;
std::optional<TimerHeartbeat> heart_of_child;
[[maybe_unused]] const int has_handler = ::pthread_atfork(nullptr, nullptr, [] {
  if (client_of_handler != nullptr) {
    heart_of_child.emplace(client_of_handler->heartbeat(1h, "heart"));
  }
});

// Returns the bytes of the page, without the counters of its header.
std::string bytes_of(const PageLayout& page) {
  return {reinterpret_cast<const char*>(page.base()), kMemoryPage};
}

}  // namespace

TEST_CASE_FIXTURE(
    Connected,
    "the kernel names the worker as the owner of its page, and only the worker has it open") {
  const std::string path = server.page_path(server.worker_page_names().at(0));
  CHECK(has_owner(path, ::getpid()));
  const auto fds = descriptors_of(path);
  CHECK(fds.size() == 1);  // of the lock
  for (const int fd : fds) {
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    ::close(fd);  // as a daemon does
  }
  CHECK(has_owner(path, 0));
  testing::move_clock(1s);
  CHECK(client.expires(1h, "step").release());
  CHECK(has_owner(path, ::getpid()));
}

TEST_CASE_FIXTURE(Connected, "a forked child has its own page and does not change its parent's") {
  server.pipe().next();
  auto scope = client.expires(1h, "step");
  client.start(2h);
  const PageLayout page = server.page();
  const std::string before = bytes_of(page);
  const pid_t child = ::fork();
  if (child == 0) {
    bool is_wrong =
        scope.times() || scope.renew(1h) || scope.pause() || scope.release() || client.stop();
    scope = {};
    auto own = client.expires(1h, "childs");
    is_wrong = is_wrong || !own.renew(2h) || !own.release();
    client.start(1h);
    ::_exit(is_wrong ? 1 : 0);
  }
  CHECK(exit_code_of(child) == 0);
  CHECK(bytes_of(page) == before);
  const std::string childs = testing::page_of(server.dir(), child);
  CHECK(server.pipe().next().page() == childs);
  CHECK(server.pipe().is_silent());
  CHECK(testing::slot_called(server.page(childs), "job").asked == 1h);  // open when the child ended
  CHECK(has_owner(server.page_path(childs), 0));
  CHECK(scope.release());
  CHECK(client.stop());
}

TEST_CASE_FIXTURE(Connected, "a scope that the program's own handler of a fork opens stays open") {
  client_of_handler = &client;
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(heart_of_child->beat() ? 0 : 1);
  }
  client_of_handler = nullptr;
  CHECK(exit_code_of(child) == 0);
}

TEST_CASE_FIXTURE(Connected, "a thread that has forked may end in the child") {
  pid_t child = -1;
  testing::in_thread([&] {
    CHECK(client.expires(1h, "step").release());
    pthread_key_t last = 0;  // made after the key of the client, so destroyed after it
    REQUIRE(::pthread_key_create(&last, [](void*) { ::_exit(0); }) == 0);
    child = ::fork();
    if (child == 0) {
      ::pthread_setspecific(last, &client);
    }
  });
  CHECK(exit_code_of(child) == 0);
}

TEST_CASE_FIXTURE(
    Connected, "a child that opens no scope makes no page, and one that connects makes its own") {
  CHECK(client.expires(1h, "step").release());
  CHECK(in_child([&] { return client.is_watched() ? 0 : 1; }) == 0);
  CHECK(server.page_names().size() == 1);
  CHECK(in_child([&] {
          auto own = server.connect();
          const bool has_own = server.page_names().size() == 2;
          const int code = in_child([&] { return own.expires(1h, "step").release() ? 0 : 1; });
          return has_own && code == 0 ? 0 : 1;
        }) == 0);
}

TEST_CASE_FIXTURE(Connected,
                  "a child that closes inherited descriptors does not release its parent's lock") {
  const std::string path = server.page_path(server.worker_page_names().at(0));
  CHECK(in_child([&] {
          // The library dropped them at the fork already; the child closes all that are left.
          const auto left = descriptors_of(path).size();
          const int again = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
          ::close(again);
          return left == 0 ? 0 : 1;
        }) == 0);
  CHECK(has_owner(path, ::getpid()));
  // A child of a bare clone() still has them.
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    for (int fd = 3; fd < 1024; ++fd) {
      ::close(fd);
    }
    ::_exit(0);
  }
  CHECK(exit_code_of(child) == 0);
  CHECK(has_owner(path, ::getpid()));
}

TEST_CASE_FIXTURE(
    Connected,
    "scopes of a child that can't make its page are not watched, and its child makes one at once") {
  server.pipe().next();
  CHECK(in_child([&] {
          server.refuse_pages();
          auto scope = client.expires(1h, "childs");
          if (scope.times() || scope.release() || !server.pipe().is_silent()) {
            return 1;
          }
          server.allow_pages();
          return in_child([&] { return client.expires(1h, "grandchilds").times() ? 0 : 2; });
        }) == 0);
}
