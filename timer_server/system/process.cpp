// SPDX-License-Identifier: MIT
#include "timer_server/system/process.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace filetimer {

namespace {

Duration since_boot() {
  timespec boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &boot);
  return std::chrono::seconds{boot.tv_sec} + Duration{boot.tv_nsec};
}

// Returns the unit of start times.
Duration clock_tick() {
  static const Duration kTick{1'000'000'000 / ::sysconf(_SC_CLK_TCK)};
  return kTick;
}

}  // namespace

std::uint64_t start_time_now() {
  return static_cast<std::uint64_t>(since_boot() / clock_tick());
}

Instant Process::started() const {
  const Duration at = static_cast<std::int64_t>(start_time) * clock_tick();
  return {Instant::now().ns - (since_boot() - at).count()};
}

bool Process::is_alive() const {
  pollfd end{pidfd.get(), POLLIN, 0};
  return pidfd && retry_eintr([&] { return ::poll(&end, 1, 0); }) <= 0;
}

bool Process::send_signal(int signal) const {
  return ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0U) == 0;
}

// glibc got wrappers for the two pidfd calls in 2.36; Ubuntu 22.04 has 2.35.
UniqueFd open_pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
}

Result<Process> open_process(pid_t pid) {
  Process process;
  process.pid = pid;
  process.pidfd = open_pidfd(pid);
  if (!process.pidfd) {
    if (errno == ESRCH) {
      return failure(fmt::format("there is no process with pid {}", pid), ESRCH);
    }
    if (errno == EINVAL) {
      return failure(fmt::format("pid {} is not a process's own id (a thread's?)", pid));
    }
    return system_error(fmt::format("cannot open pid {}", pid));
  }
  const auto stat = read_stat(fmt::format("/proc/{}", pid));
  const auto status = read_status(fmt::format("/proc/{}", pid));
  if (process.is_alive() && (!stat || !status)) {
    return tl::unexpected<Error>(!stat ? stat.error() : status.error());
  }
  if (!stat || !status || !process.is_alive()) {
    return failure(fmt::format("pid {} has ended", pid), ESRCH);
  }
  process.start_time = stat->start_time;
  process.comm = stat->comm;
  process.ppid = stat->ppid;
  process.is_kernel_thread = stat->is_kernel_thread;
  process.start_stack = stat->start_stack;
  // A set-uid program counts as a process of the user that it runs as.
  process.uid = status->uid == ::geteuid() ? status->effective_uid : status->uid;
  process.innermost_pid = status->innermost_pid == 0 ? pid : status->innermost_pid;
  return process;
}

bool has_random_stack(pid_t pid) {
  static const bool kIsOn =
      read_small_file("/proc/sys/kernel/randomize_va_space").value_or("2\n") != "0\n";
  const auto personality = read_small_file(fmt::format("/proc/{}/personality", pid));
  constexpr int kHex = 16;
  return kIsOn && (!personality ||
                   (std::strtoul(personality->c_str(), nullptr, kHex) & ADDR_NO_RANDOMIZE) == 0);
}

std::string folder_of_this_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "";
}

std::vector<pid_t> ancestors_of(pid_t pid) {
  constexpr int kMaxDepth = 1024;  // deeper than any real tree; recycled pids may form a circle
  std::vector<pid_t> ancestors;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    const auto stat = read_stat(fmt::format("/proc/{}", pid));
    if (!stat || stat->ppid <= 0) {
      break;
    }
    ancestors.push_back(stat->ppid);
    pid = stat->ppid;
  }
  return ancestors;
}

}  // namespace filetimer
