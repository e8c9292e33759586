// SPDX-License-Identifier: MIT
#include "timer_server/system/inheritance.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/proc_files.hpp"
#include "common/run_folder.hpp"

extern char** environ;  // NOLINT: POSIX's own name

namespace filetimer {
namespace {

// If the agent of torchrun saw the first variable, it would replace the request pipe with its own.
// The others are for the service manager's own child.
constexpr std::array<std::string_view, 7> kDropped{"TORCHELASTIC_ENABLE_FILE_TIMER",
                                                   "NOTIFY_SOCKET",
                                                   "WATCHDOG_USEC",
                                                   "WATCHDOG_PID",
                                                   "LISTEN_FDS",
                                                   "LISTEN_PID",
                                                   "LISTEN_FDNAMES"};

constexpr int kNotExecuted = 127;

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) {
    pointers.push_back(string.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

// The two functions below run in the forked child. They make system calls only: another thread of
// the server may have held any lock, for example that of malloc(), at the fork.

void duplicate_to(std::initializer_list<int> standard, int fd) {
  // dup2() onto the same number would leave the descriptor close-on-exec, so it is moved above 2
  // first.
  const int away = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  for (const int number : standard) {
    ::dup2(away, number);
  }
}

[[noreturn]] void run_as_child(const ChildStart& start, const Inheritance& inheritance,
                               char* const* words, char* const* environment, int report) {
  if (!inheritance.oom_score_adj.empty()) {
    const int file = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    (void)!::write(file, inheritance.oom_score_adj.data(), inheritance.oom_score_adj.size());
    ::close(file);
  }
  ::setrlimit(RLIMIT_NOFILE, &inheritance.files);
  if (start.output >= 0) {
    ::setpgid(0, 0);
    duplicate_to({STDIN_FILENO}, ::open("/dev/null", O_RDONLY | O_CLOEXEC));
    duplicate_to({STDOUT_FILENO, STDERR_FILENO}, start.output);
  }
  ::sigprocmask(SIG_SETMASK, &inheritance.mask, nullptr);
  ::execvpe(words[0], words, environment);
  const int error = errno;
  (void)!::write(report, &error, sizeof error);
  ::_exit(kNotExecuted);
}

}  // namespace

Inheritance Inheritance::of_this_process() {
  Inheritance inheritance;
  ::sigprocmask(SIG_BLOCK, nullptr, &inheritance.mask);
  ::getrlimit(RLIMIT_NOFILE, &inheritance.files);
  return inheritance;
}

// Uses fork() and not posix_spawn(): posix_spawn() can set neither a limit nor oom_score_adj, and
// it returns after the execve() only, which may wait for a hung file system.
Result<OwnChild> start_child(const ChildStart& start, const Inheritance& inheritance,
                             UniqueFd* failure) {
  std::vector<std::string> words = start.words;
  std::vector<std::string> environment = start.environment;
  const std::vector<char*> word_pointers = pointers_to(words);
  const std::vector<char*> environment_pointers = pointers_to(environment);
  std::array<int, 2> ends{-1, -1};
  if (failure != nullptr && ::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return system_error(fmt::format("cannot run '{}'", start.words[0]));
  }
  UniqueFd reading(ends[0]);
  const UniqueFd report(ends[1]);
  int error = 0;
  OwnChild child = OwnChild::start([&] {
    const pid_t pid = ::fork();
    error = errno;
    if (pid == 0) {
      run_as_child(start, inheritance, word_pointers.data(), environment_pointers.data(),
                   report.get());
    }
    return pid;
  });
  if (!child) {
    return system_error(fmt::format("cannot run '{}'", start.words[0]), error);
  }
  if (failure != nullptr) {
    *failure = std::move(reading);
  }
  return child;
}

std::vector<std::string> environment_for_children(const std::string& dir, const std::string& pipe) {
  std::vector<std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (std::ranges::find(kDropped, name) == kDropped.end()) {
      variables.emplace_back(entry);
    }
  }
  set_variable(variables, kDirVariable, dir);
  set_variable(variables, kTorchPipeVariable, pipe);
  return variables;
}

void set_variable(std::vector<std::string>& environment, std::string_view name,
                  std::string_view value) {
  unset_variable(environment, name);
  environment.push_back(fmt::format("{}={}", name, value));
}

void unset_variable(std::vector<std::string>& environment, std::string_view name) {
  std::erase_if(environment, [&](std::string_view entry) {
    return entry.starts_with(name) && entry.substr(name.size()).starts_with('=');
  });
}

}  // namespace filetimer
