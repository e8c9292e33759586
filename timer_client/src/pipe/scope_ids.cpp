// SPDX-License-Identifier: MIT
#include "timer_client/src/pipe/scope_ids.hpp"

#include <fmt/format.h>

#include "common/limits.hpp"

namespace filetimer {

std::optional<std::string> ScopeIds::open(pid_t pid, const std::string& scope) {
  Worker& worker = workers_[pid];
  if (worker.open >= kMaxScopesPerWorker) {
    return std::nullopt;
  }
  std::string id = scope;
  // Ends: ids are given back, so no more are taken than there are timers.
  for (std::size_t number = 2; !worker.ids.insert(id).second; ++number) {
    id = fmt::format("{}#{}", scope, number);
  }
  ++worker.open;
  return id;
}

void ScopeIds::close(pid_t pid) noexcept {
  if (const auto worker = workers_.find(pid); worker != workers_.end()) {
    --worker->second.open;
  }
}

void ScopeIds::give_back(pid_t pid, const std::string& id) noexcept {
  const auto worker = workers_.find(pid);
  if (worker == workers_.end()) {
    return;
  }
  worker->second.ids.erase(id);
  if (worker->second.ids.empty()) {
    workers_.erase(worker);
  }
}

}  // namespace filetimer
