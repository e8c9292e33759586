// SPDX-License-Identifier: MIT
#include "timer_client/client/process_pages.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "common/posix.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/process_lock.hpp"

namespace filetimer {

namespace {

[[maybe_unused]] const ProcessPages& pages_at_load = ProcessPages::instance();  // see ProcessLock

}  // namespace

ProcessPages& ProcessPages::instance() {
  static ProcessPages& pages = *new ProcessPages;
  return pages;
}

ProcessPages::ProcessPages() {
  ProcessLock::instance().call_in_children([]() noexcept {
    for (OwnPage& page : instance().pages_) {
      page.become_child();
    }
  });
  // Removes pages that no server has seen, which would stay until the machine restarts. Tries the
  // lock only once: a thread that holds it must not delay the end of the process.
  std::atexit([] {
    if (const auto held = ProcessLock::instance().try_lock()) {
      for (OwnPage& page : instance().pages_) {
        page.remove_if_unregistered();
      }
    }
  });
}

OwnPage& ProcessPages::page_in(const std::string& dir, const std::string& pipe, Status& why_not) {
  auto opened = BoardView::open_or_make(dir);
  if (!opened) {
    why_not = tl::unexpected<Error>(opened.error());
  }
  BoardView board = opened ? std::move(*opened) : BoardView::none();
  for (OwnPage& page : pages_) {
    // Two paths may name one directory. Without a status page only the paths can be compared.
    if (page.successor() == nullptr && !page.is_broken() && page.identity() == board.identity() &&
        (page.has_board() || page.dir() == dir)) {
      return page;
    }
  }
  return pages_.emplace_back(std::move(board), dir, pipe);
}

OwnPage& ProcessPages::inactive_page() {
  return pages_.emplace_back(BoardView::off(), "", "");
}

bool ProcessPages::suspend_thread(const OwnPage& page, pid_t tid, bool is_suspended) noexcept {
  bool must_wake = false;
  for (OwnPage& each : pages_) {
    must_wake |= &each.latest() == &page && each.suspend_thread(tid, is_suspended);
  }
  return must_wake;
}

const ReplacedTimeouts& ProcessPages::keep(ReplacedTimeouts timeouts) {
  const auto found = std::ranges::find(timeouts_, timeouts);
  return found != timeouts_.end() ? *found : timeouts_.emplace_back(std::move(timeouts));
}

OwnPage& ProcessPages::look_again(OwnPage& page) noexcept {
  const NoCancellation uncancelled;
  if (OwnPage* const successor = page.successor()) {
    return look_again(*successor);
  }
  if (!page.begin_look() || page.is_any_thread_suspended()) {
    return page;
  }
  try {
    Status found;
    OwnPage& next = page_in(page.dir(), page.pipe(), found);
    if (&next == &page || !next.has_board() || !next.make(page.allows_tracing())) {
      return page;
    }
    client_messages::info(
        "files of the runtime directory '{}' were removed or cut short: new scopes are on a new "
        "page",
        page.dir());
    page.continue_on(next);
    return next;
  } catch (const std::bad_alloc&) {
    return page;
  }
}

}  // namespace filetimer
