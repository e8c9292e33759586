// Every open scope of every worker, and which deadline comes next, soft ones included. No system
// call is made here and no clock is read: callers say what time it is. Used by the loop thread
// alone.
//
// One scope is one node that stands in two trees, its worker's (by identity) and the table's (by
// when it is next to be looked at), and in its worker's list (by age), so opening and closing one
// costs one allocation and O(log n), and judging looks only at what is due.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/pages/wire_page.hpp"
#include "timer_server/process.hpp"
#include "timer_server/warning_limit.hpp"
#include "timer_server/worker_facts.hpp"

namespace filetimer {

struct Worker;
class WorkerPage;

namespace hooks {
namespace bi = boost::intrusive;
struct ById;
struct ByNext;
struct ByAge;
template <class Tag>
using Hook = bi::set_base_hook<bi::tag<Tag>, bi::optimize_size<true>, bi::link_mode<bi::safe_link>>;
using AgeHook = bi::list_base_hook<bi::tag<ByAge>, bi::link_mode<bi::safe_link>>;
}  // namespace hooks

// From the signal to SIGKILL; at most kLongestGraceMs.
using Grace = std::chrono::duration<std::uint32_t, std::milli>;
std::optional<Grace> grace_of(std::optional<Duration> grace);  // rounded up

// What somebody asked for when the scope was opened or renewed.
struct ScopeTerms {
  Instant acquired;
  Instant deadline;                // Instant::never(): none
  Duration timeout = kForever;     // as granted; kForever: none
  Duration asked = kForever;       // what --max-timeout may have cut
  std::optional<Grace> grace;      // none: one signal and no more
  std::uint32_t soft_ms = 0;       // from `acquired` to a warning; 0: by --warn-at
  int signal = 0;                  // 0 or less: kill nobody
  pid_t tid = 0;                   // 0: unknown
  bool whole_process : 1 = false;  // the worker's end ends it in time
  bool is_idle : 1 = false;        // no scope: the worker's idle timeout, while it is in none
  bool spare_if_left : 1 = false;  // left within the grace, nobody is killed for it
  bool is_extended : 1 = false;    // the server's lateness was given back
  bool is_paused : 1 = false;      // its time stands still; known of pages only
};

// Its identity stands behind it in the same block of memory: of the 100,000 that may be open, a
// string in each would be another 48 bytes.
struct Scope : hooks::Hook<hooks::ById>, hooks::Hook<hooks::ByNext>, hooks::AgeHook {
  static Scope* make(Worker* owner, std::string_view identity, std::size_t name_length,
                     const ScopeTerms& asked);
  static void destroy(Scope& scope);

  [[nodiscard]] std::string_view id() const {
    return {reinterpret_cast<const char*>(this + 1), id_bytes};
  }
  // A scope that its worker is in: not its whole life, which somebody else watches, nor no scope.
  [[nodiscard]] bool is_own() const { return !terms.whole_process && !terms.is_idle; }
  // The name that people gave; the identity may have a "#2" behind it.
  [[nodiscard]] std::string_view name() const { return id().substr(0, shown_bytes); }

  Worker* worker;
  std::uint32_t id_bytes;
  std::uint16_t shown_bytes;
  WirePage::SlotNumber slot = WirePage::kNone;  // in its worker's wire page
  // When there is something to do for it: its soft deadline, then its deadline.
  Instant next;
  ScopeTerms terms;

 private:
  Scope(Worker* owner, std::size_t id_length, std::size_t name_length, const ScopeTerms& asked)
      : worker(owner),
        id_bytes(static_cast<std::uint32_t>(id_length)),
        shown_bytes(static_cast<std::uint16_t>(name_length)),
        terms(asked) {}
  ~Scope() = default;
};

struct ScopeIdOf {
  using type = std::string_view;
  std::string_view operator()(const Scope& scope) const { return scope.id(); }
};
struct ScopeNextOf {
  using type = Instant;
  const Instant& operator()(const Scope& scope) const { return scope.next; }
};

using ScopesById =
    boost::intrusive::set<Scope, boost::intrusive::base_hook<hooks::Hook<hooks::ById>>,
                          boost::intrusive::key_of_value<ScopeIdOf>,
                          boost::intrusive::compare<std::less<>>>;
using ScopesByNext =
    boost::intrusive::multiset<Scope, boost::intrusive::base_hook<hooks::Hook<hooks::ByNext>>,
                               boost::intrusive::key_of_value<ScopeNextOf>,
                               boost::intrusive::constant_time_size<false>>;

// Empty until the side thread has read them; shared with the records that wait for them.
using FactsCell = std::shared_ptr<std::optional<WorkerFacts>>;

// The one opened last at the back.
using ScopesByAge = boost::intrusive::list<Scope, boost::intrusive::base_hook<hooks::AgeHook>,
                                           boost::intrusive::constant_time_size<false>>;

struct Worker {
  std::shared_ptr<const Process> process;
  FactsCell facts = std::make_shared<std::optional<WorkerFacts>>();
  // Of the pipe.
  ScopesById scopes;
  ScopesByAge by_age;
  Instant left_on_pipe;                 // when it released a scope of its own last
  std::unique_ptr<WirePage> wire_page;  // where they are kept; null: nowhere
  // The rest of its scopes: one page for each library in the process that has one of its own.
  std::vector<std::shared_ptr<WorkerPage>> pages;
  // A kill that ends in SIGKILL is under way: what it still asks for does not count.
  bool dying = false;
  WarningLimit warning_limit;
  // Open scopes of the pipe; no scope is none.
  [[nodiscard]] std::size_t count_on_pipe() const {
    const auto is_scope = [](const Scope& scope) { return !scope.terms.is_idle; };
    return static_cast<std::size_t>(std::ranges::count_if(by_age, is_scope));
  }
  // Records that the worker has been in no scope since `acquired`, when its idle timer began. The
  // server may have read the line of the last release later than that.
  void set_idle_since(Instant acquired) { left_on_pipe = std::min(left_on_pipe, acquired); }
  // In a scope of the pipe that it has opened itself.
  [[nodiscard]] bool is_inside_on_pipe() const {
    return std::ranges::any_of(by_age, [](const Scope& scope) { return scope.is_own(); });
  }
  // The batch of requests in which the process was last seen alive.
  std::uint64_t seen_alive_in = 0;
};

class TimerTable {
 public:
  // `warn_at`: --warn-at as the board has it; 0: none.
  explicit TimerTable(std::uint32_t warn_at = 0) : warn_at_(warn_at) {}
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
  void close(Scope& scope);
  // As close(), but what is kept of it says that it expired, until the slot that this gives is
  // closed.
  WirePage::SlotNumber expire(Scope& scope);
  // A later deadline than was asked for; Instant::never(): until it is postponed again. What is
  // kept for the next server has the deadline, unless it is never().
  void postpone(Scope& scope, Instant until);
  // A scope that a server before this one has kept in `slot`.
  Result<Scope*> adopt(Worker& worker, std::string_view id, std::string_view name,
                       const ScopeTerms& terms, WirePage::SlotNumber slot);
  void close_all(Worker& worker);

  // Of all deadlines, and the soft ones of scopes that were not warned about. Instant::never():
  // none is set.
  [[nodiscard]] Instant next_deadline() const;
  // The scopes whose deadline is at or before `now`, the earliest first.
  [[nodiscard]] std::vector<Scope*> due(Instant now);

  // The scopes whose soft deadline is at or before `now` and whose deadline is not, the earliest
  // first. Each is given once, until it is renewed.
  struct SoftDue {
    Scope* scope;
    Instant soft;
  };
  std::vector<SoftDue> take_soft_due(Instant now);

  [[nodiscard]] std::size_t worker_count() const { return workers_.size(); }
  [[nodiscard]] std::size_t scope_count() const { return scope_count_; }
  template <class Visit>
  void for_each_worker(Visit&& visit) {
    for (auto& [pid, worker] : workers_) {
      visit(*worker);
    }
  }

 private:
  Result<Scope*> insert(Worker& worker, std::string_view id, std::string_view name,
                        const ScopeTerms& terms);
  void remove(Scope& scope);
  void look_at(Scope& scope, Instant next);
  [[nodiscard]] Instant next_of(const ScopeTerms& terms) const;

  const std::uint32_t warn_at_;
  std::unordered_map<pid_t, std::unique_ptr<Worker>> workers_;
  Worker* last_found_ = nullptr;  // requests of one worker come in bursts
  ScopesByNext by_next_;
  std::size_t scope_count_ = 0;
};

}  // namespace filetimer
