// What is behind a TimerClient and the scopes that it made. What opening a scope on the page needs
// each time is inline and wants no lock.
// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filetimer/timer_client.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "timer_client/src/fork_watch.hpp"
#include "timer_client/src/keeper.hpp"
#include "timer_client/src/page/page_scope.hpp"
#include "timer_client/src/questions/asker.hpp"
#include "timer_client/src/server/shutdown_watch.hpp"

namespace filetimer {

inline bool is_open_here(const SlotHandle& handle, unsigned long long generation,
                         unsigned fork_count) {
  return fork_count == fork_watch::count() &&
         handle.generation.load(std::memory_order_relaxed) == generation;
}

struct TimerClient::State {
  State(std::unique_ptr<Transport> transport, Asker questions)
      : outbox(Keeper::instance().add(std::move(transport))),
        number(Keeper::instance().next_number()),
        asker(std::move(questions)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  // Wants the lock not to be held: nobody but the last owner gets here.
  ~State() {
    const auto held = Keeper::instance().lock();
    Keeper::instance().abandon(outbox);
  }

  [[nodiscard]] bool uses_page(const ScopeOptions& options) const {
    return page != nullptr && !options.whole_process &&
           (options.pid == 0 || options.pid == ::getpid());
  }

  // While the server has announced its end, scopes on the page are not opened. Relaxed: a scope
  // that is opened in the same moment is watched for as long as there is a server.
  [[nodiscard]] [[gnu::always_inline]] bool is_page_closed() const {
    return page->board().announcement.load(std::memory_order_relaxed) !=
           static_cast<std::uint32_t>(Announcement::kNone);
  }

  // A slot for a scope on the page; see open_scope(). Null: there is no room for one, and it has to
  // go over the pipe.
  [[gnu::always_inline]] SlotHandle* claim(ScopeKey key, bool has_lock) {
    SlotHandle* const handle = claim_without_lock(*page, key);
    return handle != nullptr ? handle : claim_with_lock(key, has_lock);
  }

  SlotHandle* claim_with_lock(ScopeKey key, bool has_lock);

  // These want the lock to be held.
  TimerId acquire(std::string_view name, Duration after, const ScopeOptions& options, bool& wake);

  TimerId acquire_on_pipe(std::string scope, Duration after, const ScopeOptions& options,
                          Outbox::Owner owner);

  bool renew(TimerId timer, Duration after, bool& wake);

  bool release(TimerId timer) noexcept;

  // `state`: null for a timer on the page that its scope has. Wants the lock not to be held.
  static bool set_paused(State* state, TimerId timer, bool is_paused);

  // The timeout of a scope that is about to be opened.
  [[nodiscard]] Duration timeout_for(std::string_view shown, Duration after,
                                     const ScopeOptions& options);

  [[nodiscard]] std::optional<TimerTimes> times(TimerId timer) const;

  // Before the scope is opened: the processor lets nothing be read while it sets the deadline.
  static TimerId timer_in(SlotHandle& handle) {
    return {&handle, handle.generation.load(std::memory_order_relaxed), fork_watch::count()};
  }

  // A function of its own, so that the scope is made in its place and not copied there.
  [[gnu::always_inline]] static TimerScope expires(SlotHandle& handle, const PageTerms& terms) {
    TimerScope scope(timer_in(handle));
    if (open_scope(handle, terms)) [[unlikely]] {
      handle.page->wake();
    }
    return scope;
  }

  static bool is_ours(TimerId timer) {
    return timer && timer.fork_count_ == Keeper::instance().fork_count();
  }

  Outbox& outbox;
  const std::uint64_t number;  // on the page, of what is this client's to release
  OwnPage* page = nullptr;     // null: all goes over the pipe
  bool has_statistics = false;
  TimerId job;
  // Names of which a scope with a first timeout was opened, and in which process.
  std::unordered_set<std::string> begun;
  unsigned begun_in = 0;
  const Asker asker;
  std::shared_ptr<ShutdownWatch> shutdown_watch;  // with the lock; null: nobody asked for it
};

}  // namespace filetimer
