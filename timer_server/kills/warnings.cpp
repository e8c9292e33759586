// SPDX-License-Identifier: MIT
#include "timer_server/kills/warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/duration_text.hpp"

namespace filetimer {

struct Warnings::Batch {
  WorkerIdentity worker;
  std::vector<Scope> scopes;
  Instant facts_until;
  EvidenceOrder order;  // null: the evidence is in, or its time is up
  std::optional<Evidence> evidence;
};

Warnings::Warnings(Core& core, Recorded recorded)
    : level_(core.settings.kill.evidence_of_warnings()),
      evidence_timeout_(core.settings.kill.evidence_timeout),
      records_(core.records),
      log_(*core.log),
      desk_(core.desk),
      warned_(core.counters.warned),
      recorded_(std::move(recorded)) {}

Warnings::~Warnings() = default;

void Warnings::start(WorkerIdentity worker, std::vector<Scope> scopes, Instant now,
                     std::optional<PythonDump> python) {
  Duration limit = evidence_timeout_;
  bool is_before_signal = false;
  for (const Scope& scope : scopes) {
    if (scope.passed.signal != 0) {
      is_before_signal = true;
      limit = std::min(limit, Duration{*scope.passed.scope.terms.grace} / 4);
    }
  }
  const Duration facts_limit =
      is_before_signal ? std::min(limit, KillLadder::kFactsLimit) : KillLadder::kFactsLimit;
  Batch& batch = batches_.emplace_back(
      Batch{std::move(worker), std::move(scopes), now + facts_limit, nullptr, std::nullopt});
  if (level_ != EvidenceLevel::kNone) {
    batch.order =
        desk_.collect({.worker = batch.worker.process,
                       .level = level_,
                       .use = is_before_signal ? EvidenceFor::kSignal : EvidenceFor::kWarning,
                       .until = now + limit,
                       .python = is_before_signal ? std::move(python) : std::nullopt},
                      now, [&batch](Evidence evidence, bool is_complete) {
                        if (is_complete) {
                          batch.evidence = std::move(evidence);
                        }
                        batch.order.reset();
                      });
  }
}

Instant Warnings::advance(Instant now) {
  Instant next = Instant::never();
  std::erase_if(batches_, [&](Batch& batch) {
    const bool has_facts = *batch.worker.facts || now >= batch.facts_until;
    if (!has_facts || batch.order) {
      next = std::min(next, has_facts ? Instant::never() : batch.facts_until);
      return false;
    }
    record(batch,
           fmt::format("the evidence was not complete after {}", duration_text(evidence_timeout_)));
    return true;
  });
  return next;
}

void Warnings::flush(const Process& worker, std::string_view why) {
  std::erase_if(batches_, [&](Batch& batch) {
    const bool is_of_worker = batch.worker.process.get() == &worker;
    if (is_of_worker) {
      record(batch, why);
    }
    return is_of_worker;
  });
}

void Warnings::flush_all(std::string_view why) {
  for (Batch& batch : batches_) {
    record(batch, why);
  }
  batches_.clear();
}

void Warnings::record(Batch& batch, std::string_view why_no_evidence) {
  bool has_recorded_evidence = false;
  for (Scope& scope : batch.scopes) {
    scope.passed.id = records_.next_warning_id();
    const bool is_signalled = scope.passed.signal != 0 && scope.is_open();
    scope.passed.signal = is_signalled ? scope.passed.signal : 0;
    Evidence none;
    const Evidence* evidence = nullptr;
    if (!has_recorded_evidence && level_ != EvidenceLevel::kNone) {
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
        log_.append_detail(records_.warned(batch.worker, scope.passed, evidence));
    ++warned_[scope.passed.scope.name];
    if (is_signalled) {
      (void)batch.worker.process->send_signal(scope.passed.signal);
    }
    if (&scope == &batch.scopes.front()) {
      recorded_(batch.worker, scope.passed, number);
    }
  }
}

}  // namespace filetimer
