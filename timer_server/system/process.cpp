// SPDX-License-Identifier: MIT
#include "timer_server/system/process.hpp"

#include <fmt/format.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "common/text.hpp"

namespace filetimer {
namespace {

// A parent and its child.
using Link = std::pair<pid_t, pid_t>;

// Returns false for a kernel without CONFIG_PROC_CHILDREN.
bool has_children_files() {
  static const bool kHas =
      ::access(fmt::format("/proc/self/task/{}/children", ::getpid()).c_str(), R_OK) == 0;
  return kHas;
}

// Returns about how many processes the host has.
std::size_t process_count() {
  struct stat proc {};
  return ::stat("/proc", &proc) == 0 ? proc.st_nlink : 0;
}

// Appends the children of a process, found in the children file of each thread. Where the threads
// of a process outnumber the processes of the host, it is less work to ask each of these for its
// parent; where the kernel has no such files, it is the only way. `all`: these processes, if they
// were read.
void append_children(std::vector<Link>& links, pid_t pid,
                     std::optional<std::vector<ProcStat>>& all) {
  constexpr std::size_t kFewThreads = 64;
  const std::vector<pid_t> threads = threads_of(pid);
  if (has_children_files() &&
      (threads.size() <= kFewThreads || threads.size() <= process_count())) {
    for (const pid_t tid : threads) {
      for (const pid_t child : children_of(pid, tid)) {
        links.emplace_back(pid, child);
      }
    }
    return;
  }
  if (!all) {
    all.emplace();
    for (const pid_t each : numbers_in("/proc")) {
      if (auto stat = read_stat(fmt::format("/proc/{}", each))) {
        all->push_back(std::move(*stat));
      }
    }
  }
  for (const ProcStat& process : *all) {
    if (process.ppid == pid) {
      links.emplace_back(pid, process.pid);
    }
  }
}

bool contains(std::span<const pid_t> pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

// Returns the links below `roots`, parents before their children. Reads each process once, even if
// it is below several roots. Does not read what is below an excluded process.
std::vector<Link> read_trees(const std::vector<pid_t>& roots, std::span<const pid_t> excluded) {
  std::vector<Link> links;
  std::unordered_set<pid_t> seen(roots.begin(), roots.end());
  const auto must_be_read = [&](pid_t child) {
    return !contains(excluded, child) && seen.insert(child).second;
  };
  std::optional<std::vector<ProcStat>> all;
  for (const pid_t root : roots) {
    append_children(links, root, all);
  }
  for (std::size_t i = 0; i < links.size() && links.size() < kMaxTreeProcesses; ++i) {
    if (must_be_read(links[i].second)) {
      append_children(links, links[i].second, all);
    }
  }
  return links;
}

// Returns the path of the line "6:CONTROLLER:PATH" in /proc/PID/cgroup. The unified hierarchy has
// an empty controller. Returns an empty path if there is no such line.
std::string_view cgroup_path(std::string_view cgroups, std::string_view controller) {
  while (!cgroups.empty()) {
    std::string_view path = take_until(cgroups, '\n');
    (void)take_until(path, ':');  // the number
    if (take_until(path, ':') == controller && !path.empty()) {
      return path;
    }
  }
  return {};
}

// Reads files of one process, and keeps the last failure that may end.
class Reader {
 public:
  Result<std::string> read(const std::string& path) { return noted(read_at_once(path)); }
  bool has_text(const std::string& path, std::string_view word) {
    const auto text = read(path);
    return text && text->find(word) != text->npos;
  }
  template <class T>
  Result<T> noted(Result<T> result) {
    if (!result && is_for_now(result.error())) {
      failure_ = result.error().message;
    }
    return result;
  }
  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  std::string failure_;
};

// Returns whether the main thread sleeps where frozen threads do. /proc/PID/cgroup does not lead to
// the cgroup of a worker in another container, or seen from another cgroup namespace.
bool sleeps_frozen(Reader& reader, const std::string& folder, char state) {
  // In version 2 a frozen thread is in interruptible sleep.
  constexpr std::array<std::string_view, 2> kVersion2{"get_signal", "do_freezer_trap"};
  // In version 1 it is in uninterruptible sleep. Since Linux 6.1 it is also in functions that
  // otherwise sleep interruptibly.
  constexpr std::array<std::string_view, 6> kVersion1{"__refrigerator",   "hrtimer_nanosleep",
                                                      "do_nanosleep",     "futex_do_wait",
                                                      "futex_wait_queue", "do_sigtimedwait"};
  const auto sleeps_in =
      state == 'S' || state == 'D' ? reader.read(folder + "/wchan") : Result<std::string>{};
  const auto is_it = [&](std::string_view name) { return sleeps_in->starts_with(name); };
  return sleeps_in && (state == 'S' ? std::ranges::any_of(kVersion2, is_it)
                                    : std::ranges::any_of(kVersion1, is_it));
}

// Returns the path of the frozen cgroup of the process. Both files show a cgroup below a frozen one
// as frozen, too. The state of version 1 may be FROZEN or FREEZING.
std::string frozen_cgroup(Reader& reader, const std::string& folder, const HaltSources& sources) {
  const std::string cgroups = reader.read(folder + "/cgroup").value_or("");
  // Version 2 is mounted at the root, or at `unified` beside version 1.
  constexpr std::array<std::array<const char*, 4>, 3> kFiles{
      {{"", "", "cgroup.events", "frozen 1"},
       {"", "/unified", "cgroup.events", "frozen 1"},
       {"freezer", "/freezer", "freezer.state", "FR"}}};
  for (const auto& [controller, root, file, word] : kFiles) {
    const std::string_view path = cgroup_path(cgroups, controller);
    // While the root that the server sees is frozen, the server is, too.
    if (!path.empty() && path != "/" &&
        reader.has_text(fmt::format("{}{}{}/{}", sources.cgroups, root, path, file), word)) {
      return std::string(path);
    }
  }
  return {};
}

// Returns the unit of start times.
Duration clock_tick() {
  static const Duration kTick{1'000'000'000 / ::sysconf(_SC_CLK_TCK)};
  return kTick;
}

}  // namespace

std::uint64_t start_time_now() {
  return static_cast<std::uint64_t>(read_clock(CLOCK_BOOTTIME) / clock_tick());
}

Instant Process::started() const {
  const Duration at = static_cast<std::int64_t>(start_time) * clock_tick();
  return {Instant::now().ns - (read_clock(CLOCK_BOOTTIME) - at).count()};
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
    // Newer kernels answer ENOENT.
    if (errno == EINVAL || errno == ENOENT) {
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
  static_cast<ProcStat&>(process) = *stat;
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
  static const std::string kFolder = [] {
    const std::filesystem::path program = link_target("/proc/self/exe");
    return (program.parent_path() / "").string();
  }();
  return kFolder;
}

std::vector<Process> descendants_of(const Process& worker, std::span<const Process> known,
                                    std::span<const pid_t> excluded) {
  std::unordered_map<pid_t, const Process*> root_of{{worker.pid, &worker}};
  std::vector<pid_t> roots{worker.pid};
  for (const Process& process : known) {
    if (root_of.emplace(process.pid, &process).second) {
      roots.push_back(process.pid);
    }
  }
  const std::vector<Link> links = read_trees(roots, excluded);
  if (links.empty()) {
    return {};  // without links the roots need no check
  }
  // A root that is alive after the look had its pid during the look. The links of another root may
  // belong to a later process with the same pid.
  std::unordered_set<pid_t> parents;
  for (const auto& [pid, process] : root_of) {
    if (process->is_alive()) {
      parents.insert(pid);
    }
  }
  std::vector<Process> found;
  for (const auto& [parent, child] : links) {
    if (!parents.contains(parent) || parents.contains(child) || contains(excluded, child)) {
      continue;
    }
    auto process = retry_for_now([child = child] { return open_process(child); });
    // A process with another parent than in the link has a recycled pid, or its parent has ended
    // since. Neither is a target.
    if (process && process->ppid == parent) {
      parents.insert(child);
      found.push_back(std::move(*process));
    }
  }
  return found;
}

std::vector<Process> session_of(const Process& leader, std::span<const Process> known,
                                Sessions& all) {
  constexpr std::size_t kMostProcesses = 2048;  // to look at them takes about 5 ms
  if (!all) {
    all.emplace();
    if (process_count() <= kMostProcesses) {
      for (const pid_t pid : numbers_in("/proc")) {
        all->emplace_back(pid, ::getsid(pid));
      }
    }
  }
  std::vector<Process> found;
  for (const auto& [pid, session] : *all) {
    if (session != leader.pid || pid == leader.pid ||
        std::ranges::find(known, pid, &Process::pid) != known.end()) {
      continue;
    }
    auto process = open_process(pid);
    if (process && process->session == leader.pid) {
      found.push_back(std::move(*process));
    }
  }
  return found;
}

std::string why_halted(pid_t pid, const HaltSources& sources) {
  std::string folder = fmt::format("{}/{}", sources.proc, pid);
  Reader reader;
  // A process whose state cannot be read for now may be halted.
  const auto unknown = [&]() -> std::string {
    return reader.failure().empty() ? "" : "perhaps halted: " + reader.failure();
  };
  auto status = reader.noted(read_status(folder));
  if (status && status->state == 'Z') {
    // The main thread has ended, perhaps before the others (pthread_exit).
    for (const pid_t tid : numbers_in(folder + "/task")) {
      const std::string thread = fmt::format("{}/task/{}", folder, tid);
      if (auto other = reader.noted(read_status(thread)); other && other->state != 'Z') {
        status = std::move(other);
        folder = thread;
        break;
      }
    }
  }
  if (!status) {
    return unknown();
  }
  if (status->tracer != 0) {
    // The helper resumes the process within milliseconds.
    if (sources.is_own_helper(status->tracer)) {
      return {};
    }
    // While the kernel detaches a tracer, TracerPid names the tracer's parent for an instant.
    const auto again = reader.noted(read_status(folder));
    if (!again || again->tracer != status->tracer) {
      return unknown();
    }
    const auto tracer = read_stat(fmt::format("{}/{}", sources.proc, status->tracer));
    return fmt::format("traced by pid {}{}", status->tracer,
                       tracer ? fmt::format(" ({})", tracer->comm) : "");
  }
  if (status->state == 'T') {
    return "stopped (SIGSTOP or the terminal)";
  }
  // The tracer is outside the server's pid namespace.
  if (status->state == 't') {
    return "traced by a process outside the server's pid namespace";
  }
  if (const std::string cgroup = frozen_cgroup(reader, folder, sources); !cgroup.empty()) {
    return fmt::format("frozen by its cgroup '{}'", cgroup);
  }
  if (sleeps_frozen(reader, folder, status->state)) {
    return "frozen by its cgroup";
  }
  return unknown();
}

}  // namespace filetimer
