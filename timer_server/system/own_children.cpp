// SPDX-License-Identifier: MIT
#include "timer_server/system/own_children.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/run_folder.hpp"
#include "timer_server/system/mutex.hpp"
#include "timer_server/system/process.hpp"

extern char** environ;  // NOLINT: POSIX's own name

namespace filetimer {
namespace {

// A start that takes longer hangs in a file system. A child without an owner is reaped then, and
// the one that is being started may be taken for one if it ends first.
constexpr Duration kLongestStart = std::chrono::seconds{1};

// The own children of the process.
struct Registry {
  Mutex mutex;
  std::vector<pid_t> pids FILETIMER_GUARDED_BY(mutex);
  std::vector<pid_t> helpers FILETIMER_GUARDED_BY(mutex);  // until they are reaped
  // Children that are being started, whose pids are not known yet.
  std::size_t starting FILETIMER_GUARDED_BY(mutex) = 0;
  Instant last_start FILETIMER_GUARDED_BY(mutex);
  // See only_child_until().
  pid_t only_child FILETIMER_GUARDED_BY(mutex) = 0;
  std::uint64_t only_until FILETIMER_GUARDED_BY(mutex) = 0;  // 0: no child was started
  void forget(pid_t pid) FILETIMER_REQUIRES(mutex) {
    std::erase(pids, pid);
    only_child = only_child == pid ? 0 : only_child;
  }
};

Registry& registry() {
  static Registry* const one = new Registry;  // side threads may outlive main()
  return *one;
}

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
    if (away < 0 || ::dup2(away, number) < 0) {
      ::_exit(kNotExecuted);  // it must not run with the server's own
    }
  }
}

[[noreturn]] void run_as_child(const ChildStart& start, const Inheritance& settings,
                               char* const* words, char* const* environment, int& error) {
  if (!settings.oom_score_adj.empty()) {
    const int file = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    (void)!::write(file, settings.oom_score_adj.data(), settings.oom_score_adj.size());
    ::close(file);
  }
  if ((settings.policy & SCHED_RESET_ON_FORK) == 0) {
    // The fork has undone --realtime, by the ordinary policy and a nice value of 0.
    ::sched_setscheduler(0, settings.policy, &settings.priority);
    ::setpriority(PRIO_PROCESS, 0, settings.nice);
  }
  ::prctl(PR_SET_TIMERSLACK, settings.timer_slack_ns);
  if (start.output >= 0) {
    ::setpgid(0, 0);
    duplicate_to({STDIN_FILENO},
                 start.input >= 0 ? start.input : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
    duplicate_to({STDOUT_FILENO, STDERR_FILENO}, start.output);
    if (::isatty(STDERR_FILENO) != 0) {
      ::signal(SIGTTOU, SIG_IGN);  // `stty tostop` would stop a group that is never in foreground
    }
    // While the request pipe is open, clients and the next server take this server for its reader.
    // A process that a hook leaves behind must not hold the files of the server's caller.
    ::closefrom(STDERR_FILENO + 1);
  }
  if (!start.is_helper) {  // which may open more libraries' files than the caller's limit allows
    ::setrlimit(RLIMIT_NOFILE, &settings.files);
  }
  ::sigprocmask(SIG_SETMASK, &settings.mask, nullptr);
  ::execvpe(words[0], words, environment);
  error = errno;  // in the caller, too, after a vfork()
  ::_exit(kNotExecuted);
}

}  // namespace

OwnChild OwnChild::start(const std::function<pid_t()>& fork, bool is_helper) {
  Registry& all = registry();
  OwnChild child;
  MutexLock lock(all.mutex);
  // push_back() must not fail after the fork.
  all.pids.reserve(all.pids.size() + all.starting + 1);
  all.helpers.reserve(all.helpers.size() + all.starting + 1);
  ++all.starting;
  all.last_start = Instant::now();
  siginfo_t info{};
  const bool is_only = all.only_until == 0 && ::getpid() != 1 &&
                       ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0;
  all.only_until = all.only_until == 0 ? UINT64_MAX : std::min(all.only_until, start_time_now());
  lock.unlock();
  child.pid_ = std::max(fork(), 0);
  lock.lock();
  --all.starting;
  if (child) {
    all.pids.push_back(child.pid_);
    if (is_helper) {
      all.helpers.push_back(child.pid_);
    }
    child.pidfd_ = open_pidfd(child.pid_);
    all.only_child = is_only ? child.pid_ : all.only_child;
  }
  return child;
}

// Holds the lock, so that the pid leaves the registry before another child can get it.
std::optional<ChildEnd> OwnChild::reap() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  siginfo_t info{};
  const int result = retry_eintr(
      [&] { return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG); });
  if (result == 0 && info.si_pid == 0) {
    return std::nullopt;
  }
  std::erase(all.helpers, pid_);
  all.forget(std::exchange(pid_, 0));
  ChildEnd end;
  if (result == 0 && info.si_code == CLD_EXITED) {
    end.exit_status = info.si_status;
  } else if (result == 0) {
    end.signal = info.si_status;
  }
  return end;
}

void OwnChild::disown() {
  if (pid_ > 0 && !reap()) {
    Registry& all = registry();
    const MutexLock lock(all.mutex);
    all.forget(pid_);
  }
}

std::vector<pid_t> own_children() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  return all.pids;
}

std::uint64_t only_child_until(pid_t pid) {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  return pid == all.only_child ? all.only_until : 0;
}

bool reap_orphans(Instant now) {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  if (all.starting > 0 && now - all.last_start < kLongestStart) {
    return false;
  }
  for (;;) {
    siginfo_t info{};
    // WNOWAIT leaves the child to be reaped.
    const int result =
        retry_eintr([&] { return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT); });
    if (result != 0 || info.si_pid == 0) {
      return true;
    }
    if (std::ranges::find(all.pids, info.si_pid) != all.pids.end()) {
      return false;
    }
    std::erase(all.helpers, info.si_pid);
    retry_eintr(
        [&] { return ::waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG); });
  }
}

bool is_own_helper(pid_t tracer) {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  return std::ranges::find(all.helpers, tracer) != all.helpers.end();
}

Inheritance& inheritance() {
  static Inheritance settings = [] {
    Inheritance own;
    ::sigprocmask(SIG_BLOCK, nullptr, &own.mask);
    ::getrlimit(RLIMIT_NOFILE, &own.files);
    own.policy = ::sched_getscheduler(0);
    ::sched_getparam(0, &own.priority);
    own.nice = ::getpriority(PRIO_PROCESS, 0);
    own.timer_slack_ns = ::prctl(PR_GET_TIMERSLACK);
    return own;
  }();
  return settings;
}

// Uses fork() and not posix_spawn(): posix_spawn() can set neither a limit nor oom_score_adj, and
// it returns after the execve() only. So does vfork(), which copies no page tables: a helper is one
// of many. enter_realtime() makes sure that the child has ordinary scheduling.
Result<OwnChild> start_child(ChildStart start) {
  const std::vector<char*> words = pointers_to(start.words);
  const std::vector<char*> environment = pointers_to(start.environment);
  const Inheritance& settings = inheritance();
  int error = 0;
  const auto fork = [&] {
    const pid_t pid = start.is_helper || start.waits ? ::vfork() : ::fork();
    if (pid == 0) {
      run_as_child(start, settings, words.data(), environment.data(), error);
    }
    error = pid < 0 ? errno : error;
    return pid;
  };
  OwnChild child = OwnChild::start(fork, start.is_helper);
  if (error != 0) {
    return system_error(fmt::format("cannot run '{}'", start.words[0]), error);
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
                  std::optional<std::string_view> value) {
  std::erase_if(environment, [&](std::string_view entry) {
    return entry.starts_with(name) && entry.substr(name.size()).starts_with('=');
  });
  if (value) {
    environment.push_back(fmt::format("{}={}", name, *value));
  }
}

}  // namespace filetimer
