// SPDX-License-Identifier: MIT
#include "timer_server/timer_table.hpp"

#include <fmt/format.h>

#include <cstring>
#include <new>

#include "common/limits.hpp"

namespace filetimer {

Scope* Scope::make(Worker* owner, std::string_view identity, std::size_t name_length,
                   const ScopeTerms& asked) {
  void* const room = ::operator new(sizeof(Scope) + identity.size());
  auto* const scope = new (room) Scope(owner, identity.size(), name_length, asked);
  std::memcpy(static_cast<char*>(room) + sizeof(Scope), identity.data(), identity.size());
  return scope;
}

void Scope::destroy(Scope& scope) {
  scope.~Scope();
  ::operator delete(&scope);
}

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
    worker.by_age.splice(worker.by_age.end(), worker.by_age, worker.by_age.iterator_to(*open));
    by_deadline_.insert(*open);
    if (worker.wire_page) {
      worker.wire_page->renew(open->slot, terms);
    }
    return open;
  }
  auto scope = insert(worker, id, name, terms);
  if (scope && worker.wire_page) {
    (*scope)->slot = worker.wire_page->open(id, name.size(), terms);
  }
  return scope;
}

Result<Scope*> TimerTable::adopt(Worker& worker, std::string_view id, std::string_view name,
                                 const ScopeTerms& terms, WirePage::SlotNumber slot) {
  // Acquired again after a verdict that nobody has recorded: the later one counts.
  if (Scope* const other = find_scope(worker, id)) {
    if (other->terms.acquired >= terms.acquired) {
      worker.wire_page->close(slot);
      return other;
    }
    close(*other);
  }
  auto scope = insert(worker, id, name, terms);
  if (scope) {
    (*scope)->slot = slot;
  }
  return scope;
}

Result<Scope*> TimerTable::insert(Worker& worker, std::string_view id, std::string_view name,
                                  const ScopeTerms& terms) {
  if (worker.scopes.size() >= kMaxScopesPerWorker) {
    return failure(
        fmt::format("{} scopes of this worker are open: no more fit", kMaxScopesPerWorker));
  }
  auto* const scope = Scope::make(&worker, id, name.size(), terms);
  worker.scopes.insert(*scope);
  worker.by_age.push_back(*scope);
  by_deadline_.insert(*scope);
  ++scope_count_;
  return scope;
}

Scope* TimerTable::find_scope(Worker& worker, std::string_view id) {
  const auto found = worker.scopes.find(id, std::less<>{});
  return found == worker.scopes.end() ? nullptr : &*found;
}

void TimerTable::postpone(Scope& scope, Instant until) {
  by_deadline_.erase(by_deadline_.iterator_to(scope));
  scope.terms.deadline = until;
  by_deadline_.insert(scope);
  if (scope.worker->wire_page && !until.is_never()) {
    scope.worker->wire_page->renew(scope.slot, scope.terms);
  }
}

void TimerTable::close(Scope& scope) {
  if (scope.worker->wire_page) {
    scope.worker->wire_page->close(scope.slot);
  }
  remove(scope);
}

WirePage::SlotNumber TimerTable::expire(Scope& scope) {
  const WirePage::SlotNumber slot = scope.slot;
  if (scope.worker->wire_page) {
    scope.worker->wire_page->expire(slot, scope.terms);
  }
  remove(scope);
  return slot;
}

void TimerTable::remove(Scope& scope) {
  by_deadline_.erase(by_deadline_.iterator_to(scope));
  scope.worker->scopes.erase(scope.worker->scopes.iterator_to(scope));
  scope.worker->by_age.erase(scope.worker->by_age.iterator_to(scope));
  --scope_count_;
  Scope::destroy(scope);
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
