// SPDX-License-Identifier: MIT
#include "timer_client/src/keeper.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "timer_client/src/messages.hpp"
#include "timer_client/src/own_thread.hpp"

namespace filetimer {
namespace {

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
  std::atexit([] { instance().remove_unregistered_pages(); });
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
  for (OwnPage& page : pages_) {
    page.become_child();
  }
  fork_watch::set(fork_count_);
  mutex_.unlock();
}

// A page that no server has seen would stay until the machine restarts. The lock is only tried: a
// thread that holds it has no part in the end of the process.
void Keeper::remove_unregistered_pages() noexcept {
  notice_clone();
  if (const std::unique_lock held(mutex_, std::try_to_lock); held) {
    for (OwnPage& page : pages_) {
      page.remove_if_unregistered();
    }
  }
}

OwnPage& Keeper::page_in(const std::string& dir, const std::string& pipe, Status& why_not) {
  auto opened = BoardView::open_or_make(dir);
  if (!opened) {
    why_not = tl::unexpected<Error>(opened.error());
  }
  BoardView board = opened ? std::move(*opened) : BoardView::none();
  for (OwnPage& page : pages_) {
    // Two paths may lead to one directory. Without a status page only the path can tell.
    if (page.successor() == nullptr && !page.is_broken() && page.identity() == board.identity() &&
        (page.has_board() || page.dir() == dir)) {
      return page;
    }
  }
  return pages_.emplace_back(std::move(board), dir, pipe);
}

OwnPage& Keeper::page_of_nobody() {
  const auto found = std::ranges::find_if(pages_, &OwnPage::is_off);
  return found != pages_.end() ? *found : pages_.emplace_back(BoardView::off(), "", "");
}

OwnPage& Keeper::look_again(OwnPage& page) noexcept {
  if (OwnPage* const successor = page.successor()) {
    return look_again(*successor);
  }
  if (!page.begin_look() || page.is_any_thread_suspended()) {
    return page;
  }
  try {
    Status found;
    OwnPage& next = page_in(page.dir(), page.pipe(), found);
    if (&next == &page || !next.has_board()) {
      return page;
    }
    if (const Status made = next.make(page.keeps_statistics(), page.allows_tracing()); !made) {
      return page;
    }
    client_messages::info("the runtime directory '{}' was made again: scopes go on a new page",
                          page.dir());
    page.continue_on(next);
    return next;
  } catch (const std::bad_alloc&) {
    return page;
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
