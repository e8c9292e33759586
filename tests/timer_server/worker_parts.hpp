// The parts of a server that hold workers and their scopes, for tests of the parts above them: in
// the folder of a test, with injected time.
// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tests/support/files.hpp"
#include "tests/support/test_page.hpp"
#include "tests/timer_server/test_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/scopes/mapped_page.hpp"
#include "timer_server/scopes/page_guard.hpp"
#include "timer_server/scopes/workers.hpp"
#include "timer_server/settings/settings.hpp"
#include "timer_server/system/side_threads.hpp"
#include "timer_server/watch/scope_policy.hpp"
#include "timer_server/watch/unsaved_pages.hpp"

namespace filetimer {

// The terms of a scope whose expiry kills its worker.
inline ScopeTerms terms_between(Instant acquired, Instant deadline) {
  ScopeTerms terms;
  terms.acquired = acquired;
  terms.deadline = deadline;
  terms.timeout = terms.asked = deadline.is_never() ? kForever : deadline - acquired;
  terms.signal = SIGKILL;
  return terms;
}

// A process that need not exist: a Process without a pidfd counts as alive.
inline Process made_up_process(pid_t pid) {
  Process process;
  process.pid = pid;
  process.start_time = 1;
  process.uid = ::geteuid();
  process.comm = "made-up";
  return process;
}

// Like a pidfd, this descriptor becomes readable when the process ends.
inline UniqueFd ended_pidfd() {
  return UniqueFd(::eventfd(1, EFD_CLOEXEC));
}

// A process that is alive until end() is called. No signal reaches it.
struct EndingProcess {
  Process take(pid_t pid) {
    Process process = made_up_process(pid);
    process.pidfd = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    pidfd = process.pidfd.get();
    return process;
  }
  void end() const { REQUIRE(::eventfd_write(pidfd, 1) == 0); }
  int pidfd = -1;
};

struct WorkerParts {
  explicit WorkerParts(Settings with = {}) : settings(std::move(with)) { PageGuard::install(); }

  Worker& add_worker(pid_t pid) { return add_worker(made_up_process(pid)); }
  Worker& add_this_process() { return add_worker(std::move(*open_process(::getpid()))); }
  Worker& add_worker(Process process) {
    auto added = workers.add(std::move(process));
    REQUIRE(added);
    return **added;
  }

  // Opens a scope as a request does.
  void acquire(Worker& worker, std::string_view id, const ScopeTerms& terms) const {
    if (!worker.pipe) {
      worker.pipe =
          std::make_shared<PipePage>(folder.path(), worker.process->pid, policy.page_terms());
      worker.pages.push_back(worker.pipe);
    }
    REQUIRE(worker.pipe->acquire(id, id.size(), terms));
  }
  void acquire(Worker& worker, std::string_view id, std::int64_t deadline) const {
    acquire(worker, id, terms_between({1'000}, {deadline}));
  }
  // Gives the worker a page of its own with this content.
  MappedPage& add_page(Worker& worker, TestPage& content, const std::string& name = "own") const {
    content.write(folder.path(name));
    auto page = MappedPage::open(folder.path(name), name);
    REQUIRE(page);
    worker.pages.push_back(*page);
    return **page;
  }

  // The records of one event.
  testing::Records records_of(std::string_view event) {
    testing::Records all = records_of_log(*log, folder);
    std::erase_if(all, [&](const testing::Record& record) { return !record.is(event); });
    return all;
  }

  testing::TempFolder folder;
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  Records records{RecordOrigin::of_this_process()};
  SideThreads side_threads;
  const Settings settings;
  GivenTime given;
  const ScopePolicy policy{settings, given};
  Workers workers;
  UnsavedPages unsaved;
};

}  // namespace filetimer
