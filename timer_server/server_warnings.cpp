// The server's warnings: scopes whose soft deadline has passed, told while their worker still
// lives. A turn comes to them last: no verdict waits for a warning, and a scope whose deadline has
// passed as well has got its verdict and nothing else.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>

#include "common/duration_text.hpp"
#include "timer_server/server.hpp"

namespace filetimer {

void Server::note_soft_due(const Worker& worker, const std::shared_ptr<WorkerPage>& page,
                           const std::vector<WorkerPage::Due>& slots) {
  for (const WorkerPage::Due& slot : slots) {
    soft_due_.push_back({worker.process, page, slot});
  }
}

void Server::warn() {
  std::unordered_map<Worker*, std::vector<Warnings::Scope>> of_worker;
  for (const SoftDueSlot& due : std::exchange(soft_due_, {})) {
    Worker* const worker = workers_.find(due.process->pid);
    if (worker == nullptr || worker->process != due.process) {
      continue;  // it has ended since the scan
    }
    if (auto warning = warning_of(due)) {
      of_worker[worker].push_back(std::move(*warning));
    }
  }
  const Instant now = Instant::now();
  for (auto& [worker, scopes] : of_worker) {
    if (worker->dying || !worker->process->is_alive()) {
      continue;  // its end decides, which is on its way to us
    }
    std::ranges::stable_sort(scopes, {}, [](const auto& scope) { return scope.passed.when; });
    const WarningLimit::Share share = worker->warning_limit.take(scopes.size(), now);
    if (share.count > 0) {
      scopes.resize(share.count);
      scopes.front().passed.omitted = share.omitted;
      warnings_.start(WorkerIdentity::of(*worker), std::move(scopes), now);
    }
  }
}

// None when it was released or renewed since the scan.
std::optional<Warnings::Scope> Server::warning_of(const SoftDueSlot& due) const {
  const auto reading = due.page->read(due.slot.slot, due.slot.word);
  due.page->unmap_names();
  if (!reading) {
    return std::nullopt;
  }
  Warnings::Scope warning;
  const ScopeView scope = view_of(*reading);
  warning.passed = {scope, due.slot.deadline, Instant::now(), reason_of(scope.terms)};
  warning.is_open = [page = due.page, slot = due.slot] {
    return page->is_open(slot.slot, slot.word);
  };
  return warning;
}

std::string Server::reason_of(const ScopeTerms& terms) const {
  return terms.soft_ms != 0
             ? fmt::format("its soft deadline of {} has passed",
                           duration_text(std::chrono::milliseconds{terms.soft_ms}))
             : fmt::format("{} of its timeout has passed (--warn-at)", *settings_.warn_at);
}

}  // namespace filetimer
