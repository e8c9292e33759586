// SPDX-License-Identifier: MIT
#include "timer_server/watch/deadline_scan.hpp"

#include <utility>

#include "common/scope_page.hpp"
#include "common/wake_protocol.hpp"
#include "timer_server/watch/registry.hpp"

namespace filetimer {
namespace {

// How soon a worker in a scope is looked at again if its idle timeout is shorter than this.
constexpr Duration kIdleLook = std::chrono::milliseconds{100};

}  // namespace

// The order of reads and announcements is argued in common/wake_protocol.hpp. Verdicts are given
// before the status page says when the server wakes next, so a worker that renews a scope in
// between wakes the server.
DeadlineScan::Found DeadlineScan::run(Instant woke, Instant next_sweep) {
  Found found;
  announce_scan(core_.directory.status_page().board());
  core_.wants_scan = false;
  next_ = Instant::never();
  shortest_ = kForever;
  const Instant begun = Instant::now();
  core_.workers.for_each([&](Worker& worker) {
    if (!worker.is_dying()) {
      scan_worker(worker, woke, found);
    }
  });
  want_by(woke + looks().pause);
  // A client has to wake the server for an earlier deadline; the next look finds a later one.
  const Instant next = std::min(next_, next_sweep);
  wakes_before_ =
      std::max(next, std::min(wakes_before(woke, next, looks().tolerated), woke + shortest_));
  scanned_ = begun;
  announce_next_scan(core_.directory.status_page().board(), wakes_before_.ns);
  std::ranges::stable_sort(found.due, {},
                           [](const DueWorker& due) { return due.scopes.front().deadline; });
  return found;
}

void DeadlineScan::scan_worker(Worker& worker, Instant woke, Found& found) {
  WorkerPage::Activity activity;
  std::vector<PageVerdict> judged;
  Instant next = Instant::never();
  give_back_unseen_time(worker, woke, found);
  for (const auto& page : worker.pages) {
    // scan_of() for each page: the worker may have been found resumed while the last one was
    // judged.
    next = std::min(next,
                    page->scan(core_.policy.scan_of(worker, woke, scanned_), on_page_, activity));
    if (worker.has_kill() && !on_page_.due.empty()) {
      on_page_.due.clear();  // they are judged when the kill has ended
      note_held_up(worker, woke, found);
    }
    const bool is_due =
        !on_page_.due.empty() || !on_page_.soft.empty() || !on_page_.to_signal.empty();
    if (is_due && !judge(worker, page, woke, found, judged)) {
      found.lost.push_back({&worker, page, true});
    } else {
      for (const WorkerPage::Due& slot : on_page_.soft) {
        found.soft.push_back({worker.process, page, slot});
      }
    }
    if (!page->is_whole()) {
      found.lost.push_back({&worker, page, false});
    }
  }
  // All of them are later than `woke`, so there are none without a lead.
  worker.is_due_soon = next.ns - woke.ns <= lead_.count();
  if (worker.is_due_soon) {
    found.soon.push_back(&worker);
  } else if (judged.empty()) {
    worker.cpu_sample = nullptr;  // the scope for which it was taken has ended
  }
  if (next - woke <= kLead) {
    found.close.push_back(&worker);
    found.next = next < next_ ? &worker : found.next;
  }
  want_before(next, woke);
  shortest_ = std::min(shortest_, activity.shortest);
  if (!activity.watches.empty()) {
    judge_idleness(worker, activity, woke, found, judged);
  }
  if (!judged.empty() && !worker.process->is_alive()) {
    // The worker has exited since it was found alive, so it has left these scopes open.
    for (const PageVerdict& scope : judged) {
      scope.page->reopen(scope.slot, scope.word);
    }
  } else if (!judged.empty()) {
    std::ranges::stable_sort(judged, {}, &PageVerdict::deadline);
    found.due.push_back({&worker, std::move(judged)});
  }
}

// A client wakes the server for its scope, so a scope that no scan has seen long after it began
// waited: for a server that could not run, or for a sweep because its message was lost. No scope of
// a page was seen before the page is found.
void DeadlineScan::give_back_unseen_time(Worker& worker, Instant now, Found& found) {
  const WorkerPage::Scan scan = core_.policy.scan_of(worker, now, scanned_);
  WorkerPage::Wait unseen;
  for (const auto& page : worker.pages) {
    if (page != worker.pipe) {
      const WorkerPage::Wait wait = page->longest_unseen(wakes_before_, scan);
      unseen = wait.length > unseen.length ? wait : unseen;
    }
  }
  if (unseen.length == Duration::zero()) {
    return;
  }
  const Instant until = std::max(unseen.until, worker.lost.end());
  found.unseen_for = std::max(found.unseen_for, worker.lost.add(until + -unseen.length, until));
  for (const auto& page : worker.pages) {
    found.unseen_scopes += page->watched_count();
  }
}

// Returns false if the worker runs another program than the one that opened the scopes.
bool DeadlineScan::judge(Worker& worker, const std::shared_ptr<WorkerPage>& page, Instant woke,
                         Found& found, std::vector<PageVerdict>& judged) {
  if (!worker.process->is_alive()) {
    return true;  // its pending exit event decides
  }
  if (runs_another_program(*worker.process, *page)) {
    return false;
  }
  if (page == worker.pipe && is_pipe_taken()) {
    return true;  // the next sweep wants another scan
  }
  // A worker that was found resumed in this scan is judged in the next one.
  const auto& due = on_page_.due;
  const auto& to_signal = on_page_.to_signal;
  if (worker.lost.end() > woke ||
      (!due.empty() && halted_.should_defer(worker, *page, due.front())) ||
      (!to_signal.empty() && halted_.should_defer(worker, *page, to_signal.front()))) {
    return true;
  }
  for (const WorkerPage::Due& slot : to_signal) {
    found.soft.push_back({worker.process, page, slot, true});
    page->note_signalled(slot, woke);
  }
  found.due.reserve(found.due.size() + 1);  // no verdict may be lost
  judged.reserve(judged.size() + due.size());
  for (const WorkerPage::Due& candidate : due) {
    if (page->try_expire(candidate.slot, candidate.word)) {
      judged.push_back({page, candidate.slot, candidate.word, candidate.deadline});
    }
  }
  core_.workers.note_unsaved(worker);
  return true;
}

// The next scan is one idle timeout later: a worker that is in a scope now, or leaves its last one
// from now on, is due then at the earliest.
void DeadlineScan::judge_idleness(Worker& worker, const WorkerPage::Activity& activity,
                                  Instant woke, Found& found, std::vector<PageVerdict>& judged) {
  if (activity.is_inside) {
    worker.left_on_pipe = std::max(worker.left_on_pipe, woke);
  }
  const Instant last_left = std::max(activity.last_left, worker.left_on_pipe);
  for (const auto& watch : activity.watches) {
    Instant deadline = woke + std::max(watch.timeout, kIdleLook);
    if (!activity.is_inside && last_left > std::max(watch.since, worker.unwatched_until)) {
      const WorkerPage::Scan scan = core_.policy.scan_of(worker, woke);
      const auto due = watch.page->idle_due(watch, last_left, scan);
      if (due && worker.pipe != nullptr && !worker.has_kill() && is_pipe_taken()) {
        worker.left_on_pipe = woke;  // it may be in scopes whose lines the other process gets
      } else {
        deadline = due.value_or(deadline);
      }
    }
    if (deadline > woke) {
      want_by(deadline);
      continue;
    }
    if (worker.has_kill()) {
      note_held_up(worker, woke, found);
      continue;
    }
    const auto page =
        std::ranges::find(worker.pages, watch.page, &std::shared_ptr<WorkerPage>::get);
    if (worker.lost.end() <= woke && worker.process->is_alive() &&
        !runs_another_program(*worker.process, **page) &&
        !halted_.should_defer(worker, **page, {watch.slot, slot_word::kIdleWatch, deadline}) &&
        (*page)->try_expire_idle(watch.slot, deadline)) {
      judged.push_back({*page, watch.slot, deadline.ns, deadline});
    }
  }
}

}  // namespace filetimer
