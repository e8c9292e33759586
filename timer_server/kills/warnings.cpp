// SPDX-License-Identifier: MIT
#include "timer_server/kills/warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/duration_text.hpp"
#include "timer_server/watch/registry.hpp"

namespace filetimer {

bool Warnings::Scope::is_open() const {
  return place.page->is_open(place.slot.slot, place.slot.word) &&
         !runs_another_program(*place.process, *place.page);
}

void Warnings::warn() {
  // By worker, and by whether no signal is sent: those with a signal come first.
  std::map<std::pair<Worker*, bool>, std::vector<Scope>> found;
  for (const DeadlineScan::SoftDueScope& due : std::exchange(noted_, {})) {
    Worker* const worker = core_.workers.find(*due.process);
    if (worker == nullptr || std::ranges::find(worker->pages, due.page) == worker->pages.end()) {
      continue;  // the worker or its page was removed after the scan
    }
    if (auto warning = warning_of(due)) {
      found[{worker, warning->passed.signal == 0}].push_back(std::move(*warning));
    }
  }
  const Instant now = Instant::now();
  for (auto& [key, scopes] : found) {
    const auto [worker, has_limit] = key;
    if (worker->is_dying() || !worker->process->is_alive()) {
      continue;  // its exit has woken the loop, and decides
    }
    std::ranges::stable_sort(scopes, {}, [](const auto& scope) { return scope.passed.when; });
    if (has_limit) {
      const auto noticed = [](const Scope& scope) { return scope.passed.noticed; };
      const Instant first = noticed(*std::ranges::min_element(scopes, {}, noticed));
      const WarningLimit::Share share = worker->warning_limit.take(scopes.size(), first, now);
      scopes.resize(share.count);
      if (scopes.empty()) {
        continue;
      }
      scopes.front().passed.omitted = share.omitted;
    }
    start(*worker, std::move(scopes), now);
  }
}

// Returns nothing if the scope was released or renewed after the scan.
std::optional<Warnings::Scope> Warnings::warning_of(const DeadlineScan::SoftDueScope& due) const {
  const auto reading = due.page->read(due.slot.slot, due.slot.word);
  due.page->unmap_names();
  if (!reading) {
    return std::nullopt;
  }
  SlotReading scope = core_.policy.view_of(*reading);
  scope.soft_ms = due.is_to_be_signalled ? 0 : scope.soft_ms;  // its timeout has passed
  return Scope{{scope, due.slot.deadline, Instant::now(),
                core_.policy.reason_to_warn(scope, due.is_to_be_signalled),
                due.is_to_be_signalled && !policy_.dry_run ? scope.signal : 0},
               due};
}

void Warnings::start(const Worker& worker, std::vector<Scope> scopes, Instant now) {
  Duration limit = policy_.evidence_timeout;
  bool is_before_signal = false;
  for (const Scope& scope : scopes) {
    if (scope.passed.signal != 0) {
      is_before_signal = true;
      // None: the worker has written another one since the scan.
      limit = std::min(limit, scope.passed.scope.grace().value_or(Duration::zero()) / 4);
    }
  }
  const Duration facts_limit = is_before_signal ? std::min(limit, kFactsLimit) : kFactsLimit;
  Batch& batch = batches_.emplace_back(
      Batch{worker, std::move(scopes), now + facts_limit, limit, nullptr, std::nullopt});
  if (policy_.evidence != EvidenceLevel::kNone) {
    batch.order = core_.desk.collect(
        {.worker = batch.worker.process,
         .level = policy_.evidence,
         .use = is_before_signal ? EvidenceFor::kSignal : EvidenceFor::kWarning,
         .until = now + limit,
         .python = is_before_signal ? core_.python_dump_of(worker) : std::nullopt},
        now, [&batch](Evidence evidence, bool is_complete) {
          const EvidenceOrder done = std::exchange(batch.order, nullptr);
          if (is_complete) {
            batch.evidence = std::move(evidence);
          }
        });
  }
}

Instant Warnings::advance(Instant now) {
  Instant next = Instant::never();
  std::erase_if(batches_, [&](Batch& batch) {
    const bool has_facts = batch.worker.facts->are_known || now >= batch.facts_until;
    if (!has_facts || batch.order) {
      next = std::min(next, has_facts ? Instant::never() : batch.facts_until);
      return false;
    }
    record(batch,
           fmt::format("the evidence was not complete after {}", duration_text(batch.limit)));
    return true;
  });
  return next;
}

void Warnings::flush(const Process* worker, std::string_view why) {
  std::erase_if(batches_, [&](Batch& batch) {
    const bool is_wanted = worker == nullptr || batch.worker.process.get() == worker;
    if (is_wanted) {
      record(batch, why);
    }
    return is_wanted;
  });
}

void Warnings::record(Batch& batch, std::string_view why_no_evidence) {
  bool has_recorded_evidence = false;
  const Worker* const worker = core_.workers.find(*batch.worker.process);
  // It has ended, or has got the kill's signal.
  const bool is_dying =
      !batch.worker.process->is_alive() || (worker != nullptr && worker->is_dying());
  for (Scope& scope : batch.scopes) {
    scope.passed.id = core_.records.next_id(Records::Named::kWarning);
    const bool is_signalled = scope.passed.signal != 0 && !is_dying && scope.is_open();
    scope.passed.signal = is_signalled ? scope.passed.signal : 0;
    Evidence none;
    const Evidence* evidence = nullptr;
    if (!has_recorded_evidence && policy_.evidence != EvidenceLevel::kNone) {
      evidence = &none;
      if (!batch.evidence) {
        none.missing = why_no_evidence;
      } else if (!scope.is_open()) {
        none.missing = "the scope ended before the evidence was complete";
      } else {
        evidence = &*batch.evidence;
        has_recorded_evidence = true;
      }
    }
    const std::uint64_t number =
        core_.log->append_detail(core_.records.warned(batch.worker, scope.passed, evidence));
    ++core_.counters.warned[scope.passed.scope.name];
    if (is_signalled) {
      (void)batch.worker.process->send_signal(scope.passed.signal);
      scope.place.page->note_signalled(scope.place.slot, Instant::now());  // after the evidence
    }
    if (&scope == &batch.scopes.front()) {
      commands_.add_hook({.worker = batch.worker,
                          .id = scope.passed.id,
                          .incident = {},
                          .scope = scope.passed.scope.name,
                          .verdict = "warned",
                          .record_number = number},
                         Instant::now());
    }
  }
}

}  // namespace filetimer
