// Every open scope of every worker, and which deadline comes next. No system call is made here and
// no clock is read: callers say what time it is. Used by the loop thread alone.
//
// One scope is one node that stands in two trees, its worker's (by identity) and the table's (by
// deadline), so opening and closing one costs one allocation and O(log n), and judging looks only
// at what is due.
// SPDX-License-Identifier: MIT
#pragma once

#include <boost/intrusive/set.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/process.hpp"
#include "timer_server/worker_facts.hpp"

namespace filetimer {

struct Worker;

namespace hooks {
namespace bi = boost::intrusive;
struct ById;
struct ByDeadline;
template <class Tag>
using Hook = bi::set_base_hook<bi::tag<Tag>, bi::optimize_size<true>, bi::link_mode<bi::safe_link>>;
}  // namespace hooks

// What somebody asked for when the scope was opened or renewed.
struct ScopeTerms {
  Instant acquired;
  Instant deadline;               // Instant::never(): none
  Duration timeout = kForever;    // as granted; kForever: none
  std::optional<Duration> grace;  // from the signal to SIGKILL; none: one signal and no more
  int signal = 0;                 // 0 or less: kill nobody
  pid_t tid = 0;                  // 0: unknown
  bool whole_process = false;     // the worker's end ends it in time
};

struct Scope : hooks::Hook<hooks::ById>, hooks::Hook<hooks::ByDeadline> {
  Scope(Worker* owner, std::string identity, std::size_t name_length, const ScopeTerms& asked)
      : worker(owner), id(std::move(identity)), shown_bytes(name_length), terms(asked) {}

  // The name that people gave; the identity may have a "#2" behind it.
  [[nodiscard]] std::string_view name() const {
    return std::string_view(id).substr(0, shown_bytes);
  }

  Worker* worker;
  std::string id;
  std::size_t shown_bytes;
  ScopeTerms terms;
  std::uint64_t sequence = 0;  // grows with every acquire: which was opened first
};

struct ScopeIdOf {
  using type = std::string;
  const std::string& operator()(const Scope& scope) const { return scope.id; }
};
struct ScopeDeadlineOf {
  using type = Instant;
  const Instant& operator()(const Scope& scope) const { return scope.terms.deadline; }
};

using ScopesById =
    boost::intrusive::set<Scope, boost::intrusive::base_hook<hooks::Hook<hooks::ById>>,
                          boost::intrusive::key_of_value<ScopeIdOf>,
                          boost::intrusive::compare<std::less<>>>;
using ScopesByDeadline =
    boost::intrusive::multiset<Scope, boost::intrusive::base_hook<hooks::Hook<hooks::ByDeadline>>,
                               boost::intrusive::key_of_value<ScopeDeadlineOf>,
                               boost::intrusive::constant_time_size<false>>;

// Empty until the side thread has read them; shared with the records that wait for them.
using FactsCell = std::shared_ptr<std::optional<WorkerFacts>>;

struct Worker {
  std::shared_ptr<const Process> process;
  FactsCell facts = std::make_shared<std::optional<WorkerFacts>>();
  ScopesById scopes;
  // A kill that ends in SIGKILL is under way: what it still asks for does not count.
  bool dying = false;
  // The batch of requests in which the process was last seen alive.
  std::uint64_t seen_alive_in = 0;
};

class TimerTable {
 public:
  TimerTable() = default;
  ~TimerTable();
  TimerTable(const TimerTable&) = delete;
  TimerTable& operator=(const TimerTable&) = delete;

  [[nodiscard]] Worker* find_worker(pid_t pid);
  // The pid must be new. Refused at kMaxWorkers.
  Result<Worker*> add_worker(Process process);
  void remove_worker(Worker& worker);

  // Opens a scope, or replaces the terms of the one with this identity that is open.
  // `name` is what people call it, a beginning of `id`. Refused at kMaxScopesPerWorker.
  Result<Scope*> acquire(Worker& worker, std::string_view id, std::string_view name,
                         const ScopeTerms& terms);
  [[nodiscard]] Scope* find_scope(Worker& worker, std::string_view id);
  // In the order in which they were opened.
  [[nodiscard]] static std::vector<const Scope*> scopes_of(const Worker& worker);
  void close(Scope& scope);
  void close_all(Worker& worker);

  // Instant::never() when no deadline is set.
  [[nodiscard]] Instant next_deadline() const;
  // The scopes whose deadline is at or before `now`, the earliest first.
  [[nodiscard]] std::vector<Scope*> due(Instant now);

  [[nodiscard]] std::size_t worker_count() const { return workers_.size(); }
  [[nodiscard]] std::size_t scope_count() const { return scope_count_; }
  template <class Visit>
  void for_each_worker(Visit&& visit) {
    for (auto& [pid, worker] : workers_) {
      visit(*worker);
    }
  }

 private:
  std::unordered_map<pid_t, std::unique_ptr<Worker>> workers_;
  Worker* last_found_ = nullptr;  // requests of one worker come in bursts
  ScopesByDeadline by_deadline_;
  std::size_t scope_count_ = 0;
  std::uint64_t acquires_ = 0;
};

}  // namespace filetimer
