// The parts of a server from a deadline to the end of a kill, in the folder of a test. Hooks are
// recorded as dropped, and no process is signalled beside the worker.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "tests/timer_server/registry_parts.hpp"
#include "timer_server/kills/hooks.hpp"
#include "timer_server/kills/overdue_scopes.hpp"
#include "timer_server/kills/verdicts.hpp"
#include "timer_server/kills/warnings.hpp"
#include "timer_server/watch/deadline_scan.hpp"

namespace filetimer {

struct VerdictParts : RegistryParts {
  static Settings worker_only() {
    Settings settings;
    settings.kill.mode = KillMode::kProcess;
    settings.kill.evidence = EvidenceLevel::kNone;
    return settings;
  }
  explicit VerdictParts(Settings with = worker_only(),
                        Duration read_workers_within = std::chrono::seconds{10})
      : RegistryParts(std::move(with)), read_limit(read_workers_within) {}

  // Adds a worker whose command line and rank are known, so that no verdict waits for them.
  Worker& add_known_worker(Process process) {
    Worker& worker = add_worker(std::move(process));
    *worker.facts = WorkerFacts{};
    return worker;
  }

  // Advances all kills by one step: to their signals, or past them.
  void advance(Instant at = Instant::now()) {
    verdicts.advance(at);
    REQUIRE(log->drain(std::chrono::seconds{10}));
    verdicts.advance(at);
  }

  const Duration read_limit;  // for the workers of an incident
  Board board{};
  DeadlineScan scan{{workers, policy, nullptr, unsaved}};
  OverdueScopes overdue{records, *log};
  Warnings warnings{settings.kill, records, *log, side_threads};
  Hooks hooks{loop.get(), {"true", {}}, {}, {}, records, *log, {.waiting = 0}};
  EvidenceCommand evidence_command{loop.get(),
                                   settings.evidence_command,
                                   settings.kill.evidence_timeout,
                                   {"PATH=/usr/bin:/bin"},
                                   Inheritance::of_this_process(),
                                   records,
                                   *log};
  PeerEvidence peers{settings.kill, records, *log, side_threads};
  Verdicts verdicts{{.loop = loop.get(),
                     .policy = settings.kill,
                     .scopes = policy,
                     .workers = workers,
                     .folder = page_folder,
                     .unsaved = unsaved,
                     .records = records,
                     .log = *log,
                     .side_threads = side_threads,
                     .warnings = warnings,
                     .overdue = overdue,
                     .hooks = hooks,
                     .evidence_command = evidence_command,
                     .peers = peers,
                     .read_limit = read_limit}};
};

}  // namespace filetimer
