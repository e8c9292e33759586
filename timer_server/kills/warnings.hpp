// Warnings: what follows a soft deadline, from a scan's finding to its record `warned`.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <iterator>
#include <list>
#include <optional>
#include <string_view>
#include <vector>

#include "timer_server/core.hpp"
#include "timer_server/kills/commands.hpp"
#include "timer_server/watch/deadline_scan.hpp"

namespace filetimer {

// Warns about scopes whose soft deadline has passed, at most WarningLimit's number for each worker,
// and about all that are to be signalled first. Collects the evidence of the worker, and records
// the warning when the evidence is complete or its time is up. Then sends the signals of scopes
// that are signalled first: a worker that handles it may leave the scope before it expires.
class Warnings {
 public:
  // `commands` gets the hook on a warning.
  Warnings(Core& core, Commands& commands) : core_(core), commands_(commands) {}

  // Keeps what a scan has found for warn(), which an iteration that fails does not reach. Takes no
  // memory unless one has failed.
  void note(std::vector<DeadlineScan::SoftDueScope> scopes) {
    if (noted_.empty()) {
      noted_.swap(scopes);
    }
    std::ranges::move(scopes, std::back_inserter(noted_));
  }
  // Begins the warnings about the noted scopes that are still open, of workers that are alive. An
  // iteration calls it after its kills: no verdict waits for a warning, and a scope with a verdict
  // gets no warning.
  void warn();
  // Records the warnings that are ready. Returns when it must be called again at the latest; it
  // must also be called when the evidence desk has delivered.
  Instant advance(Instant now);
  // Records the warnings of a worker at once, so that they stand before the next record of the
  // worker; null: of all workers. `why` is the reason that they give for missing evidence.
  void flush(const Process* worker, std::string_view why);

 private:
  struct Scope {
    SoftDeadline passed;
    DeadlineScan::SoftDueScope place;

    // Returns whether the worker is still in the scope. Evidence from after the scope says nothing
    // of it and is not recorded with it.
    [[nodiscard]] bool is_open() const;
  };
  struct Batch {
    WorkerIdentity worker;
    std::vector<Scope> scopes;
    Instant facts_until;
    Duration limit{};     // of the evidence
    EvidenceOrder order;  // null: the evidence is in, or its time is up
    std::optional<Evidence> evidence;
  };

  [[nodiscard]] std::optional<Scope> warning_of(const DeadlineScan::SoftDueScope& due) const;
  // Begins the warnings of one worker. `scopes` has at least one scope, the earliest soft deadline
  // first. The evidence is recorded with the first scope that is still open then. That before a
  // signal has the Python stacks, and takes a quarter of the grace period at most.
  void start(const Worker& worker, std::vector<Scope> scopes, Instant now);
  void record(Batch& batch, std::string_view why_no_evidence);

  Core& core_;
  Commands& commands_;
  const KillPolicy& policy_ = core_.settings.kill;
  std::vector<DeadlineScan::SoftDueScope> noted_;
  std::list<Batch> batches_;  // the earliest soft deadline first
};

}  // namespace filetimer
