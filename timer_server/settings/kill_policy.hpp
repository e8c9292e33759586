// How workers are killed: --kill, --evidence, --warn-evidence, --dry-run and their time limits.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>

#include "common/clock.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/system/process_tree.hpp"

namespace filetimer {

struct KillPolicy {
  KillMode mode = KillMode::kTree;
  EvidenceLevel evidence = EvidenceLevel::kProc;  // of an expiry, also in a dry run
  std::optional<EvidenceLevel> warn_evidence{};   // of a warning; empty: as of an expiry
  bool dry_run = false;
  Duration evidence_timeout = std::chrono::seconds{2};
  Duration kill_wait = std::chrono::seconds{30};

  // Returns the level of the evidence that goes with a warning.
  [[nodiscard]] EvidenceLevel evidence_of_warnings() const {
    return warn_evidence.value_or(evidence);
  }
};

}  // namespace filetimer
