// The server's core in a runtime directory of its own, with workers whose scopes are on the pipe.
// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string_view>
#include <utility>

#include "tests/support/files.hpp"
#include "timer_server/core.hpp"

namespace filetimer {

struct CoreStage {
  explicit CoreStage(Settings with = {}) : settings(std::move(with)) {}

  Worker& add_worker(Process process) {
    Worker& worker = core.workers.add(std::move(process));
    worker.pipe =
        std::make_shared<PipePage>(folder.path(), worker.process->pid, core.policy.page_terms());
    worker.pages.push_back(worker.pipe);
    return worker;
  }
  // Adds one that need not exist.
  Worker& add_worker(pid_t pid) {
    Process process;
    process.pid = pid;
    return add_worker(std::move(process));
  }
  // Opens a scope as a request does.
  static void acquire(Worker& worker, std::string_view id, const SlotReading& terms) {
    REQUIRE(worker.pipe->acquire(id, id.size(), terms));
  }

  const testing::TempFolder folder;
  Settings settings;
  const std::unique_ptr<RuntimeDirectory> directory = [this] {
    settings.dir = folder.path();
    return RuntimeDirectory::open(settings, {}).value();
  }();
  Core core{settings, *directory};
};

}  // namespace filetimer
