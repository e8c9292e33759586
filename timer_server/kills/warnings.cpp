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
  std::optional<PythonDump> python;
  Instant facts_until;
  Instant evidence_until;
  bool evidence_pending = false;
  std::shared_ptr<EvidenceCollection> collection;  // null: not begun, or done
  std::optional<Evidence> evidence;

  // Returns when the batch is to be recorded at the latest; `now`: it is complete.
  [[nodiscard]] Instant ready_at(Instant now) const {
    const Instant facts = *worker.facts ? now : facts_until;
    return std::max(facts, evidence_pending ? evidence_until : now);
  }
};

Warnings::Warnings(Core& core, Recorded recorded)
    : level_(core.settings.kill.evidence_of_warnings()),
      evidence_timeout_(core.settings.kill.evidence_timeout),
      records_(core.records),
      log_(*core.log),
      side_threads_(core.side_threads),
      warned_(core.counters.warned),
      recorded_(std::move(recorded)) {}

Warnings::~Warnings() = default;

void Warnings::start(WorkerIdentity worker, std::vector<Scope> scopes, Instant now,
                     std::optional<PythonDump> python) {
  auto batch = std::make_shared<Batch>();
  Duration limit = evidence_timeout_;
  bool is_before_signal = false;
  for (const Scope& scope : scopes) {
    if (scope.passed.signal != 0) {
      is_before_signal = true;
      limit = std::min(limit, Duration{*scope.passed.scope.terms.grace} / 4);
    }
  }
  batch->worker = std::move(worker);
  batch->scopes = std::move(scopes);
  batch->facts_until = now + KillLadder::kFactsLimit;
  batch->evidence_until = now + limit;
  batch->evidence_pending = level_ != EvidenceLevel::kNone;
  if (is_before_signal) {
    batch->facts_until = std::min(batch->facts_until, batch->evidence_until);
    batch->python = std::move(python);
  }
  batches_.push_back(batch);
  if (is_before_signal && batch->evidence_pending) {
    start_evidence(batch, nullptr);  // at once, whatever is collected of others
  }
}

Instant Warnings::advance(Instant now) {
  Instant next = Instant::never();
  std::erase_if(batches_, [&](const std::shared_ptr<Batch>& batch) {
    const Instant ready_at = batch->ready_at(now);
    if (ready_at > now) {
      next = std::min(next, ready_at);
      return false;
    }
    record(*batch,
           fmt::format("the evidence was not complete after {}", duration_text(evidence_timeout_)));
    return true;
  });
  for (const std::shared_ptr<Batch>& batch : batches_) {
    if (!slots_.has_free()) {
      break;
    }
    if (batch->evidence_pending && !batch->collection) {
      start_evidence(batch, slots_.take());
    }
  }
  return next;
}

void Warnings::start_evidence(const std::shared_ptr<Batch>& batch,
                              std::shared_ptr<const char> token) {
  const bool is_before_signal = token == nullptr;
  batch->collection =
      EvidenceCollection::start(side_threads_, batch->worker.process,
                                {level_, batch->evidence_until, batch->python, is_before_signal},
                                [weak = std::weak_ptr(batch), token = std::move(token)] {
                                  const auto waiting = weak.lock();
                                  if (waiting && waiting->collection) {
                                    waiting->evidence = waiting->collection->take();
                                    waiting->evidence_pending = false;
                                    waiting->collection.reset();
                                  }
                                });
}

void Warnings::flush(const Process& worker, std::string_view why) {
  std::erase_if(batches_, [&](const std::shared_ptr<Batch>& batch) {
    const bool is_of_worker = batch->worker.process.get() == &worker;
    if (is_of_worker) {
      record(*batch, why);
    }
    return is_of_worker;
  });
}

void Warnings::flush_all(std::string_view why) {
  for (const std::shared_ptr<Batch>& batch : std::exchange(batches_, {})) {
    record(*batch, why);
  }
}

void Warnings::record(Batch& batch, std::string_view why_no_evidence) {
  if (batch.collection) {
    (void)batch.collection->take();  // ends the collection
  }
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
