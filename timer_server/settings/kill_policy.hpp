// How workers are killed: --kill, --evidence, --dry-run and their time limits.
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
  EvidenceLevel evidence = EvidenceLevel::kProc;
  std::optional<EvidenceLevel> warn_evidence{};  // of warnings; none: as `evidence`
  bool dry_run = false;
  Duration evidence_timeout = std::chrono::seconds{2};
  Duration kill_wait = std::chrono::seconds{30};
};

}  // namespace filetimer
