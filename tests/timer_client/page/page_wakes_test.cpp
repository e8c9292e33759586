// No deadline is missed: clients with a model of the server that sleeps until the time on its
// status page, and that only wake-up messages wake earlier. It judges scopes that are due, and
// kills no process. Then single moments of a wake-up message: a server starts, reads a page, or
// another scope is opened.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "common/clock.hpp"
#include "tests/support/moved_clock.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::Connected;
using testing::FakeServer;

namespace {

constexpr int kThreads = 4;

class ModelServer {
 public:
  // `slow`: pauses between the steps of a reading, so that clients run in between.
  ModelServer(FakeServer& server, bool slow)
      : board_(server.board()), page_(server.page()), slow_(slow) {
    pipe_.reset(::open(server.pipe().path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    thread_ = std::jthread([this](const std::stop_token& end) { run(end); });
  }

  void stop() {
    thread_.request_stop();
    thread_.join();
  }

  // Returns the number of verdicts on scopes "0", "1", ...
  [[nodiscard]] int verdicts(std::size_t name) const { return verdicts_.at(name); }

 private:
  void run(const std::stop_token& end) {
    std::int64_t next = kWakeAlways;
    while (!end.stop_requested()) {
      wait_until(next, end);
      next = scan();
    }
  }

  // Waits for a line or until `when`. Checks `end` regularly, and nothing else.
  void wait_until(std::int64_t when, const std::stop_token& end) {
    char lines[4096];
    while (!end.stop_requested()) {
      if (::read(pipe_.get(), lines, sizeof lines) > 0) {
        return;
      }
      const std::int64_t left = when == kWakeAlways ? kLook : when - Instant::now().ns;
      if (left <= 0) {
        return;
      }
      const timespec pause{0, std::min(left, kLook)};
      pollfd waits{pipe_.get(), POLLIN, 0};
      ::ppoll(&waits, 1, &pause, nullptr);
    }
  }

  std::int64_t scan() {
    announce_scan(board_);
    lose_time();
    std::int64_t next = kWakeAlways;
    for (std::size_t i = 0; i < slots_in_use(page_); ++i) {
      Slot& slot = page_.slot(i);
      const std::int64_t word = read_deadline(slot);
      if (!slot_word::is_open(word)) {
        // Acknowledges a late release.
        if (word == slot_word::kReleasedLate) {
          finish_verdict(slot, 1);
        }
        continue;
      }
      const Instant now = Instant::now();
      if (word > now.ns) {
        next = std::min(next, word);
        continue;
      }
      const auto reading = read_slot(page_, i, word);
      if (reading && try_expire(slot, word)) {
        ++verdicts_.at(static_cast<std::size_t>(std::stoi(reading->name)));
        finish_verdict(slot, word);
      }
    }
    lose_time();
    announce_next_scan(board_, next);
    return next;
  }

  void lose_time() {
    if (slow_) {
      std::this_thread::yield();
    }
  }

  static constexpr std::int64_t kLook = 20'000'000;
  Board& board_;
  const PageLayout page_;
  const bool slow_;
  UniqueFd pipe_;
  std::array<std::atomic<int>, kThreads> verdicts_{};
  std::jthread thread_;
};

// Opens scopes with deadlines of up to two milliseconds. Leaves most of them in time, and holds
// some until their verdict. Returns how many had one.
int work(TimerClient& client, const ModelServer& model, std::size_t self, int rounds) {
  std::minstd_rand random(static_cast<unsigned>(self + 1));
  const std::string name = std::to_string(self);
  int lost = 0;
  int mistakes = 0;
  for (int i = 0; i < rounds; ++i) {
    const bool hold = random() % 100 == 0;
    const Duration timeout{random() % 2'000'000 + 1};
    auto scope = client.expires(timeout, name);
    bool was_judged = false;
    if (hold) {
      const Instant bound = Instant::now() + testing::kBound;
      while (model.verdicts(self) != lost + 1 && Instant::now() < bound) {
        std::this_thread::sleep_for(50us);
      }
      mistakes += model.verdicts(self) == lost + 1 ? 0 : 1;
    } else if (random() % 4 == 0) {
      was_judged = !scope.renew(timeout + 1ms);
    }
    was_judged = !scope.release() || was_judged;
    mistakes += hold && !was_judged ? 1 : 0;
    lost += was_judged ? 1 : 0;
    if (mistakes > 0) {
      break;
    }
  }
  CHECK(mistakes == 0);
  return lost;
}

// Called once, after the next call of this kind on a pipe.
std::function<void()> after_failed_open;
std::function<void()> after_write;

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
  if (written > 0 && after_write &&
      testing::contains({static_cast<const char*>(bytes), size}, "x_page")) {
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

TEST_CASE("no deadline is missed, and no released scope gets a verdict") {
  for (const bool slow : {false, true}) {
    FakeServer server;
    auto client = server.connect();
    server.board().next_wake = kWakeAlways;
    ModelServer model(server, slow);
    std::array<int, kThreads> lost{};
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] { lost.at(i) = work(client, model, i, 3000); });
    }
    threads.clear();  // waits for their ends
    model.stop();
    for (std::size_t i = 0; i < kThreads; ++i) {
      CHECK(model.verdicts(i) == lost.at(i));
    }
  }
}

// Moments just after a system call. The model of tests/model has two of them as faults.
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
