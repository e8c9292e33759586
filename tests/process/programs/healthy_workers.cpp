// Many healthy workers. Each opens a scope of a second and renews it every half a second, every
// other one on a page and the rest on the pipe. Ends at the end of its standard input. Prints
// "ready" when all have opened their scopes, and at the end "well N renewed N late N starved N" for
// all of them: starved is how often the machine delayed a worker past its deadline. Then "PID TIME"
// of each that was killed, with the TIME of its last renewal (CLOCK_MONOTONIC, nanoseconds).
// Arguments: RUNFOLDER WORKERS.
// SPDX-License-Identifier: MIT
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filetimer/timer_client.hpp>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"

namespace {

using filetimer::Instant;
using namespace std::chrono_literals;

constexpr std::chrono::seconds kTimeout{1};
constexpr std::chrono::milliseconds kRenewEvery{500};
constexpr unsigned kLastResortSeconds = 170;

constexpr int kMaxWorkers = 1000;
struct Shared {
  std::atomic<int> ready;
  std::atomic<long> renewed;
  std::atomic<long> late;  // renewals that came after the verdict
  std::atomic<long> starved;
  std::atomic<bool> stop;
  std::array<std::atomic<std::int64_t>, kMaxWorkers> renewed_at;  // by worker
};

[[noreturn]] void work(Shared& shared, const std::string& dir, int number) {
  std::atomic<std::int64_t>& renewed_at = shared.renewed_at[static_cast<std::size_t>(number)];
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kLastResortSeconds);
  auto client = filetimer::TimerClient::connect({.dir = dir});
  const bool is_on_page = number % 2 == 0;
  std::optional<filetimer::TimerScope> scope;
  const auto open = [&] {
    if (is_on_page) {
      scope.emplace(client.expires(kTimeout, "healthy"));
    }
    while (!is_on_page && filetimer::send_request(
                              client.target(), filetimer::acquire_request(kTimeout, "healthy")) !=
                              filetimer::Sent::kYes) {
      ::poll(nullptr, 0, 1);  // the pipe is full
    }
  };
  renewed_at = Instant::now().ns;
  open();
  ++shared.ready;
  while (!shared.stop) {
    ::poll(nullptr, 0, static_cast<int>(kRenewEvery.count()));
    const std::int64_t now = Instant::now().ns;
    const bool is_late = is_on_page ? !scope->renew(kTimeout) : now - renewed_at >= kTimeout / 1ns;
    ++(is_late ? shared.late : shared.renewed);
    if (is_late || !is_on_page) {
      open();
    }
    // Checked after the renewal, which may have been delayed, too.
    shared.starved += Instant::now().ns - renewed_at >= kTimeout / 1ns ? 1 : 0;
    renewed_at = now;
  }
  scope.reset();
  if (!is_on_page) {
    (void)filetimer::send_request(client.target(), filetimer::release_request("healthy"));
  }
  ::_exit(0);
}

}  // namespace

int main(int, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kLastResortSeconds);
  auto* const shared = new (::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared{};
  const int workers = std::stoi(argv[2]);
  std::vector<pid_t> pids;
  for (int i = 0; i < workers; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      work(*shared, argv[1], i);
    }
    pids.push_back(pid);
  }
  while (shared->ready < workers && ::waitpid(-1, nullptr, WNOHANG) == 0) {
    ::poll(nullptr, 0, 2);
  }
  std::cout << "ready" << std::endl;
  for (char byte = 0; ::read(STDIN_FILENO, &byte, 1) > 0;) {
  }
  shared->stop = true;
  int ended_well = 0;
  std::string killed;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    int status = -1;
    ::waitpid(pids[i], &status, 0);
    ended_well += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
    if (WIFSIGNALED(status)) {
      killed += " " + std::to_string(pids[i]) + " " + std::to_string(shared->renewed_at[i]);
    }
  }
  std::cout << "well " << ended_well << " renewed " << shared->renewed << " late " << shared->late
            << " starved " << shared->starved << killed << std::endl;
}
