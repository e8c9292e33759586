// Deadlines that say nothing of a worker: the worker was stopped, frozen or traced, or the server
// itself, or the whole machine, could not run. False kills are worse than late ones, so such scopes
// get time, once, and a record says so.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "common/duration_text.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/server.hpp"

namespace filetimer {

bool Server::should_defer(Worker& worker, WorkerPage& page, const WorkerPage::Due& due) {
  if (settings_.stopped == Settings::Stopped::kKill) {
    return false;
  }
  return halted_.should_defer(worker, [&]() -> std::optional<ScopeView> {
    const auto reading = page.read(due.slot, due.word);
    if (!reading) {
      return std::nullopt;
    }
    ScopeView scope = view_of(*reading);
    scope.terms.deadline = due.deadline;
    return scope;
  });
}

// Gives what was missed back to every open scope, once until it is renewed: see GivenTime.
void Server::make_up_for_missed_time(const MissedTime::Clocks& woke) {
  const auto missed = missed_time_.on_wake(woke);
  if (!missed) {
    return;
  }
  const Duration total = missed->total();
  // The requests of the gap were read a moment ago: their scopes began in it.
  const Instant until = Instant::now();
  std::size_t scopes = 0;
  workers_.for_each([&](Worker& worker) {
    for (const auto& page : worker.pages) {
      scopes += page->count_given_time(scan_of(worker, until), until);
    }
  });
  given_time_.add(until, total);
  scan_wanted_ = true;
  ladder_.extend_grace(total);
  const std::string reason =
      missed->suspended > missed->late
          ? fmt::format("the machine was suspended for {}", duration_for_reading(missed->suspended))
          : fmt::format("the server woke {} later than planned",
                        duration_for_reading(missed->late));
  if (scopes > 0) {
    log_->append(records_.deferred_all(total, scopes, reason));
  }
  messages::warning("{}: {} open scope{} given that time", reason, scopes,
                    scopes == 1 ? " is" : "s are");
}

}  // namespace filetimer
