// Many workers that are well: each opens a scope of a second and renews it every half a second,
// every other one on a page and the rest on the pipe. Ends when its standard input does.
// Says "ready" when all have opened their scopes, and at the end "renewed N late M" for all of
// them. Arguments: RUNFOLDER WORKERS.
// SPDX-License-Identifier: MIT
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filetimer/timer_client.hpp>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kTimeout{1};
constexpr std::chrono::milliseconds kRenewEvery{500};
constexpr unsigned kLastResortSeconds = 170;

struct Shared {
  std::atomic<int> ready;
  std::atomic<long> renewed;
  std::atomic<long> late;  // renewals that came after the verdict
  std::atomic<bool> stop;
};

[[noreturn]] void work(Shared& shared, const std::string& dir, int number) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kLastResortSeconds);
  ::setenv("FILETIMER_TRANSPORT", number % 2 == 0 ? "page" : "pipe", 1);
  {
    filetimer::ConnectOptions options;
    options.dir = dir;
    filetimer::TimerClient client = filetimer::TimerClient::connect(std::move(options));
    auto scope = client.expires(kTimeout, "healthy");
    ++shared.ready;
    while (!shared.stop) {
      ::poll(nullptr, 0, static_cast<int>(kRenewEvery.count()));
      (scope.renew(kTimeout) ? shared.renewed : shared.late)++;
    }
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
  for (const pid_t pid : pids) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    ended_well += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
  }
  std::cout << "well " << ended_well << " renewed " << shared->renewed << " late " << shared->late
            << std::endl;
}
