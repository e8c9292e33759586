// SPDX-License-Identifier: MIT
#include "timer_server/kills/overdue_scopes.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "timer_server/scopes/worker_page.hpp"

namespace filetimer {
namespace {

// Returns when the scope that was opened at `acquired` ended, if the page still has that time.
std::optional<Instant> end_on_page(WorkerPage& page, const std::string& name, Instant acquired) {
  EndedScopesByName ended;
  page.add_ended_scopes(ended);
  const auto found = ended.find(name);
  if (found == ended.end()) {
    return std::nullopt;
  }
  const auto scope = std::ranges::find_if(
      found->second, [&](const EndedReading& each) { return acquired + each.took == each.ended; });
  return scope == found->second.end() ? std::nullopt : std::optional(scope->ended);
}

}  // namespace

OverdueScopes::Followed OverdueScopes::spared_scope(const WorkerIdentity& worker,
                                                    const Expiry& expiry) {
  return {.worker = worker,
          .missed = Missed::kDeadline,
          .id = expiry.id,
          .name = expiry.scope.name,
          .acquired = expiry.scope.terms.acquired,
          .deadline = expiry.scope.terms.deadline,
          .place = {},
          .next_look = {}};
}

void OverdueScopes::follow(const WorkerIdentity& worker, const Expiry& expiry) {
  if (expiry.place.page && !expiry.released_at && !expiry.scope.terms.is_idle) {
    Followed scope = spared_scope(worker, expiry);
    scope.place = expiry.place;
    follow(std::move(scope));
  }
}

void OverdueScopes::follow(const WorkerIdentity& worker, const SoftDeadline& warned) {
  if (warned.place.page) {
    follow({.worker = worker,
            .missed = Missed::kSoftDeadline,
            .id = warned.id,
            .name = warned.scope.name,
            .acquired = warned.scope.terms.acquired,
            .deadline = warned.when,
            .place = warned.place,
            .next_look = {}});
  }
}

void OverdueScopes::follow_on_pipe(const WorkerIdentity& worker, const Expiry& expiry,
                                   std::string request_id) {
  if (!expiry.released_at && !request_id.empty()) {
    Followed scope = spared_scope(worker, expiry);
    scope.request_id = std::move(request_id);
    follow(std::move(scope));
  }
}

void OverdueScopes::note_request(const Process& worker, std::string_view request_id, Instant when) {
  loop_thread_.check();
  if (on_pipe_ == 0) {
    return;
  }
  std::erase_if(scopes_, [&](const Followed& scope) {
    const bool is_meant = scope.worker.process.get() == &worker && scope.request_id == request_id;
    if (is_meant) {
      --on_pipe_;
      record_end(scope, when, true);
    }
    return is_meant;
  });
}

void OverdueScopes::follow(Followed scope) {
  loop_thread_.check();
  if (scopes_.size() < kMaxFollowed) {
    const bool is_on_pipe = !scope.request_id.empty();
    on_pipe_ += is_on_pipe ? 1 : 0;
    scope.next_look = is_on_pipe ? Instant::never() : scope.deadline + kFirstLook;
    scopes_.push_back(std::move(scope));
  }
}

Instant OverdueScopes::advance(Instant now) {
  loop_thread_.check();
  Instant next = Instant::never();
  std::erase_if(scopes_, [&](Followed& scope) {
    if (scope.next_look <= now) {
      if (!look_at(scope)) {
        return true;
      }
      const Duration age = now - scope.deadline;
      scope.next_look = now + std::clamp<Duration>(age / kLooksPerAge, kFirstLook, kLongestPause);
    }
    next = std::min(next, scope.next_look);
    return false;
  });
  return next;
}

void OverdueScopes::note_expired(const Process& worker, const Expiry& expiry) {
  loop_thread_.check();
  std::erase_if(scopes_, [&](const Followed& scope) {
    return scope.missed == Missed::kSoftDeadline && scope.worker.process.get() == &worker &&
           scope.place.slot == expiry.place.slot && scope.place.page == expiry.place.page &&
           scope.acquired == expiry.scope.terms.acquired;
  });
}

void OverdueScopes::note_cancelled(const WorkerPage& page) {
  loop_thread_.check();
  std::erase_if(scopes_, [&](const Followed& scope) { return scope.place.page.get() == &page; });
}

void OverdueScopes::forget(const Process& worker) {
  loop_thread_.check();
  std::erase_if(scopes_, [&](Followed& scope) {
    if (scope.worker.process.get() != &worker) {
      return false;
    }
    if (scope.request_id.empty()) {
      (void)look_at(scope);
    } else {
      --on_pipe_;
    }
    return true;
  });
}

bool OverdueScopes::look_at(Followed& scope) {
  WorkerPage& page = *scope.place.page;
  const auto slot = page.state_of(scope.place.slot);
  if (!slot) {
    return false;  // the worker has cut its page short
  }
  const bool is_free = slot->word == slot_word::kFree;
  const bool is_same_scope = !is_free && slot->acquired == scope.acquired;
  if (is_same_scope) {
    if (scope.missed == Missed::kDeadline) {
      return true;  // a spared scope can only be released
    }
    if (slot->word == scope.place.word || slot_word::is_paused(slot->word)) {
      return true;
    }
    if (slot_word::is_open(slot->word)) {
      record_end(scope, slot->started, false);
    }
    return false;  // renewed; or there is a verdict
  }
  record_end(scope, end_on_page(page, scope.name, scope.acquired).value_or(Instant::now()), true);
  return false;
}

void OverdueScopes::record_end(const Followed& scope, Instant ended, bool is_released) {
  const Duration after = std::max(ended - scope.deadline, Duration::zero());
  if (scope.missed == Missed::kDeadline) {
    ++released_late_[scope.name];
    log_.append(records_.released_late(scope.worker, scope.id, scope.name, after));
  } else {
    log_.append(records_.warning_ended(scope.worker, scope.id, scope.name, after, is_released));
  }
}

}  // namespace filetimer
