// Healthy workers on an overloaded machine are not killed. Runs for FILETIMER_STARVE_SECONDS,
// without other tests.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filetimer/timer_client.hpp>
#include <new>
#include <thread>

#include "tests/process/worker.hpp"
#include "tests/support/children.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"

using namespace filetimer::testing;
using filetimer::Instant;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kWorkers = 200;
constexpr std::chrono::seconds kTimeout{1};
constexpr std::chrono::milliseconds kRenewEvery{500};
// A little less than the timeout, because requests on the pipe have the wall clock.
constexpr std::chrono::nanoseconds kLeastTime = kTimeout - 2ms;
constexpr unsigned kBusyLoopsPerCpu = 8;

std::chrono::seconds duration() {
  const char* const seconds = std::getenv("FILETIMER_STARVE_SECONDS");
  return std::chrono::seconds(seconds == nullptr ? 10 : std::atoi(seconds));
}

// In memory that the test shares with all workers.
struct Shared {
  std::atomic<long> renewed;
  std::atomic<long> late;     // renewals that came after the verdict
  std::atomic<long> starved;  // how often the machine delayed a worker past its deadline
  std::atomic<bool> stop;
  std::array<std::atomic<std::int64_t>, kWorkers> renewed_at;  // by worker, in ns
};

// Opens a scope and renews it every half a second, every other worker on a page and the rest on the
// pipe. An exception ends its process.
class HealthyWorker {
 public:
  HealthyWorker(Shared& shared, std::size_t number)
      : shared_(shared), renewed_at_(shared.renewed_at[number]), is_on_page_(number % 2 == 0) {}

  void begin(const std::string& dir) noexcept {
    client_.emplace(filetimer::TimerClient::connect({.dir = dir}));
    renewed_at_ = Instant::now().ns;
    open();
  }

  void go_on() noexcept {
    if (shared_.stop) {
      scope_.reset();
      if (!is_on_page_) {
        (void)filetimer::send_request(client_->target(), filetimer::release_request("healthy"));
      }
      ::_exit(0);
    }
    ::poll(nullptr, 0, static_cast<int>(kRenewEvery.count()));
    const std::int64_t now = Instant::now().ns;
    const bool is_late =
        is_on_page_ ? !scope_->renew(kTimeout) : now - renewed_at_ >= kTimeout / 1ns;
    ++(is_late ? shared_.late : shared_.renewed);
    if (is_late || !is_on_page_) {
      open();
    }
    // Checked after the renewal, which may have been delayed, too.
    shared_.starved += Instant::now().ns - renewed_at_ >= kTimeout / 1ns ? 1 : 0;
    renewed_at_ = now;
  }

 private:
  void open() {
    if (is_on_page_) {
      scope_.emplace(client_->expires(kTimeout, "healthy"));
    }
    while (!is_on_page_ && filetimer::send_request(client_->target(), filetimer::acquire_request(
                                                                          kTimeout, "healthy")) !=
                               filetimer::Sent::kYes) {
      ::poll(nullptr, 0, 1);  // the pipe is full
    }
  }

  Shared& shared_;
  std::atomic<std::int64_t>& renewed_at_;
  bool is_on_page_;
  std::optional<filetimer::TimerClient> client_;
  std::optional<filetimer::TimerScope> scope_;
};

}  // namespace

TEST_CASE("none of two hundred healthy workers is killed on a machine eight times oversubscribed") {
  Server server;
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const shared = new (memory) Shared{};
  std::vector<std::unique_ptr<Child>> workers;
  for (std::size_t i = 0; i < kWorkers; ++i) {
    HealthyWorker worker(*shared, i);
    workers.push_back(std::make_unique<Child>(
        filetimer::fork_waiting([&] { worker.begin(server.dir()); }, [&] { worker.go_on(); })));
  }
  std::vector<std::unique_ptr<Child>> load;
  for (unsigned i = 0; i < kBusyLoopsPerCpu * std::max(1U, std::thread::hardware_concurrency());
       ++i) {
    load.push_back(
        std::make_unique<Child>(Launch{.argv = {"/bin/sh", "-c", "while :; do :; done"}}));
  }
  const Instant until = Instant::now() + duration();
  REQUIRE(wait_until([&] { return Instant::now() >= until; }, duration() + kBound));
  shared->stop = true;
  std::vector<std::size_t> killed;
  for (std::size_t i = 0; i < kWorkers; ++i) {
    const ExitStatus status = workers[i]->status();
    if (status.signal != 0) {
      killed.push_back(i);
    } else {
      CHECK(status == exited(0));
    }
  }
  load.clear();
  CHECK(server.stop() == exited(0));
  const Records records = server.records();
  // A worker that did not run for its whole timeout may be killed, but not earlier.
  for (const std::size_t i : killed) {
    const auto expired = std::ranges::find_if(
        records, [&](const Record& record) { return record.is("expired", workers[i]->pid()); });
    REQUIRE(expired != records.end());
    CHECK(expired->integer("mono_ns") - shared->renewed_at[i] >= kLeastTime / 1ns);
  }
  // A worker that resumes between its verdict and the signal is spared.
  const auto spared = std::ranges::count_if(records, [](const Record& record) {
    return record.is("killed") && record.text("verdict") == "spared";
  });
  CHECK(count(records, "expired") == killed.size() + static_cast<std::size_t>(spared));
  CHECK(shared->late <= shared->starved);
  FILETIMER_SKIP_IF(!killed.empty() || shared->starved > 0,
                    "this machine let workers wait past their deadlines");
  // If the server starved, the pipe may have had no room for a worker's release before its end.
  CHECK(count(records, "left_open") == 0);
  // All workers ran all the time: half of the renewals of an idle machine.
  CHECK(shared->renewed >= static_cast<long>(kWorkers) * duration().count());
  MESSAGE(
      fmt::format("{} renewals, {} deferred", shared->renewed.load(), count(records, "deferred")));
}
