// Soft deadlines: from a scan's finding to a warning.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "timer_server/core.hpp"
#include "timer_server/kills/warnings.hpp"
#include "timer_server/watch/deadline_scan.hpp"

namespace filetimer {

// Starts warnings about scopes whose soft deadline has passed, at most WarningLimit's number for
// each worker, and about all that are to be signalled first. An iteration calls warn() last: no
// verdict waits for a warning, and a scope with a verdict gets no warning.
class SoftDeadlines {
 public:
  SoftDeadlines(Core& core, Warnings& warnings) : core_(core), warnings_(warnings) {}

  // Keeps what a scan has found for warn().
  void note(std::vector<DeadlineScan::SoftDueScope> scopes) { noted_ = std::move(scopes); }
  // Starts the warnings about the noted scopes that are still open, of workers that are alive.
  void warn();

 private:
  [[nodiscard]] std::optional<Warnings::Scope> warning_of(
      const DeadlineScan::SoftDueScope& due) const;

  Core& core_;
  Warnings& warnings_;
  std::vector<DeadlineScan::SoftDueScope> noted_;
};

}  // namespace filetimer
