// SPDX-License-Identifier: MIT
#include "timer_server/system/process_tree.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/directory.hpp"
#include "common/numbers.hpp"
#include "common/proc_files.hpp"

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

// Returns every process of the host with its parent.
std::vector<Link> all_links() {
  std::vector<Link> links;
  Directory proc("/proc");
  while (const char* const name = proc.next()) {
    if (const auto pid = number_from<pid_t>(name)) {
      if (const auto stat = read_stat(fmt::format("/proc/{}", *pid))) {
        links.emplace_back(stat->ppid, *pid);
      }
    }
  }
  return links;
}

// Returns about how many processes the host has.
std::size_t process_count() {
  struct stat proc {};
  return ::stat("/proc", &proc) == 0 ? proc.st_nlink : 0;
}

// Finds the children of processes, in the children file of each thread. Where the threads of a
// process outnumber the processes of the host, it is less work to ask each of these for its parent;
// where the kernel has no such files, it is the only way.
class Children {
 public:
  void append_to(std::vector<Link>& links, pid_t pid) {
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
    if (!all_) {
      all_ = all_links();
    }
    std::ranges::copy_if(*all_, std::back_inserter(links),
                         [pid](const Link& link) { return link.first == pid; });
  }

 private:
  std::optional<std::vector<Link>> all_;
};

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
  Children children;
  for (const pid_t root : roots) {
    children.append_to(links, root);
  }
  for (std::size_t i = 0; i < links.size() && links.size() < kMaxTreeProcesses; ++i) {
    if (must_be_read(links[i].second)) {
      children.append_to(links, links[i].second);
    }
  }
  return links;
}

}  // namespace

std::vector<Process> new_descendants_of(const Process& worker, std::span<const Process> known,
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
    auto process = open_process(child);
    // A process with another parent than in the link has a recycled pid, or its parent has ended
    // since. Neither is a target.
    if (process && process->ppid == parent) {
      parents.insert(child);
      found.push_back(std::move(*process));
    }
  }
  return found;
}

std::vector<Process> Sessions::of(const Process& leader, std::span<const Process> known) {
  if (!all_) {
    all_.emplace();
    Directory proc(process_count() <= kMostProcesses ? "/proc" : "");
    while (const char* const name = proc.next()) {
      const auto pid = number_from<pid_t>(name);
      const auto stat = pid ? read_stat(fmt::format("/proc/{}", *pid)) : Result<ProcStat>{};
      if (pid && stat) {
        all_->push_back({stat->session, *pid, stat->start_time});
      }
    }
  }
  std::vector<Process> found;
  for (const Member& member : *all_) {
    if (member.session != leader.pid || member.pid == leader.pid ||
        std::ranges::find(known, member.pid, &Process::pid) != known.end()) {
      continue;
    }
    auto process = open_process(member.pid);
    if (process && process->start_time == member.start_time) {
      found.push_back(std::move(*process));
    }
  }
  return found;
}

std::vector<Process> descendants_of(const Process& worker, std::span<const pid_t> excluded,
                                    int looks) {
  std::vector<Process> found;
  for (int look = 0; look < looks; ++look) {
    std::vector<Process> news = new_descendants_of(worker, found, excluded);
    if (news.empty()) {
      break;
    }
    std::ranges::move(news, std::back_inserter(found));
  }
  return worker.is_alive() ? std::move(found) : std::vector<Process>{};
}

}  // namespace filetimer
