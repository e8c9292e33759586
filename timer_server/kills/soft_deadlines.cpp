// SPDX-License-Identifier: MIT
#include "timer_server/kills/soft_deadlines.hpp"

#include <algorithm>
#include <unordered_map>

namespace filetimer {

void SoftDeadlines::warn() {
  std::unordered_map<Worker*, std::vector<Warnings::Scope>> of_worker;
  for (const DeadlineScan::SoftDueScope& due : std::exchange(noted_, {})) {
    Worker* const worker = core_.workers.find(due.process->pid);
    if (worker == nullptr || worker->process != due.process) {
      continue;  // it was removed after the scan
    }
    if (auto warning = warning_of(due)) {
      of_worker[worker].push_back(std::move(*warning));
    }
  }
  const Instant now = Instant::now();
  for (auto& [worker, scopes] : of_worker) {
    if (worker->dying || !worker->process->is_alive()) {
      continue;  // its exit has woken the loop, and decides
    }
    std::ranges::stable_sort(scopes, {}, [](const auto& scope) { return scope.passed.when; });
    const auto signalled = std::stable_partition(
        scopes.begin(), scopes.end(), [](const auto& scope) { return scope.passed.signal == 0; });
    std::vector<Warnings::Scope> first(std::make_move_iterator(signalled),
                                       std::make_move_iterator(scopes.end()));
    scopes.erase(signalled, scopes.end());
    if (!first.empty()) {
      warnings_.start(WorkerIdentity::of(*worker), std::move(first), now,
                      core_.python_dump_of(*worker));
    }
    const WarningLimit::Share share = worker->warning_limit.take(scopes.size(), now);
    if (share.count > 0) {
      scopes.resize(share.count);
      scopes.front().passed.omitted = share.omitted;
      warnings_.start(WorkerIdentity::of(*worker), std::move(scopes), now);
    }
  }
}

// Returns nothing if the scope was released or renewed after the scan.
std::optional<Warnings::Scope> SoftDeadlines::warning_of(
    const DeadlineScan::SoftDueScope& due) const {
  const auto reading = due.page->read(due.slot.slot, due.slot.word);
  due.page->unmap_names();
  if (!reading) {
    return std::nullopt;
  }
  Warnings::Scope warning;
  const ScopeView scope = core_.policy.view_of(*reading);
  warning.passed = {
      scope, due.slot.deadline, Instant::now(),
      core_.policy.reason_to_warn(scope.terms, due.is_to_be_signalled),
      due.is_to_be_signalled && !core_.settings.kill.dry_run ? scope.terms.signal : 0};
  warning.is_open = [process = due.process, page = due.page, slot = due.slot] {
    return page->is_open(slot.slot, slot.word) && !runs_another_program(*process, *page);
  };
  return warning;
}

}  // namespace filetimer
