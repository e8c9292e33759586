// SPDX-License-Identifier: MIT
#include "timer_server/process_tree.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace filetimer {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

// Calls `visit` with every name in `folder` that is a number.
template <class Visit>
void for_each_number(const std::string& folder, Visit&& visit) {
  const std::unique_ptr<DIR, CloseDir> dir(::opendir(folder.c_str()));
  if (!dir) {
    return;
  }
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    pid_t number = 0;
    const auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (ec == std::errc{} && end == name.data() + name.size()) {
      visit(number);
    }
  }
}

// (parent, child)
using Link = std::pair<pid_t, pid_t>;

// False for a kernel without the children files (CONFIG_PROC_CHILDREN).
bool has_children_files() {
  static const bool kHas =
      ::access(fmt::format("/proc/self/task/{}/children", ::getpid()).c_str(), R_OK) == 0;
  return kHas;
}

// What every thread of `pid` has started.
void append_children(pid_t pid, std::vector<Link>& links) {
  for_each_number(fmt::format("/proc/{}/task", pid), [&](pid_t tid) {
    const auto text = read_small_file(fmt::format("/proc/{}/task/{}/children", pid, tid), 1 << 20);
    if (!text) {
      return;
    }
    const char* at = text->data();
    const char* const end = at + text->size();
    while (at < end) {
      pid_t child = 0;
      const auto [next, ec] = std::from_chars(at, end, child);
      if (ec == std::errc{}) {
        links.emplace_back(pid, child);
      }
      at = next + 1;
    }
  });
}

// Every process with its parent, for kernels without the children file.
std::vector<Link> all_links() {
  std::vector<Link> links;
  for_each_number("/proc", [&](pid_t pid) {
    if (const auto stat = read_stat(fmt::format("/proc/{}", pid))) {
      links.emplace_back(stat->ppid, pid);
    }
  });
  return links;
}

bool contains(std::span<const pid_t> pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

// The links below all of `roots`, parents before their children. Each process is read once, however
// many roots it is below of. What is spared is not looked below either.
std::vector<Link> look_at_trees(const std::vector<pid_t>& roots, std::span<const pid_t> spared) {
  std::vector<Link> links;
  std::unordered_set<pid_t> seen(roots.begin(), roots.end());
  const auto is_to_be_read = [&](pid_t child) {
    return !contains(spared, child) && seen.insert(child).second;
  };
  if (has_children_files()) {
    for (const pid_t root : roots) {
      append_children(root, links);
    }
    for (std::size_t i = 0; i < links.size() && links.size() < kMaxTreeProcesses; ++i) {
      if (is_to_be_read(links[i].second)) {
        append_children(links[i].second, links);
      }
    }
    return links;
  }
  std::unordered_multimap<pid_t, pid_t> children;
  for (const auto& [parent, child] : all_links()) {
    children.emplace(parent, child);
  }
  std::vector<pid_t> parents = roots;
  for (std::size_t i = 0; i < parents.size() && links.size() < kMaxTreeProcesses; ++i) {
    const auto [first, last] = children.equal_range(parents[i]);
    for (auto child = first; child != last; ++child) {
      links.emplace_back(parents[i], child->second);
      if (is_to_be_read(child->second)) {
        parents.push_back(child->second);
      }
    }
  }
  return links;
}

// The processes below `worker` and below those of `known` that are neither of them.
std::vector<Process> open_new_in_tree(const Process& worker, std::span<const Process> known,
                                      std::span<const pid_t> spared) {
  std::unordered_map<pid_t, const Process*> root_of{{worker.pid, &worker}};
  std::vector<pid_t> roots{worker.pid};
  for (const Process& process : known) {
    if (root_of.emplace(process.pid, &process).second) {
      roots.push_back(process.pid);
    }
  }
  const std::vector<Link> links = look_at_trees(roots, spared);
  // A pid meant the process that was meant for as long as that process lives.
  std::unordered_set<pid_t> parents;
  for (const auto& [pid, process] : root_of) {
    if (process->is_alive()) {
      parents.insert(pid);
    }
  }
  std::vector<Process> found;
  for (const auto& [parent, child] : links) {
    if (!parents.contains(parent) || parents.contains(child) || contains(spared, child)) {
      continue;
    }
    auto process = open_process(child);
    // A process with another parent by now has a recycled pid, or was handed to a reaper because
    // its parent ended in between. Neither is one to judge here.
    if (process && process->ppid == parent) {
      parents.insert(child);
      found.push_back(std::move(*process));
    }
  }
  return found;
}

std::vector<Process> open_group(const Process& worker, std::span<const pid_t> spared) {
  std::vector<Process> found;
  const auto now = read_stat(fmt::format("/proc/{}", worker.pid));
  if (!now) {
    return found;
  }
  for_each_number("/proc", [&](pid_t pid) {
    const auto stat = read_stat(fmt::format("/proc/{}", pid));
    if (pid == worker.pid || contains(spared, pid) || !stat || stat->pgrp != now->pgrp) {
      return;
    }
    auto process = open_process(pid);
    if (process && process->pgrp == now->pgrp && process->start_time == stat->start_time) {
      found.push_back(std::move(*process));
    }
  });
  return found;
}

}  // namespace

std::vector<Process> new_companions(const Process& worker, std::span<const Process> known,
                                    KillMode mode, std::span<const pid_t> spared) {
  std::vector<Process> found;
  if (mode == KillMode::kTree) {
    found = open_new_in_tree(worker, known, spared);
  } else if (mode == KillMode::kGroup) {
    found = open_group(worker, spared);
    std::set<std::pair<pid_t, std::uint64_t>> are_known;
    for (const Process& process : known) {
      are_known.emplace(process.pid, process.start_time);
    }
    std::erase_if(found, [&](const Process& process) {
      return are_known.contains({process.pid, process.start_time});
    });
    // Alive after the look: its pid meant this process all the while.
    if (!worker.is_alive()) {
      found.clear();
    }
  }
  return found;
}

std::vector<Process> companions_of(const Process& worker, KillMode mode,
                                   std::span<const pid_t> spared, int looks) {
  std::vector<Process> found;
  for (int look = 0; look < looks; ++look) {
    std::vector<Process> news = new_companions(worker, found, mode, spared);
    if (news.empty()) {
      break;
    }
    std::ranges::move(news, std::back_inserter(found));
  }
  return worker.is_alive() ? std::move(found) : std::vector<Process>{};
}

}  // namespace filetimer
