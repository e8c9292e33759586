// Gives every open scope of a worker an identity of its own on the wire, where (pid, scope_id) is
// the timer: the second "step" that is open becomes "step#2". One registry for the whole process,
// since two clients in it speak for the same pid. Not locked: the Keeper's lock covers it.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <unordered_set>

namespace filetimer {

class ScopeIds {
 public:
  // `scope` itself, or with the first free number; nothing when kMaxScopesPerWorker are open.
  std::optional<std::string> open(pid_t pid, const std::string& scope);
  // No longer counts as open. The id stays taken: a release that is still on its way must not end
  // a newer scope of that name.
  void close(pid_t pid) noexcept;
  // The id may be given again.
  void give_back(pid_t pid, const std::string& id) noexcept;
  void clear() noexcept { workers_.clear(); }

 private:
  struct Worker {
    std::size_t open = 0;
    std::unordered_set<std::string> ids;
  };
  std::map<pid_t, Worker> workers_;
};

}  // namespace filetimer
