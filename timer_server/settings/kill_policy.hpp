// How workers are killed: --kill, --evidence, --warn-evidence, --peer-evidence, --dry-run and their
// time limits.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>

#include "common/clock.hpp"
#include "timer_server/evidence/evidence.hpp"

namespace filetimer {

// What a kill signals: the worker and its descendants, or the worker alone.
enum class KillMode { kTree, kProcess };

struct KillPolicy {
  KillMode mode = KillMode::kTree;
  EvidenceLevel evidence = EvidenceLevel::kProc;  // of an expiry, also in a dry run
  std::optional<EvidenceLevel> warn_evidence{};   // of a warning; empty: as of an expiry
  std::optional<EvidenceLevel> peer_evidence{};   // of a worker's peers; empty: as of an expiry
  bool dry_run = false;
  Duration evidence_timeout = std::chrono::seconds{2};
  Duration kill_wait = std::chrono::seconds{30};

  // Returns the level of the evidence that goes with a warning.
  [[nodiscard]] EvidenceLevel evidence_of_warnings() const {
    return warn_evidence.value_or(evidence);
  }
  // Returns the level of the evidence of the peers of a worker that has expired. A dry run leaves
  // the peers alone.
  [[nodiscard]] EvidenceLevel evidence_of_peers() const {
    return dry_run ? EvidenceLevel::kNone : peer_evidence.value_or(evidence);
  }
};

}  // namespace filetimer
