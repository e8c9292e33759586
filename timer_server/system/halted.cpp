// SPDX-License-Identifier: MIT
#include "timer_server/system/halted.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "common/proc_files.hpp"

namespace filetimer {
namespace {

// Returns the path of the line "6:CONTROLLER:PATH" in /proc/PID/cgroup. The unified hierarchy has
// an empty controller. Returns an empty path if there is no such line.
std::string_view cgroup_path(std::string_view cgroups, std::string_view controller) {
  while (!cgroups.empty()) {
    const std::string_view line = cgroups.substr(0, cgroups.find('\n'));
    cgroups.remove_prefix(std::min(line.size() + 1, cgroups.size()));
    const std::size_t number_end = line.find(':');
    const std::size_t names_end = line.find(':', number_end + 1);
    if (names_end != line.npos &&
        line.substr(number_end + 1, names_end - number_end - 1) == controller) {
      return line.substr(names_end + 1);
    }
  }
  return {};
}

// Reads files of one process, and keeps the last failure that may end.
class Reader {
 public:
  Result<std::string> read(const std::string& path) { return noted(read_small_file(path)); }
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
  const auto cgroups = reader.read(folder + "/cgroup");
  if (!cgroups) {
    return {};
  }
  // Version 2 is mounted at the root, or at `unified` beside version 1.
  constexpr std::array<std::array<const char*, 4>, 3> kFiles{
      {{"", "", "cgroup.events", "frozen 1"},
       {"", "/unified", "cgroup.events", "frozen 1"},
       {"freezer", "/freezer", "freezer.state", "FR"}}};
  for (const auto& [controller, root, file, word] : kFiles) {
    const std::string_view path = cgroup_path(*cgroups, controller);
    // While the root that the server sees is frozen, the server is, too.
    if (!path.empty() && path != "/" &&
        reader.has_text(fmt::format("{}{}{}/{}", sources.cgroups, root, path, file), word)) {
      return std::string(path);
    }
  }
  return {};
}

}  // namespace

std::string why_halted(pid_t pid, const IsOwnHelper& is_own_helper, const HaltSources& sources) {
  const std::string folder = fmt::format("{}/{}", sources.proc, pid);
  Reader reader;
  // A process whose state cannot be read for now may be halted.
  const auto unknown = [&]() -> std::string {
    return reader.failure().empty() ? "" : "perhaps halted: " + reader.failure();
  };
  const auto status = reader.noted(read_status(folder));
  if (!status) {
    return unknown();
  }
  if (status->tracer != 0) {
    // The helper resumes the process within milliseconds.
    if (is_own_helper(status->tracer)) {
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
