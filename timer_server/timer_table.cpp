// SPDX-License-Identifier: MIT
#include "timer_server/timer_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/limits.hpp"

namespace filetimer {

TimerTable::~TimerTable() {
  for (auto& [pid, worker] : workers_) {
    close_all(*worker);
  }
}

Worker* TimerTable::find_worker(pid_t pid) {
  if (last_found_ != nullptr && last_found_->process->pid == pid) {
    return last_found_;
  }
  const auto found = workers_.find(pid);
  if (found == workers_.end()) {
    return nullptr;
  }
  last_found_ = found->second.get();
  return last_found_;
}

Result<Worker*> TimerTable::add_worker(Process process) {
  if (workers_.size() >= kMaxWorkers) {
    return failure(fmt::format("{} workers are watched: no more fit", kMaxWorkers));
  }
  auto worker = std::make_unique<Worker>();
  const pid_t pid = process.pid;
  worker->process = std::make_shared<const Process>(std::move(process));
  Worker* const added = worker.get();
  workers_[pid] = std::move(worker);
  return added;
}

void TimerTable::remove_worker(Worker& worker) {
  close_all(worker);
  if (last_found_ == &worker) {
    last_found_ = nullptr;
  }
  workers_.erase(worker.process->pid);
}

Result<Scope*> TimerTable::acquire(Worker& worker, std::string_view id, std::string_view name,
                                   const ScopeTerms& terms) {
  if (Scope* const open = find_scope(worker, id)) {
    by_deadline_.erase(by_deadline_.iterator_to(*open));
    open->terms = terms;
    open->sequence = ++acquires_;
    by_deadline_.insert(*open);
    return open;
  }
  if (worker.scopes.size() >= kMaxScopesPerWorker) {
    return failure(
        fmt::format("{} scopes of this worker are open: no more fit", kMaxScopesPerWorker));
  }
  auto* const scope = new Scope(&worker, std::string(id), name.size(), terms);
  scope->sequence = ++acquires_;
  worker.scopes.insert(*scope);
  by_deadline_.insert(*scope);
  ++scope_count_;
  return scope;
}

Scope* TimerTable::find_scope(Worker& worker, std::string_view id) {
  const auto found = worker.scopes.find(id, std::less<>{});
  return found == worker.scopes.end() ? nullptr : &*found;
}

std::vector<const Scope*> TimerTable::scopes_of(const Worker& worker) {
  std::vector<const Scope*> scopes;
  scopes.reserve(worker.scopes.size());
  for (const Scope& scope : worker.scopes) {
    scopes.push_back(&scope);
  }
  std::ranges::sort(scopes, {}, &Scope::sequence);
  return scopes;
}

void TimerTable::close(Scope& scope) {
  by_deadline_.erase(by_deadline_.iterator_to(scope));
  scope.worker->scopes.erase(scope.worker->scopes.iterator_to(scope));
  --scope_count_;
  delete &scope;
}

void TimerTable::close_all(Worker& worker) {
  while (!worker.scopes.empty()) {
    close(*worker.scopes.begin());
  }
}

Instant TimerTable::next_deadline() const {
  return by_deadline_.empty() ? Instant::never() : by_deadline_.begin()->terms.deadline;
}

std::vector<Scope*> TimerTable::due(Instant now) {
  std::vector<Scope*> due;
  for (Scope& scope : by_deadline_) {
    if (scope.terms.deadline > now) {
      break;
    }
    due.push_back(&scope);
  }
  return due;
}

}  // namespace filetimer
