// What the parts of the server share.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>

#include "common/due.hpp"
#include "timer_server/counters.hpp"
#include "timer_server/evidence/evidence_desk.hpp"
#include "timer_server/records/kill_files.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/requests/rejections.hpp"
#include "timer_server/runtime_directory.hpp"
#include "timer_server/scopes/workers.hpp"
#include "timer_server/settings/scope_policy.hpp"
#include "timer_server/settings/settings.hpp"
#include "timer_server/system/event_loop.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {

// Services only: each part has its own state, keeps a reference to the core, and gets what it alone
// needs as further arguments. The core outlives the parts. It and they are used on the loop thread.
//
//   Core core{settings, directory, std::move(log)};   // `directory` is open and outlives the core
struct Core {
  const Settings settings;
  RuntimeDirectory& directory;
  const std::unique_ptr<RecordLog> log;
  Records records{RecordOrigin::of_this_process(directory.path())};
  KillFiles kill_files{directory.path(), records.boot_id()};
  SideThreads side_threads{settings.realtime};
  EvidenceDesk desk{side_threads};
  EventLoop loop{};
  Rejections rejections{};
  LostTime lost{};  // time in which the server could not run
  const ScopePolicy policy{settings, lost};
  Workers workers{};
  Counters counters{};

  // Returns what a worker's page says of its Python stacks. There is one interpreter in a process,
  // so the first page that has a dump signal counts.
  [[nodiscard]] std::optional<PythonDump> python_dump_of(const Worker& worker) const {
    for (const auto& page : worker.pages) {
      if (const std::uint32_t signal = page->dump_signal(); signal != 0) {
        return PythonDump{signal, directory.pages().stacks_path(page->name()), page->program()};
      }
    }
    return std::nullopt;
  }
};

}  // namespace filetimer
