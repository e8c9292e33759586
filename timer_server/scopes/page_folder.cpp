// SPDX-License-Identifier: MIT
#include "timer_server/scopes/page_folder.hpp"

#include <cstdio>

#include "common/posix.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

Result<std::vector<std::string>> names_in(const std::string& path) {
  std::vector<std::string> names;
  Directory folder(path);
  while (const char* const name = folder.next()) {
    names.emplace_back(name);
  }
  if (errno != 0 && errno != ENOENT) {
    return system_error(fmt::format("cannot list '{}'", path));
  }
  return names;
}

}  // namespace

Result<PageFolder> PageFolder::make(const std::string& dir) {
  PageFolder folder(fmt::format("{}/{}", dir, kPagesName));
  FILETIMER_TRY(create_run_folder(folder.path_));
  for (const std::string_view name : {kOwnersName, kStacksName, kServerPagesName}) {
    FILETIMER_TRY(create_run_folder(folder.page_path(name)));
  }
  return folder;
}

Result<std::vector<std::string>> PageFolder::names() const {
  auto names = names_in(path_);
  if (names) {
    std::erase_if(*names, [](const std::string& name) {
      return name.starts_with('.') || name == kServerPagesName;
    });
  }
  return names;
}

Result<std::vector<pid_t>> PageFolder::pipe_workers() const {
  const auto names = names_in(server_pages());
  FILETIMER_TRY(names);
  std::vector<pid_t> pids;
  for (const std::string& name : *names) {
    if (const auto pid = number_from<pid_t>(name); pid && *pid > 1) {
      pids.push_back(*pid);
    }
  }
  return pids;
}

void PageFolder::confirm(std::string_view name, Owner owner) const {
  const std::string path = owner_path(name);
  const std::string target =
      fmt::format("{}-{}-{}", owner.pid, owner.start_time, owner.start_stack);
  ::unlink(path.c_str());
  // A symlink is made whole or not at all. If that fails, the next server relies on the page's
  // lock.
  (void)!::symlink(target.c_str(), path.c_str());
}

std::optional<PageFolder::Owner> PageFolder::confirmed_owner(std::string_view name) const {
  const std::string target = link_target(owner_path(name));
  Owner owner;
  return std::sscanf(target.c_str(), "%d-%lu-%lu", &owner.pid, &owner.start_time,
                     &owner.start_stack) == 3
             ? std::optional(owner)
             : std::nullopt;
}

}  // namespace filetimer
