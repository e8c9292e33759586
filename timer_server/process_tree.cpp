// SPDX-License-Identifier: MIT
#include "timer_server/process_tree.hpp"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <set>
#include <string>
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

// What every thread of `pid` has started. False when this kernel does not tell
// (CONFIG_PROC_CHILDREN).
bool append_children(pid_t pid, std::vector<Link>& links) {
  bool told = false;
  for_each_number(fmt::format("/proc/{}/task", pid), [&](pid_t tid) {
    const auto text = read_small_file(fmt::format("/proc/{}/task/{}/children", pid, tid), 1 << 20);
    if (!text) {
      return;
    }
    told = true;
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
  return told;
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

// What is spared is not looked below either.
std::vector<Link> look_at_tree(pid_t root, std::span<const pid_t> spared) {
  std::vector<Link> tree;
  if (!append_children(root, tree)) {
    const std::vector<Link> all = all_links();
    std::vector<pid_t> parents{root};
    for (std::size_t i = 0; i < parents.size() && tree.size() < kMaxTreeProcesses; ++i) {
      for (const Link& link : all) {
        if (link.first == parents[i] && !contains(spared, link.second)) {
          tree.push_back(link);
          parents.push_back(link.second);
        }
      }
    }
    return tree;
  }
  for (std::size_t i = 0; i < tree.size() && tree.size() < kMaxTreeProcesses; ++i) {
    if (!contains(spared, tree[i].second)) {
      append_children(tree[i].second, tree);
    }
  }
  return tree;
}

std::vector<Process> open_tree(const Process& worker, std::span<const pid_t> spared, int looks) {
  std::set<Link> known;
  std::vector<Process> found;
  for (int look = 0; look < looks; ++look) {
    bool news = false;
    for (const Link& link : look_at_tree(worker.pid, spared)) {
      if (!known.insert(link).second || contains(spared, link.second)) {
        continue;
      }
      news = true;
      auto process = open_process(link.second);
      // Whose parent is another one by now is another process under a recycled pid, or was
      // handed to a reaper because its parent ended in between; both are not ours to judge.
      if (process && process->ppid == link.first) {
        found.push_back(std::move(*process));
      }
    }
    if (!news) {
      break;
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

std::vector<Process> companions_of(const Process& worker, KillMode mode,
                                   std::span<const pid_t> spared, int looks) {
  std::vector<Process> found;
  if (mode == KillMode::kTree) {
    found = open_tree(worker, spared, looks);
  } else if (mode == KillMode::kGroup) {
    found = open_group(worker, spared);
  }
  // Alive after the look: its pid meant this process all the while.
  return worker.is_alive() ? std::move(found) : std::vector<Process>{};
}

}  // namespace filetimer
