// A full disk, or no free descriptor: a clear error, or scopes that are not watched, and never
// SIGBUS.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include "common/mapped_file.hpp"
#include "common/sanitizers.hpp"
#include "tests/support/children.hpp"
#include "tests/support/histories.hpp"
#include "tests/support/mounts.hpp"
#include "tests/support/moved_clock.hpp"
#include "tests/support/skip.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::expect;
using testing::FakeServer;
using testing::hold;
using testing::in_child;

namespace {

// Runs `body` in a child, and its mount ends with it. What it throws fails the test.
void on_a_small_disk(const std::function<void(FakeServer&)>& body) {
  const testing::TempFolder folder;
  const std::string disk = folder.path("disk");
  REQUIRE(::mkdir(disk.c_str(), 0700) == 0);
  const std::string no_mounts = testing::kNoMounts;
  const auto failures = testing::run_in_child([&] {
    if (!testing::enter_mount_namespace() || !testing::mount_tmpfs(disk, "size=512k,mode=0700")) {
      return no_mounts + "\n";
    }
    FakeServer server(disk);
    body(server);
    return std::string();
  });
  FILETIMER_SKIP_IF(failures == std::vector{no_mounts}, no_mounts);
  CHECK(failures == std::vector<std::string>{});
}

// What this process writes on standard error; made before it connects.
class StandardError {
 public:
  StandardError() { REQUIRE(::dup2(pipe_.write.get(), STDERR_FILENO) == STDERR_FILENO); }
  [[nodiscard]] bool has_line(std::string_view part) const {
    char bytes[4096];
    const ssize_t count = ::read(pipe_.read.get(), bytes, sizeof bytes);
    const std::string_view text(bytes, count > 0 ? static_cast<std::size_t>(count) : 0);
    return testing::contains(text, part) && std::ranges::count(text, '\n') == 1;
  }

 private:
  testing::Ends pipe_ = testing::make_pipe(O_NONBLOCK);
};

// Fills the disk up to `left` bytes.
void fill(const FakeServer& server, std::size_t left) {
  const UniqueFd fd(
      ::open((server.dir() + "/filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string block(1024, 'x');
  std::size_t written = 0;
  while (::write(fd.get(), block.data(), block.size()) > 0) {
    written += block.size();
  }
  expect(errno == ENOSPC && ::ftruncate(fd.get(), static_cast<off_t>(written - left)) == 0,
         "the disk cannot be filled");
}

void empty(const FakeServer& server) {
  ::unlink((server.dir() + "/filler").c_str());
}

int interruptions = 0;               // of the next allocations
std::vector<unsigned long> tracers;  // that were given the permission

bool set_limit(decltype(RLIMIT_NOFILE) resource, rlim_t value) {
  rlimit limit{};
  ::getrlimit(resource, &limit);
  limit.rlim_cur = value;
  return ::setrlimit(resource, &limit) == 0;
}

}  // namespace

extern "C" {

int __real_posix_fallocate(int fd, off_t begin, off_t bytes);
int __wrap_posix_fallocate(int fd, off_t begin, off_t bytes) {
  return interruptions-- > 0 ? EINTR : __real_posix_fallocate(fd, begin, bytes);
}

int __wrap_prctl(int option, unsigned long value) {
  if (option == PR_SET_PTRACER) {
    tracers.push_back(value);
  }
  return 0;
}

}  // extern "C"

TEST_CASE("a signal while room is made for the page and the status page is no error") {
  const FakeServer server;
  std::filesystem::remove(server.dir() + "/server");
  interruptions = 2;
  CHECK(testing::message_of([&] { (void)server.connect(); }) == "nothing was thrown");
  CHECK(std::exchange(interruptions, 0) < 0);
}

TEST_CASE("a server for which there was no descriptor may trace the process a second later") {
  const FakeServer server;
  const auto lock = FileLock::take(server.dir() + "/server");
  CHECK(in_child([&] {
          auto client = server.connect();
          server.board().incarnation.fetch_add(1);  // another server
          for (const auto descriptors : {rlim_t{3}, rlim_t{256}}) {
            if (!set_limit(RLIMIT_NOFILE, descriptors)) {
              return -2;
            }
            testing::move_clock(1s);
            (void)client.expires(1h, "step").release();
          }
          return static_cast<int>(
              std::ranges::count(tracers, static_cast<unsigned long>(::getppid())));
        }) == 2);
}

TEST_CASE("a client lets its server trace it, also the next server, and in a forked child") {
  const FakeServer server;
  const auto traced_by = [&](const HeldChild& process) {
    return std::exchange(tracers, {}) == std::vector{static_cast<unsigned long>(process.pid())};
  };
  auto process = hold({server.dir() + "/server"});
  tracers.clear();
  (void)server.connect({.stacks = false});
  CHECK(tracers.empty());
  auto client = server.connect();
  CHECK(traced_by(*process));
  (void)server.connect({.stacks = false});  // withdraws nothing
  process->end();
  process = hold({server.dir() + "/server"});
  ++server.board().incarnation;
  testing::move_clock(1s);
  CHECK(client.expires(1h, "step").release());
  CHECK(traced_by(*process));
  CHECK(in_child([&] {
          (void)client.expires(1h, "child").release();
          return traced_by(*process) ? 0 : 1;
        }) == 0);
}

TEST_CASE("connect reports a full disk, and leaves no file behind") {
  on_a_small_disk([](FakeServer& server) {
    fill(server, 4096);
    std::string said;
    try {
      (void)server.connect();
    } catch (const InvalidArgument&) {
    } catch (const TimerError& error) {
      said = error.what();
    }
    expect(said.starts_with("cannot make room for the scope page '" + server.dir()) &&
               said.ends_with(": No space left on device"),
           "connect() says '{}'", said);
    expect(server.page_names().empty(), "a page is left");
    empty(server);
    auto client = server.connect();
    expect(server.page_names().size() == 1, "no page");
  });
}

TEST_CASE("connect reports a file that may not be so large, and leaves none behind") {
  FakeServer server;
  CHECK(in_child([&] {
          const bool is_limited = set_limit(RLIMIT_FSIZE, kPageBytes - 1);
          const std::string said = testing::message_of([&] { (void)server.connect(); });
          return is_limited && said.ends_with("': File too large") ? 0 : 1;
        }) == 0);
  CHECK(server.page_names().empty());
  CHECK(in_child([&] {
          const bool is_limited = set_limit(RLIMIT_FSIZE, kPageBytes);
          return is_limited && server.connect().expires(1h, "step").release() ? 0 : 1;
        }) == 0);
  const testing::TempFolder folder;
  CHECK(in_child([&] {
          const bool is_limited = set_limit(RLIMIT_FSIZE, kBoardBytes - 1);
          auto client = TimerClient::connect({.dir = folder.path("run")});
          return is_limited && !client.expires(1h, "step").release() ? 0 : 1;
        }) == 0);
  CHECK_FALSE(testing::exists(folder.path("run")));
}

TEST_CASE("a page that cannot be mapped leaves no file behind") {
  FILETIMER_SKIP_IF(kIsSanitized, "the sanitizer maps memory of its own");
  FakeServer server;
  CHECK(in_child([&] {
          // Room for the board, and not for a page.
          std::size_t mapped = 0;  // in memory pages
          std::ifstream("/proc/self/statm") >> mapped;
          mapped *= static_cast<std::size_t>(::getpagesize());
          const bool is_limited = set_limit(RLIMIT_AS, mapped + kPageBytes / 2);
          const std::string said = testing::message_of([&] { (void)server.connect(); });
          return is_limited && said.ends_with(": Cannot allocate memory") ? 0 : 1;
        }) == 0);
  CHECK(server.page_names().empty());
}

TEST_CASE("a status page that cannot be replaced for want of room leaves no file behind") {
  on_a_small_disk([](FakeServer& server) {
    server.board().boot[3] ^= 1;
    fill(server, 0);
    const std::string said = testing::message_of([&] { (void)server.connect(); });
    expect(said.starts_with("cannot make room for '" + server.dir() + "/server."),
           "connect() says '{}'", said);
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(server.dir())) {
      files += entry.path().filename().string().starts_with("server") ? 1 : 0;
    }
    expect(files == 1, "{} files", files);
  });
}

TEST_CASE("a client with Missing::kIgnore works without room for its page") {
  on_a_small_disk([](FakeServer& server) {
    const StandardError error;
    fill(server, 0);
    auto client = TimerClient::connect({.dir = server.dir()});
    auto scope = client.expires(1h, "step");
    expect(!scope.release() && server.page_names().empty(), "there is a page");
    expect(error.has_line("no scope page, scopes are not watched: "), "it is not said once");
    empty(server);
    testing::move_clock(1s);  // the client tries once a second
    auto later = client.expires(1h, "later");
    expect(static_cast<bool>(later.release()), "there is no page");
  });
}

TEST_CASE("a forked child says that it has no room for its page") {
  on_a_small_disk([](FakeServer& server) {
    const StandardError error;
    auto client = server.connect();
    fill(server, 0);
    expect(in_child([&] {
             for (int i = 0; i < 2; ++i) {
               if (client.expires(1h, "childs").release()) {
                 return 1;
               }
               testing::move_clock(1s);
             }
             return error.has_line("no scope page, scopes are not watched: ") ? 0 : 2;
           }) == 0,
           "it has a page, or does not say once that it has none");
  });
}

TEST_CASE("scopes for which the page cannot grow are not watched, and others are") {
  on_a_small_disk([](FakeServer& server) {
    const StandardError error;
    auto client = server.connect();
    server.pipe().next();
    fill(server, 0);
    std::vector<TimerScope> scopes;
    const auto open_100 = [&] {
      for (int i = 0; i < 100; ++i) {
        scopes.push_back(client.expires(1h, "s" + std::to_string(i)));
      }
      return server.slots().size();
    };
    const std::size_t on_page = open_100();
    expect(on_page == kMemoryPage / sizeof(SlotName), "{} scopes are on the page", on_page);
    expect(server.pipe().is_silent(), "the server is woken");
    expect(error.has_line("cannot grow, as on a full disk: 's16' is not watched"),
           "it is not said");
    expect(statistics_in_use(server.page()) == kMemoryPage / sizeof(SlotStatistics),
           "{} entries of statistics", statistics_in_use(server.page()));
    for (std::size_t i = 0; i < scopes.size(); ++i) {
      expect(static_cast<bool>(scopes[i].release()) == (i < on_page), "scope {} is wrong", i);
    }
    // With room again the page grows.
    empty(server);
    scopes.clear();
    expect(open_100() == 100, "the page does not grow");
  });
}

TEST_CASE("a forked child says that more scopes are open than it may have, as its parent does") {
  const FakeServer server;
  CHECK(in_child([&] {
          const StandardError error;
          auto client = server.connect();
          std::vector<TimerScope> scopes;
          const auto open_too_many = [&] {
            for (std::size_t i = 0; i <= kMaxScopesPerWorker; ++i) {
              scopes.push_back(client.expires(1h, "step"));
            }
            return error.has_line("which is the limit: 'step' is not watched") ? 0 : 1;
          };
          return open_too_many() == 0 ? in_child(open_too_many) : 2;
        }) == 0);
}
