// SPDX-License-Identifier: MIT
#include "timer_server/timer_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "common/limits.hpp"
#include "common/soft_deadline.hpp"

namespace filetimer {
namespace {

// A client that found its server gone says all that is open again, with the same deadlines: their
// way over the wall clock moves them by less than this. A renewal moves them by more, or asks for
// another timeout.
constexpr Duration kSameDeadline = std::chrono::milliseconds{1};

bool says_the_same(const ScopeTerms& before, const ScopeTerms& now) {
  return !now.deadline.is_never() && !before.deadline.is_never() && before.asked == now.asked &&
         std::chrono::abs(now.deadline - before.deadline) < kSameDeadline;
}

}  // namespace

std::optional<Grace> grace_of(std::optional<Duration> grace) {
  if (!grace) {
    return std::nullopt;
  }
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*grace).count();
  return Grace{static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 0, kLongestGraceMs))};
}

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
    const bool is_warned = open->next == open->terms.deadline && says_the_same(open->terms, terms);
    open->terms = terms;
    worker.by_age.splice(worker.by_age.end(), worker.by_age, worker.by_age.iterator_to(*open));
    look_at(*open, is_warned ? terms.deadline : next_of(terms));
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
  scope->next = next_of(terms);
  by_next_.insert(*scope);
  ++scope_count_;
  return scope;
}

Scope* TimerTable::find_scope(Worker& worker, std::string_view id) {
  const auto found = worker.scopes.find(id, std::less<>{});
  return found == worker.scopes.end() ? nullptr : &*found;
}

void TimerTable::postpone(Scope& scope, Instant until) {
  const bool is_warned = scope.next == scope.terms.deadline;
  scope.terms.deadline = until;
  look_at(scope, is_warned ? until : next_of(scope.terms));
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
  by_next_.erase(by_next_.iterator_to(scope));
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

Instant TimerTable::next_of(const ScopeTerms& terms) const {
  if (terms.is_idle) {
    return terms.deadline;  // nobody is warned that a worker is in no scope
  }
  return std::min(soft_time(terms.acquired, terms.deadline, terms.soft_ms, warn_at_),
                  terms.deadline);
}

void TimerTable::look_at(Scope& scope, Instant next) {
  by_next_.erase(by_next_.iterator_to(scope));
  scope.next = next;
  by_next_.insert(scope);
}

Instant TimerTable::next_deadline() const {
  return by_next_.empty() ? Instant::never() : by_next_.begin()->next;
}

std::vector<Scope*> TimerTable::due(Instant now) {
  std::vector<Scope*> due;
  for (Scope& scope : by_next_) {
    if (scope.next > now) {
      break;
    }
    if (scope.terms.deadline <= now) {
      due.push_back(&scope);
    }
  }
  // One that was not warned about stands where its soft deadline was.
  std::ranges::stable_sort(due, {}, [](const Scope* scope) { return scope->terms.deadline; });
  return due;
}

std::vector<TimerTable::SoftDue> TimerTable::take_soft_due(Instant now) {
  std::vector<SoftDue> due;
  for (Scope& scope : by_next_) {
    if (scope.next > now) {
      break;
    }
    if (scope.terms.deadline > now) {
      due.push_back({&scope, scope.next});
    }
  }
  for (const SoftDue& each : due) {
    look_at(*each.scope, each.scope->terms.deadline);
  }
  return due;
}

}  // namespace filetimer
