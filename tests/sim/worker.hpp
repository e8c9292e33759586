// A worker of the simulation: the page of the client library, and the lines of its pipe client, as
// those of another process.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/posix.hpp"
#include "common/scope_page.hpp"
#include "tests/sim/kernel.hpp"
#include "timer_client/client/page/own_page.hpp"
#include "timer_client/client/page/page_scope.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"

namespace filetimer::sim {

// What a scope asks for.
struct Terms {
  Nanos timeout = kNever;
  std::uint32_t grace_ms = kServersGrace;
  int signal = 9;
  bool signal_first = false;
  bool is_torch = false;  // a line of PyTorch's client, which has none of our keys
};

// A scope on the page, as TimerScope.
struct PageScope {
  SlotHandle* slot = nullptr;
  std::uint64_t number = 0;
};

// The calls of the client library in its life are those of the process.
class As {
 public:
  explicit As(Process& process) { kernel->self = &process; }
  As(const As&) = delete;
  As& operator=(const As&) = delete;
  ~As() { kernel->self = nullptr; }
};

class Worker {
 public:
  Worker(Process& process, std::string dir) : process_(process), dir_(std::move(dir)) {}

  // Scopes on the page. They return a null slot if the scope is not watched, and false if a verdict
  // came first.
  PageScope open(std::string_view name, const Terms& terms) {
    const As self(process_);
    PageTerms asked;
    asked.timeout = terms.timeout;
    asked.grace_ms = terms.grace_ms;
    asked.signal = static_cast<std::uint16_t>(terms.signal);
    asked.flags = terms.signal_first ? slot_flag::kSignalFirst : std::uint16_t{0};
    while (page_ != nullptr || look()) {
      OwnPage& page = *page_;
      const bool is_closed = page.board().announcement.load() != 0;
      SlotHandle* const slot = is_closed ? nullptr : page.claim(ScopeKey::of_name(name));
      if (slot == nullptr) {
        break;
      }
      const PageScope scope{slot, slot->generation.load()};
      const unsigned todo_next = open_scope(*slot, asked);
      if ((todo_next & todo::kLook) == 0 || !look() || page_ == &page) {
        if ((todo_next & todo::kWake) != 0) {
          page.wake();
        }
        return scope;
      }
      slot->statistics = nullptr;  // it is counted on the new page
      release_scope(*slot, scope.number);
    }
    return {};
  }

  bool renew(PageScope scope, Nanos timeout) {
    const As self(process_);
    unsigned todo_next = 0;
    const bool is_open = renew_scope(*scope.slot, scope.number, timeout, todo_next);
    if ((todo_next & todo::kWake) != 0) {
      scope.slot->page->wake();
    }
    return is_open;
  }

  bool pause(PageScope scope, bool pauses) {
    const As self(process_);
    bool wake = false;
    const bool is_open =
        (pauses ? pause_scope : resume_scope)(*scope.slot, slot_flag::kPausedByCaller, wake);
    if (wake) {
      scope.slot->page->wake();
    }
    return is_open;
  }

  bool release(PageScope scope) {
    const As self(process_);
    return release_scope(*scope.slot, scope.number) == ReleaseResult::kReleased;
  }

  bool begin_idle_timeout(Nanos timeout) {
    const As self(process_);
    if (!look()) {
      return false;
    }
    const bool has_begun = page_->watch_idleness({duration_of(timeout), this});
    if (!has_begun) {
      page_->end_idle_timeout_of(this);
    }
    return has_begun;
  }

  // Lines of the pipe. They return false if nobody reads the pipe.
  bool acquire_by_line(std::string_view name, const Terms& terms) {
    const As self(process_);
    PipeTimerOptions options;
    options.signal = terms.signal;
    if (terms.grace_ms != kServersGrace) {
      options.grace = duration_of(terms.grace_ms == kNoSigkill ? kNever : terms.grace_ms * kMs);
    }
    wire::Request request = acquire_request(duration_of(terms.timeout), name, options);
    request.x_signal_first = terms.signal_first;
    if (terms.is_torch) {
      wire::Request bare = release_request(name, 0);
      bare.expiration_time = request.expiration_time;
      bare.signal = request.signal;
      request = bare;
    }
    return send_request(dir_ + "/requests", request) == Sent::kYes;
  }

  bool release_by_line(std::string_view name) {
    const As self(process_);
    return send_request(dir_ + "/requests", release_request(name, 0)) == Sent::kYes;
  }

  [[nodiscard]] bool holds_lock_of(ino_t page) const {
    return process_.is_alive && std::ranges::find(files_, page) != files_.end();
  }

  // Empty: it has no page.
  [[nodiscard]] std::string page_path() const {
    if (page_ == nullptr) {
      return {};
    }
    // The file of stacks has the page's name.
    const std::filesystem::path stacks = page_->stacks_file();
    return fmt::format("{}/{}", page_->pages_folder(), stacks.filename().string());
  }

 private:
  static std::chrono::nanoseconds duration_of(Nanos time) { return std::chrono::nanoseconds{time}; }

  // Makes the page, or its successor, as ProcessPages does. Returns false if there is no page.
  bool look() {
    const bool is_due =
        page_ == nullptr || (page_->is_look_due(kernel->now) && page_->begin_look());
    if (is_due) {
      auto board = BoardView::open_or_make(dir_);
      if (board &&
          (page_ == nullptr || page_->is_broken() || board->identity() != page_->identity())) {
        auto* const next = new OwnPage(std::move(*board), dir_, dir_ + "/requests");
        if (next->make(false)) {
          if (page_ != nullptr) {
            page_->continue_on(*next);
          }
          page_ = next;
          files_.push_back(identity_of(page_path()).inode);
        }
      }
    }
    return page_ != nullptr;
  }

  Process& process_;
  const std::string dir_;
  OwnPage* page_ = nullptr;  // never destroyed
  std::vector<ino_t> files_;
};

}  // namespace filetimer::sim
