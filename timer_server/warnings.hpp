// What happens between a soft deadline and its `warned` record: what /proc and the stacks say of
// the worker is gathered beside the loop, and the record is written when it is in, or when its time
// is up. The worker is only looked at: no signal is sent for a warning. Warnings never take all
// side threads, so that evidence for a kill does not wait behind them. Loop thread only.
// SPDX-License-Identifier: MIT
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "timer_server/evidence/evidence_collection.hpp"
#include "timer_server/kill_ladder.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/records.hpp"
#include "timer_server/side_threads.hpp"

namespace filetimer {

class Warnings {
 public:
  // Workers that are looked at at one time, those included that never answer.
  static constexpr long kMaxGatherings = 2;

  // `policy`: of evidence, how much is wanted and for how long it is waited for.
  Warnings(const KillPolicy& policy, const Records& records, RecordLog& log,
           SideThreads& side_threads);
  ~Warnings();

  struct Scope {
    SoftDeadline passed;
    // Whether the worker is in it still: else what is seen of the worker says nothing about it.
    std::function<bool()> is_open;
  };
  // Scopes of one worker whose soft deadlines have passed, the earliest first; not empty. They
  // share what is gathered: it stands in the record of the first that is open by then.
  void start(WorkerIdentity worker, std::vector<Scope> scopes, Instant now);
  // Gives the time at which to call again at the latest. Also to be called when the side threads
  // have news.
  Instant advance(Instant now);
  // Writes at once what waits for this worker's evidence, so that it stands before what is recorded
  // next. `why`: the evidence is missing.
  void settle(const Process& worker, std::string_view why);
  void settle_all(std::string_view why);

  // Workers that are looked at now.
  [[nodiscard]] long gathering() const { return gathering_.use_count() - 1; }

 private:
  struct Batch;

  void gather(const std::shared_ptr<Batch>& batch);
  void write(Batch& batch, std::string_view why_no_evidence);

  const EvidenceLevel level_;
  const Duration evidence_timeout_;
  const Records& records_;
  RecordLog& log_;
  SideThreads& side_threads_;
  std::deque<std::shared_ptr<Batch>> batches_;  // in the order of their soft deadlines
  // Held by each gathering, until it has ended or was dropped.
  std::shared_ptr<const char> gathering_ = std::make_shared<const char>();
};

}  // namespace filetimer
