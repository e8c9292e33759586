// SPDX-License-Identifier: MIT
#include "timer_server/warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/duration_text.hpp"

namespace filetimer {

struct Warnings::Batch {
  WorkerIdentity worker;
  std::vector<Scope> scopes;
  Instant facts_until;
  Instant evidence_until;
  bool evidence_pending = false;
  std::shared_ptr<EvidenceCollection> gathering;  // null: not begun, or at its end
  std::optional<Evidence> evidence;

  // When there is something to write; `now`: at once.
  [[nodiscard]] Instant ready(Instant now) const {
    const Instant facts = *worker.facts ? now : facts_until;
    return std::max(facts, evidence_pending ? evidence_until : now);
  }
};

Warnings::Warnings(const KillPolicy& policy, const Records& records, RecordLog& log,
                   SideThreads& side_threads)
    : level_(policy.evidence),
      evidence_timeout_(policy.evidence_timeout),
      records_(records),
      log_(log),
      side_threads_(side_threads) {}

Warnings::~Warnings() = default;

void Warnings::start(WorkerIdentity worker, std::vector<Scope> scopes, Instant now) {
  auto batch = std::make_shared<Batch>();
  batch->worker = std::move(worker);
  batch->scopes = std::move(scopes);
  batch->facts_until = now + KillLadder::kFactsLimit;
  batch->evidence_until = now + evidence_timeout_;
  batch->evidence_pending = level_ != EvidenceLevel::kNone;
  batches_.push_back(std::move(batch));
}

Instant Warnings::advance(Instant now) {
  Instant next = Instant::never();
  std::erase_if(batches_, [&](const std::shared_ptr<Batch>& batch) {
    const Instant ready = batch->ready(now);
    if (ready > now) {
      next = std::min(next, ready);
      return false;
    }
    write(*batch, fmt::format("it was not in after {}", duration_text(evidence_timeout_)));
    return true;
  });
  for (const std::shared_ptr<Batch>& batch : batches_) {
    if (gathering() >= kMaxGatherings) {
      break;
    }
    if (batch->evidence_pending && !batch->gathering) {
      gather(batch);
    }
  }
  return next;
}

void Warnings::gather(const std::shared_ptr<Batch>& batch) {
  // Python's stacks would take a signal.
  batch->gathering = EvidenceCollection::start(side_threads_, batch->worker.process,
                                               {level_, batch->evidence_until, std::nullopt},
                                               [weak = std::weak_ptr(batch), held = gathering_] {
                                                 const auto waiting = weak.lock();
                                                 if (waiting && waiting->gathering) {
                                                   waiting->evidence = waiting->gathering->take();
                                                   waiting->evidence_pending = false;
                                                   waiting->gathering.reset();
                                                 }
                                               });
}

void Warnings::settle(const Process& worker, std::string_view why) {
  std::erase_if(batches_, [&](const std::shared_ptr<Batch>& batch) {
    const bool is_its = batch->worker.process.get() == &worker;
    if (is_its) {
      write(*batch, why);
    }
    return is_its;
  });
}

void Warnings::settle_all(std::string_view why) {
  for (const std::shared_ptr<Batch>& batch : std::exchange(batches_, {})) {
    write(*batch, why);
  }
}

void Warnings::write(Batch& batch, std::string_view why_no_evidence) {
  if (batch.gathering) {
    (void)batch.gathering->take();  // it need not go on
  }
  bool is_told = false;
  for (const Scope& scope : batch.scopes) {
    Evidence none;
    const Evidence* evidence = nullptr;
    if (!is_told && level_ != EvidenceLevel::kNone) {
      evidence = &none;
      if (!batch.evidence) {
        none.missing = why_no_evidence;
      } else if (!scope.is_open()) {
        none.missing = "the scope was over before it was in";
      } else {
        evidence = &*batch.evidence;
        is_told = true;
      }
    }
    log_.append(records_.warned(batch.worker, scope.passed, evidence));
  }
}

}  // namespace filetimer
