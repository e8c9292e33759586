// The registries of workers and pages, in the folder of a test.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "tests/timer_server/worker_parts.hpp"
#include "timer_server/requests/rejections.hpp"
#include "timer_server/system/event_loop.hpp"
#include "timer_server/watch/expected_workers.hpp"
#include "timer_server/watch/page_registry.hpp"
#include "timer_server/watch/worker_registry.hpp"

namespace filetimer {

// A pid over the largest pid_max, which no process has.
inline constexpr pid_t kNoProcess = (1 << 22) + 1;

struct RegistryParts : WorkerParts {
  explicit RegistryParts(Settings with = {}) : WorkerParts(std::move(with)) {}

  // Dispatches the pending events of the loop once.
  void dispatch() const { REQUIRE(::sd_event_run(loop.get(), 0) >= 0); }
  // Returns the reason of the last rejection since the last call; empty: none.
  std::string take_rejection() {
    const auto report = rejections.take(Instant::now(), true);
    return report ? report->reason : std::string();
  }

  EventLoop loop = make_event_loop();
  Rejections rejections;
  ExpectedWorkers expected{1, std::chrono::hours{1}, Instant::now()};
  PageFolder page_folder = std::move(*PageFolder::make(folder.path()));
  std::function<void(Worker&)> on_remove = [this](Worker& worker) {
    pages.remove_all(worker, worker.dying ? "" : "the worker ended");
  };
  WorkerRegistry registry{{.loop = loop.get(),
                           .workers = workers,
                           .side_threads = side_threads,
                           .expected = expected,
                           .unsaved = unsaved,
                           .on_remove = [this](Worker& worker) { on_remove(worker); }}};
  PageRegistry pages{{.loop = loop.get(),
                      .folder = page_folder,
                      .workers = workers,
                      .registry = registry,
                      .policy = policy,
                      .rejections = rejections,
                      .records = records,
                      .log = *log}};
};

}  // namespace filetimer
