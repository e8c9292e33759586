// SPDX-License-Identifier: MIT
#include "timer_server/evidence/proc_evidence.hpp"

#include <fmt/format.h>
#include <seccomp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

constexpr std::size_t kMaxChildrenShown = 64;
constexpr std::size_t kMaxDevicesShown = 64;
constexpr std::size_t kMaxPathBytesShown = 512;  // of the path of an open file
constexpr std::size_t kMaxDescriptorsRead = 65536;
constexpr std::string_view kNoKernelStacks = "no kernel stacks: ";

double seconds_of(std::uint64_t ticks) {
  static const long per_second = ::sysconf(_SC_CLK_TCK);
  return static_cast<double>(ticks) / static_cast<double>(per_second);
}

std::string first_line(const Result<std::string>& text) {
  return text ? text->substr(0, text->find('\n')) : std::string{};
}

bool takes_descriptor(std::string_view name) {
  constexpr std::array<std::string_view, 22> kNames{
      "read",     "write",   "pread64",    "pwrite64",   "readv",     "writev",
      "recvfrom", "recvmsg", "recvmmsg",   "sendto",     "sendmsg",   "sendmmsg",
      "accept",   "accept4", "connect",    "fsync",      "fdatasync", "ioctl",
      "flock",    "fcntl",   "epoll_wait", "epoll_pwait"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Parses /proc/PID/syscall, which is "202 0x7f.. 0x80 ...", or "running", or "-1 0x.. 0x.." for a
// thread that waits outside a system call.
void read_syscall(const std::string& folder, pid_t pid, ThreadEvidence& thread) {
  const std::string line = first_line(read_at_once(folder + "/syscall"));
  if (line.empty() || line == "running") {
    thread.syscall = line;
    return;
  }
  std::string_view rest = line;
  const auto number = take_number<std::int64_t>(rest);
  if (!number || *number < 0) {
    return;
  }
  thread.syscall_number = *number;
  const std::unique_ptr<char, decltype(&std::free)> name(
      seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, static_cast<int>(*number)), &std::free);
  thread.syscall = name ? std::string(name.get()) : fmt::format("system call {}", *number);
  constexpr std::string_view kHex = " 0x";
  if (!takes_descriptor(thread.syscall) || !rest.starts_with(kHex)) {
    return;
  }
  rest.remove_prefix(kHex.size());
  if (const auto fd = take_number<std::uint64_t>(rest, 16)) {
    thread.syscall_fd = link_target(fmt::format("/proc/{}/fd/{}", pid, *fd), kMaxPathBytesShown);
  }
}

// Returns "futex_wait_queue+0x6a/0x90" for "[<0>] futex_wait_queue+0x6a/0x90". Fails without
// CAP_SYS_ADMIN.
Result<std::vector<std::string>> read_kernel_stack(const std::string& folder) {
  std::vector<std::string> frames;
  const auto text = read_at_once(folder + "/stack");
  FILETIMER_TRY(text);
  std::string_view rest = *text;
  while (!rest.empty()) {
    std::string_view line = take_until(rest, '\n');
    if (const std::size_t bracket = line.find("] "); bracket != line.npos) {
      line.remove_prefix(bracket + 2);
    }
    if (!line.empty()) {
      frames.emplace_back(line);
    }
  }
  return frames;
}

// Returns nanoseconds from `schedstat`; kernels without that file give ticks in `stat`.
std::optional<std::uint64_t> cpu_ns_of(const std::string& folder) {
  const std::string line = first_line(read_at_once(folder + "/schedstat"));
  std::string_view rest = line;
  if (const auto ns = take_number<std::uint64_t>(rest)) {
    return ns;
  }
  const auto stat = read_stat(folder);
  if (!stat) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(seconds_of(stat->user_ticks + stat->system_ticks) * 1e9);
}

ThreadEvidence read_thread(const std::string& folder, pid_t pid, pid_t tid, Evidence& evidence) {
  ThreadEvidence thread;
  thread.tid = tid;
  if (const auto stat = read_stat(folder)) {
    thread.comm = stat->comm;
    thread.state = stat->state;
    thread.cpu_s = seconds_of(stat->user_ticks + stat->system_ticks);
  }
  thread.sampled = Instant::now();
  thread.cpu_ns = cpu_ns_of(folder);
  thread.wchan = first_line(read_at_once(folder + "/wchan"));
  if (thread.wchan == "0") {
    thread.wchan.clear();
  }
  read_syscall(folder, pid, thread);
  // The reason why there are none is the same for all threads.
  if (!evidence.missing.starts_with(kNoKernelStacks)) {
    if (auto stack = read_kernel_stack(folder)) {
      thread.stack = std::move(*stack);
    } else if (evidence.threads.empty()) {
      evidence.add_missing(fmt::format("{}{}", kNoKernelStacks, stack.error().message));
    }
  }
  return thread;
}

// Reads threads until `most` are read. The process keeps a main thread until it ends.
void read_threads(pid_t pid, const std::vector<pid_t>& tids, std::size_t most, Evidence& evidence) {
  const std::vector<pid_t> read = mapped(evidence.threads, &ThreadEvidence::tid);
  evidence.threads_omitted = 0;
  for (const pid_t tid : tids) {
    if (std::ranges::find(read, tid) != read.end()) {
      continue;
    }
    if (evidence.threads.size() >= most) {
      ++evidence.threads_omitted;
      continue;
    }
    ThreadEvidence thread =
        read_thread(fmt::format("/proc/{}/task/{}", pid, tid), pid, tid, evidence);
    if (thread.state != '?' || tid == pid) {  // otherwise it has ended
      evidence.threads.push_back(std::move(thread));
    }
  }
}

void read_children(pid_t pid, const std::vector<pid_t>& tids, Evidence& evidence) {
  for (const pid_t tid : tids) {
    for (const pid_t child : children_of(pid, tid)) {
      if (evidence.children.size() >= kMaxChildrenShown) {
        return;
      }
      const std::string folder = fmt::format("/proc/{0}/task/{0}", child);
      ThreadEvidence read;
      if (evidence.children.size() < kMaxChildrenRead) {
        read = read_thread(folder, child, child, evidence);
      } else if (const auto stat = read_stat(folder)) {
        read.tid = child;
        read.comm = stat->comm;
        read.state = stat->state;
      }
      if (read.state != '?') {  // otherwise it has ended
        evidence.children.push_back(std::move(read));
      }
    }
  }
}

// Lists the accelerators and network adapters that the process has open, each once.
void read_devices(const std::string& folder, Evidence& evidence) {
  std::size_t descriptors_read = 0;
  Directory fds(folder + "/fd");
  while (const char* const fd = fds.next()) {
    if (++descriptors_read > kMaxDescriptorsRead || evidence.devices.size() >= kMaxDevicesShown) {
      break;
    }
    const std::string target = link_target(fmt::format("{}/fd/{}", folder, fd), kMaxPathBytesShown);
    const bool accelerator = target.starts_with("/dev/nvidia") || target == "/dev/kfd" ||
                             target.starts_with("/dev/dri/") || target.starts_with("/dev/accel") ||
                             target.starts_with("/dev/infiniband/");
    if (accelerator && std::find(evidence.devices.begin(), evidence.devices.end(), target) ==
                           evidence.devices.end()) {
      evidence.devices.push_back(target);
    }
  }
  std::sort(evidence.devices.begin(), evidence.devices.end());
}

}  // namespace

Evidence read_proc_evidence(pid_t pid, std::uint64_t start_time) {
  Evidence evidence;
  const std::string folder = fmt::format("/proc/{}", pid);
  const auto stat = read_stat(folder);
  if (!stat || stat->start_time != start_time) {
    evidence.add_missing(!stat && is_for_now(stat.error()) ? stat.error().message
                                                           : "the process had ended");
    return evidence;
  }
  evidence.cpu_user_s = seconds_of(stat->user_ticks);
  evidence.cpu_system_s = seconds_of(stat->system_ticks);
  evidence.rss_bytes = stat->rss_pages * ::sysconf(_SC_PAGESIZE);
  const std::vector<pid_t> tids = threads_of(pid);
  read_threads(pid, tids, kThreadsReadFirst, evidence);
  read_children(pid, tids, evidence);
  read_devices(folder, evidence);
  return evidence;
}

void read_other_threads(pid_t pid, std::uint64_t start_time, Evidence& evidence) {
  if (evidence.threads_omitted == 0) {
    return;
  }
  const auto stat = read_stat(fmt::format("/proc/{}", pid));
  if (stat && stat->start_time == start_time) {
    read_threads(pid, threads_of(pid), kMaxEvidenceThreads, evidence);
  }
}

CpuSample read_cpu_sample(pid_t pid) {
  CpuSample sample;
  for (const pid_t tid : threads_of(pid)) {
    if (sample.threads.size() >= kThreadsReadFirst) {
      break;
    }
    ThreadEvidence& thread = sample.threads.emplace_back();
    thread.tid = tid;
    thread.sampled = Instant::now();
    thread.cpu_ns = cpu_ns_of(fmt::format("/proc/{}/task/{}", pid, tid));
  }
  return sample;
}

void begin_cpu_sample(const CpuSample& early, Evidence& evidence) {
  for (ThreadEvidence& thread : evidence.threads) {
    const auto found = std::ranges::find(early.threads, thread.tid, &ThreadEvidence::tid);
    if (found != early.threads.end() && found->cpu_ns &&
        thread.sampled - found->sampled < CpuSample::kLife) {
      thread.sampled = found->sampled;
      thread.cpu_ns = found->cpu_ns;
    }
  }
}

void finish_cpu_sample(pid_t pid, Evidence& evidence) {
  for (ThreadEvidence& thread : evidence.threads) {
    const auto used = cpu_ns_of(fmt::format("/proc/{}/task/{}", pid, thread.tid));
    const auto elapsed = static_cast<double>((Instant::now() - thread.sampled).count());
    if (thread.cpu_ns && used && *used >= *thread.cpu_ns && elapsed > 0) {
      const double percent = 100 * static_cast<double>(*used - *thread.cpu_ns) / elapsed;
      thread.cpu_percent = std::min(percent, 100.0);  // the kernel may count a tick too many
    }
  }
}

}  // namespace filetimer
