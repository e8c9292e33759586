// SPDX-License-Identifier: MIT
#include "launcher.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace filetimer::examples {
namespace {

constexpr timespec kExitGrace{5, 0};
constexpr const char* kPipesVariable = "DIGITS_TRAINER_PIPES";

std::optional<int> number_in_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::nullopt : std::optional(std::atoi(text));
}

// Executes the rank in the child. Returns only on failure.
void start_rank(int rank, int ranks, const Exchange& exchange, const std::string& program,
                char* const* argv, pid_t launcher) {
  // A rank that hangs must not outlive its launcher.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != launcher) {
    return;
  }
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  ::setenv(kPipesVariable, exchange.inherit().c_str(), 1);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execv(program.c_str(), argv);
}

void say_how_it_ended(int rank, pid_t pid, int status) {
  if (WIFSIGNALED(status)) {
    fmt::print(stderr, "digits_trainer: rank {} (pid {}) was killed by signal {} ({})\n", rank, pid,
               WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  } else {
    fmt::print(stderr, "digits_trainer: rank {} (pid {}) failed with status {}\n", rank, pid,
               WEXITSTATUS(status));
  }
}

void kill_all(const std::map<pid_t, int>& running) {
  for (const auto& [pid, rank] : running) {
    ::kill(pid, SIGKILL);  // a child that was not reaped, so no other process has this pid
  }
}

// Waits for every rank in `running` (pid to rank). Returns whether all succeeded.
bool wait_for(std::map<pid_t, int> running, const sigset_t& child_ended) {
  bool all_well = true;
  while (!running.empty()) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      const auto ended = running.find(pid);
      if (ended == running.end()) {
        continue;  // a child that this process had before it became the launcher
      }
      if (status != 0) {
        say_how_it_ended(ended->second, pid, status);
        all_well = false;
      }
      running.erase(ended);
    } else if (all_well) {
      ::sigwaitinfo(&child_ended, nullptr);
    } else if (::sigtimedwait(&child_ended, nullptr, &kExitGrace) == -1 && errno == EAGAIN) {
      kill_all(running);
    }
  }
  return all_well;
}

}  // namespace

Result<std::optional<Rank>> this_rank() {
  const char* const pipes = std::getenv(kPipesVariable);
  if (pipes == nullptr) {
    return std::nullopt;
  }
  Rank self;
  self.rank = number_in_environment("RANK").value_or(0);
  self.world_size = number_in_environment("WORLD_SIZE").value_or(1);
  auto exchange = Exchange::from_text(self.rank, pipes);
  if (!exchange) {
    return tl::unexpected(exchange.error());
  }
  self.exchange = std::move(*exchange);
  return self;
}

Result<bool> launch(int ranks, char* const* argv) {
  // By its real path: started as /proc/self/exe, every rank would be called "exe".
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) {
    return system_error("cannot read /proc/self/exe", error.value());
  }
  auto exchanges = Exchange::make(ranks);
  if (!exchanges) {
    return tl::unexpected(exchanges.error());
  }
  ::signal(SIGCHLD, SIG_DFL);  // if ignored, the exit statuses of ranks would be lost
  sigset_t child_ended;
  ::sigemptyset(&child_ended);
  ::sigaddset(&child_ended, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child_ended, nullptr);  // for sigwaitinfo(), so that none is missed

  const pid_t launcher = ::getpid();
  std::map<pid_t, int> running;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      start_rank(rank, ranks, (*exchanges)[static_cast<std::size_t>(rank)], program, argv,
                 launcher);
      std::perror("digits_trainer: cannot start a rank");
      ::_exit(1);
    }
    if (pid < 0) {
      auto failed = system_error(fmt::format("cannot start rank {}", rank));
      kill_all(running);
      wait_for(std::move(running), child_ended);
      return failed;
    }
    running.emplace(pid, rank);
  }
  exchanges->clear();  // or the ranks would not see the pipes of one that died close
  return wait_for(std::move(running), child_ended);
}

}  // namespace filetimer::examples
