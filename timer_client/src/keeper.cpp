// SPDX-License-Identifier: MIT
#include "timer_client/src/keeper.hpp"

#include <pthread.h>

#include <algorithm>
#include <new>

#include "timer_client/src/own_thread.hpp"

namespace filetimer {
namespace {

// How much of a backlog one call of a worker carries off, at about 3 us each: a call never blocks.
constexpr std::size_t kSendsPerCall = 16;
// How long the thread stays when nothing waits, so that a pipe that is full again and again does
// not start a thread each time.
constexpr Duration kLinger = std::chrono::seconds{1};

std::chrono::steady_clock::time_point steady(Instant instant) {
  // libstdc++'s steady_clock is CLOCK_MONOTONIC.
  return std::chrono::steady_clock::time_point{Duration{instant.ns}};
}

}  // namespace

Keeper& Keeper::instance() {
  static Keeper& keeper = *new Keeper;
  return keeper;
}

Keeper::Keeper() {
  fork_watch::start();
  fork_watch::set(fork_count_);
  ::pthread_atfork([] { instance().lock().release(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().become_child(); });
}

// In a child in which no handler has run nobody holds the lock, whatever it says.
void Keeper::notice_clone() noexcept {
  const unsigned count = fork_watch::count();
  if (count != fork_watch::kUnknown && count != fork_watch::kBusy) [[likely]] {
    return;
  }
  if (fork_watch::begin_noticing()) {
    new (&mutex_) std::mutex;
    mutex_.lock();
    become_child();
  }
}

void Keeper::become_child() noexcept {
  // The other threads are not here, whatever they were doing. A condition variable on which one of
  // them waited can be neither used nor destroyed; it is made anew in its place.
  new (&wake_) std::condition_variable;
  is_running_ = false;
  ++fork_count_;
  for (Outbox& outbox : outboxes_) {
    outbox.forget_all();
  }
  ids_.clear();
  was_inside_ = false;
  drop_abandoned();
  for (OwnPage& page : pages_) {
    page.become_child();
  }
  fork_watch::set(fork_count_);
  mutex_.unlock();
}

Outbox& Keeper::add(std::unique_ptr<Transport> transport) {
  return outboxes_.emplace_back(std::move(transport), ids_);
}

OwnPage& Keeper::page_on(BoardView board, const std::string& dir, const std::string& pipe) {
  for (OwnPage& page : pages_) {
    if (page.identity() == board.identity()) {
      return page;
    }
  }
  return pages_.emplace_back(std::move(board), dir, pipe);
}

void Keeper::abandon(Outbox& outbox) noexcept {
  outbox.abandoned = true;
  drop_abandoned();
}

void Keeper::drop_abandoned() noexcept {
  outboxes_.remove_if([](const Outbox& outbox) { return outbox.abandoned && outbox.is_empty(); });
}

void Keeper::deliver(Outbox& outbox) noexcept {
  send(outbox);
  note_activity();
}

void Keeper::send(Outbox& outbox) noexcept {
  outbox.flush(kSendsPerCall, Outbox::Sender::kCaller);
  if (outbox.has_pending()) {
    attend(outbox.next_try());
  }
}

// For idle timeouts: a scope of any client is one that the process is in.
void Keeper::note_activity() noexcept {
  const bool is_inside =
      std::ranges::any_of(outboxes_, [](const Outbox& each) { return each.is_inside(); });
  was_inside_ = was_inside_ || is_inside;
  if (!was_inside_) {
    return;
  }
  for (Outbox& each : outboxes_) {
    if (each.note_activity(is_inside)) {
      send(each);
    }
  }
}

bool Keeper::attend(Instant when) noexcept {
  if (!is_running_) {
    start_thread();
  } else if (when < sleeps_until_) {
    wake_.notify_one();
  }
  return is_running_;
}

void Keeper::start_thread() noexcept {
  // If there is none to be had now, the next call tries again.
  is_running_ = start_own_thread([this] { run(); });
}

void Keeper::run() {
  std::unique_lock held(mutex_);
  Instant idle_since = Instant::never();
  for (;;) {
    const Instant now = Instant::now();
    Instant next = Instant::never();
    for (Outbox& outbox : outboxes_) {
      if (outbox.has_pending() && outbox.next_try() <= now) {
        outbox.flush(kSendsPerCall, Outbox::Sender::kKeeper);
      }
      if (outbox.has_pending()) {
        next = std::min(next, outbox.next_try());
      }
    }
    drop_abandoned();
    for (OwnPage& page : pages_) {
      if (page.has_pending() && page.next_try() <= now) {
        page.try_again();
      }
      if (page.has_pending()) {
        next = std::min(next, page.next_try());
      }
    }
    if (!next.is_never()) {
      idle_since = Instant::never();
      sleeps_until_ = next;
      wake_.wait_until(held, steady(next));
      continue;
    }
    idle_since = std::min(idle_since, now);
    if (now - idle_since >= kLinger) {
      is_running_ = false;
      return;
    }
    sleeps_until_ = Instant::never();
    wake_.wait_until(held, steady(idle_since + kLinger));
  }
}

}  // namespace filetimer
