// A server that runs for $FILETIMER_SOAK_SECONDS. Workers with pages and on the pipe come and go,
// expire, are killed with and without a grace period, and end inside their scopes. Hooks run,
// orphans are reparented, and the log is rotated. Memory and descriptors do not grow after the
// warm-up.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <sstream>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kSamples = 10;
constexpr int kWarmUp = 3;          // samples that are not compared with
constexpr std::size_t kNames = 64;  // of scopes
// The normal variation of the heap. A leak of 100 bytes for each worker exceeds it in ten minutes.
constexpr long kGrowthKb = 1024;

std::chrono::seconds duration() {
  const char* const text = std::getenv("FILETIMER_SOAK_SECONDS");
  return std::chrono::seconds{text == nullptr ? 20 : std::stoi(text)};
}

struct Sample {
  long resident_kb = 0;
  long descriptors = 0;
};

long resident_kb(pid_t pid) {
  std::istringstream words(read_file(fmt::format("/proc/{}/statm", pid)));
  long size = 0;
  long pages = 0;
  words >> size >> pages;
  return pages * ::sysconf(_SC_PAGESIZE) / 1024;
}

long descriptors(pid_t pid) {
  const fs::directory_iterator begin(fmt::format("/proc/{}/fd", pid));
  return std::distance(begin, fs::directory_iterator());
}

bool has_zombies(pid_t pid) {
  std::istringstream children(read_file(fmt::format("/proc/{0}/task/{0}/children", pid)));
  for (pid_t child = 0; children >> child;) {
    const std::string stat = read_file(fmt::format("/proc/{}/stat", child));
    const std::size_t end = stat.rfind(')');
    if (end != stat.npos && stat.compare(end, 3, ") Z") == 0) {
      return true;
    }
  }
  return false;
}

class Soak {
 public:
  void round();
  Sample sample();
  bool descriptors_come_down_to(long count) {
    return wait_until([&] { return descriptors(server_.pid()) <= count; });
  }
  [[nodiscard]] int workers() const { return workers_; }
  [[nodiscard]] int kills() const { return kills_; }
  ExitStatus stop() {
    server_.process().signal(SIGTERM);
    return server_.process().status();
  }

 private:
  std::string name(std::size_t of) const {
    return fmt::format("step {}", (rounds_ * 7 + of) % kNames);
  }
  void expect_killed(Worker& worker) {
    CHECK(worker.status() == killed_by(SIGKILL));
    ++kills_;
  }

  const TempFolder temp_;
  // COMMAND makes orphans; each hook leaves one byte.
  Server server_{temp_,
                 {.args = {"--grace", "20ms", "--log-max", "1M", "--max-interval", "1s",
                           "--on-expiry", "printf . >> " + temp_.path("hooks")},
                  .command = {"/bin/sh", "-c", "while :; do (sleep 0.01 &); sleep 0.05; done"}}};
  std::size_t rounds_ = 0;
  int workers_ = 0;
  int kills_ = 0;
};

void Soak::round() {
  ++rounds_;
  std::vector<std::unique_ptr<Worker>> expiring;
  for (const char* mode : {"block", "ignore-term", "block"}) {
    expiring.push_back(std::make_unique<Worker>(mode));
  }
  for (int i = 0; i < 2; ++i) {
    auto paged = page_worker(server_.dir(), fmt::format("w-{}-{}", rounds_, i));
    REQUIRE(paged->ask("hint") == "ok");
    paged->ask(fmt::format("open 1 {} 3600000", "outer"));
    paged->ask("release 1");
    expiring.push_back(std::move(paged));
  }
  Worker leaves_open("on-eof", {.args = {"0"}});
  Worker healthy("on-eof", {.args = {"0"}});
  std::string lines = "no request\n";
  for (std::size_t i = 0; i < 3; ++i) {
    lines += acquire_far(expiring[i]->pid(), name(i));
    lines += acquire_far(healthy.pid(), name(i)) + release(healthy.pid(), name(i));
  }
  lines += acquire_far(leaves_open.pid(), name(3));
  lines += acquire_past(expiring[0]->pid(), name(4));
  lines += acquire_past(expiring[1]->pid(), name(5), SIGTERM);
  lines += acquire(expiring[2]->pid(), name(6), 10ms);
  server_.send(lines);
  // In one write and without an answer, because the worker may be dead before the second one.
  expiring[3]->tell("open 0 forward 5\nhint");
  expiring[4]->tell("open 0 backward 10\nhint");
  for (const auto& worker : expiring) {
    expect_killed(*worker);
  }
  for (Worker* const worker : {&leaves_open, &healthy}) {
    worker->let_go();
    CHECK(worker->status() == exited(0));
  }
  workers_ += static_cast<int>(expiring.size()) + 2;
}

// Takes a sample when all hooks have run and all workers are removed.
Sample Soak::sample() {
  REQUIRE(wait_until([&] {
    std::error_code none;
    return fs::file_size(temp_.path("hooks"), none) == static_cast<std::uintmax_t>(kills_);
  }));
  REQUIRE(wait_until([&] { return !has_zombies(server_.pid()); }));
  REQUIRE(wait_until([&] { return fs::is_empty(server_.dir() + "/scopes/.owners"); }));
  Sample sample;
  long fewest = descriptors(server_.pid());
  // A descriptor may be open for a moment, for a read in /proc.
  wait_until(
      [&] {
        fewest = std::min(fewest, descriptors(server_.pid()));
        return false;
      },
      50ms);
  sample.resident_kb = resident_kb(server_.pid());
  sample.descriptors = fewest;
  return sample;
}

}  // namespace

TEST_CASE("memory and descriptors of the server do not grow while workers come and go") {
  const Clock::time_point begin = Clock::now();
  Soak soak;
  std::vector<Sample> samples;
  for (int i = 1; i <= kSamples; ++i) {
    while (Clock::now() - begin < duration() * i / kSamples) {
      soak.round();
    }
    samples.push_back(soak.sample());
    fmt::print("{:>4} s  {:>6} workers  {:>6} killed  {:>6} KiB resident  {} descriptors\n",
               std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin).count(),
               soak.workers(), soak.kills(), samples.back().resident_kb,
               samples.back().descriptors);
    std::fflush(stdout);
  }
  // The least of the later samples counts: leaked memory does not come back, but the heap varies.
  const Sample& warm = samples[kWarmUp - 1];
  const auto least = std::ranges::min(std::span(samples).last(kWarmUp), {}, &Sample::resident_kb);
  CHECK(soak.descriptors_come_down_to(warm.descriptors));
  CHECK(least.resident_kb <= warm.resident_kb + kGrowthKb);
  CHECK(soak.stop() == exited(128 + SIGTERM));
}
