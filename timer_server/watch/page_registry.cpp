// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "common/limits.hpp"
#include "common/scope_page.hpp"
#include "common/text.hpp"
#include "timer_server/system/messages.hpp"
#include "timer_server/watch/registry.hpp"

namespace filetimer {
namespace {

// Libraries in one process that each have a page of their own.
constexpr std::size_t kMaxPagesPerWorker = 8;
// Pages at a time whose process may be exiting.
constexpr std::size_t kMaxFreePages = 64;
// Files in `scopes` that one sweep looks at, and names of those it need not look at again.
constexpr std::size_t kMaxLooksPerSweep = 256;
constexpr std::size_t kMaxRefusedPages = 16384;
// `left_open` records of orphaned scopes, at a start and between two sweeps: every process of the
// user can make such files.
constexpr std::size_t kMaxOrphanedScopes = 8192;

constexpr int kAnotherProgram = ENOEXEC;  // as an Error's number, within this file

// Returns the process that a page names as its worker, if it is alive.
Result<Process> claimed_process(const PageClaims& claims) {
  auto process = open_process(claims.pid);
  if (process && claims.start_time != 0 && process->start_time != claims.start_time) {
    return failure("another process has its pid");
  }
  return process;
}

// Checks what the page says of its worker against what the kernel says. `is_confirmed`: an earlier
// server has admitted the page, and the worker may have changed its user since.
Status check_claims(const PageClaims& claims, const Process& process, bool is_confirmed) {
  if (process.uid != ::geteuid() && !is_confirmed) {
    return failure(fmt::format("pid {} belongs to user {}: expected a process of user {}",
                               process.pid, process.uid, ::geteuid()));
  }
  if (claims.pid != process.innermost_pid) {
    return failure(fmt::format("it says pid {}: expected {}, which holds its lock", claims.pid,
                               process.innermost_pid));
  }
  if (claims.start_time != 0 && claims.start_time != process.start_time) {
    return failure(fmt::format("it says that pid {} started at {}: expected {}", claims.pid,
                               claims.start_time, process.start_time));
  }
  const std::string theirs = link_target(fmt::format("/proc/{}/ns/time", process.pid));
  const std::string ours = link_target("/proc/self/ns/time");  // empty: the kernel has none
  if (!theirs.empty() && !ours.empty() && theirs != ours) {
    return failure(
        fmt::format("pid {} is in another time namespace ({}): its deadlines are on another clock",
                    process.pid, theirs));
  }
  return {};
}

// Returns the identity of a process that has exited, as its page says.
WorkerIdentity claimed_identity(const PageClaims& claims, pid_t pid) {
  Process process;
  process.pid = pid;
  process.start_time = claims.start_time;
  process.uid = claims.uid;
  process.comm = claims.comm;
  return {std::make_shared<const Process>(std::move(process)),
          std::make_shared<WorkerFacts>(worker_facts_claimed(claims))};
}

}  // namespace

bool runs_another_program(const Process& process, const WorkerPage& page) {
  if (page.name().empty()) {
    return false;  // of the pipe, on which no program is known
  }
  const auto stat = retry_for_now([&] { return read_stat(fmt::format("/proc/{}", process.pid)); });
  // The stack of a program that the server may not read is 0. That of a process that exits is, too,
  // and the kernel has dropped its locks: it is still the same program.
  return stat && stat->start_time == process.start_time && !stat->is_exiting &&
         ((stat->start_stack != 0 && page.program() != 0 && stat->start_stack != page.program()) ||
          page.has_lost_lock(stat->start_stack == 0 || page.program() == 0));
}

void WatchRegistry::adopt(const HasEnded& has_ended) {
  has_ended_ = has_ended;
  const auto names = core_.directory.pages().names();
  if (!names) {
    throw std::runtime_error(names.error().message);
  }
  for (const std::string& name : *names) {
    if (is_page_name(name)) {
      look_at(name);
    } else {
      core_.rejections.add(fmt::format("'{}' is not the name of a page", name), name, 0);
    }
  }
  has_ended_ = nullptr;
}

void WatchRegistry::on_wake_up_message(std::string_view name) {
  if (!is_page_name(name)) {
    core_.rejections.add(
        fmt::format("x_page is not a page name: expected letters, digits and '-', at most {}",
                    kMaxPageNameBytes),
        name, 0);
    return;
  }
  core_.wants_scan = true;
  if (const std::string page(name); !pages_.contains(page)) {
    look_at(page);
  }
}

void WatchRegistry::look_after_full_pipe() {
  std::size_t looks = kMaxWorkers / kMaxLooksPerSweep;
  while (!look_for_pages() && --looks > 0) {
  }
  core_.wants_scan = true;
}

// Finds pages whose wake-up message was lost because its writer was killed or the pipe was removed.
bool WatchRegistry::look_for_pages() {
  refused_names_in_batch_.clear();
  // Pages that wait for an exit first: those that are refused now make room.
  for (const std::string& name : mapped(free_, [](const auto& free) { return free.first; })) {
    if (core_.directory.pages().has(name)) {
      look_at(name);
    } else {
      free_.erase(name);  // its worker has removed it
    }
  }
  const auto names = core_.directory.pages().names();
  if (!names) {
    return false;
  }
  if (std::exchange(has_looked_at_all_, false)) {
    std::erase_if(refused_, [](const auto& refused) { return refused.second; });
  }
  std::size_t looks = 0;
  for (const std::string& name : *names) {
    if (!is_page_name(name) || pages_.contains(name) || refused_.contains(name) ||
        free_.contains(name)) {
      continue;
    }
    if (++looks > kMaxLooksPerSweep) {
      return false;
    }
    look_at(name);
  }
  has_looked_at_all_ = true;
  return true;
}

void WatchRegistry::look_at(const std::string& name) {
  if (refused_names_in_batch_.contains(name)) {
    return;
  }
  const auto opened = MappedPage::open(core_.directory.pages().page_path(name), name);
  if (!opened && opened.error().errno_value == ENOENT) {
    free_.erase(name);  // the worker has ended, and its page was removed
    return;
  }
  if (!opened) {
    refuse(name, opened.error());
    return;
  }
  const std::shared_ptr<MappedPage>& page = *opened;
  // A container may show another boot id to its processes, or none. A page whose lock is held is of
  // this boot.
  const auto holder = page->owner();
  const bool is_free = !holder && holder.error().errno_value == ESRCH;
  const BootId boot = page->claims().boot;
  if (boot != this_boot() && boot != BootId{} && is_free) {
    remove_orphan(*page, kAnotherBoot);
    return;
  }
  const Result<Worker*> worker = owner_of(*page);
  if (!worker) {
    find_owner(page, worker.error());
    return;
  }
  free_.erase(name);
  for (const auto& other : std::vector((*worker)->pages)) {
    if (runs_another_program(*(*worker)->process, *other)) {
      remove_page(**worker, *other, kStartedAnother);
    }
  }
  // It has started this program since it was first seen. The records of the other one keep theirs.
  if (page->program() != 0 && page->program() != (*worker)->process->start_stack) {
    (*worker)->facts = std::make_shared<WorkerFacts>();
    (*worker)->facts->comm = page->claims().comm;
    read_facts(**worker);
  }
  const std::size_t own_pages = (*worker)->pages.size() - ((*worker)->pipe ? 1 : 0);
  if (own_pages >= kMaxPagesPerWorker && !remove_lost_page(**worker)) {
    refuse(name,
           {fmt::format("pid {} has {} pages already", (*worker)->process->pid, kMaxPagesPerWorker),
            EAGAIN});
    return;
  }
  add(**worker, page);
}

void WatchRegistry::refuse(const std::string& name, const Error& reason) {
  // A kill that an earlier server has begun cannot be resumed without the page.
  if (has_ended_ && is_for_now(reason)) {
    throw std::runtime_error(fmt::format("page '{}': {}", name, reason.message));
  }
  free_.erase(name);
  refused_names_in_batch_.insert(name);
  core_.rejections.add(fmt::format("page '{}': {}", name, reason.message), name, 0);
  skip(name, is_for_now(reason) || reason.errno_value == EAGAIN);  // a limit of the server
}

void WatchRegistry::skip(const std::string& name, bool may_end) {
  if (refused_.size() >= kMaxRefusedPages) {
    refused_.clear();  // all are looked at again
  }
  refused_[name] = may_end;
}

// Decides what becomes of a page for which owner_of() has found no worker.
void WatchRegistry::find_owner(const std::shared_ptr<MappedPage>& page, const Error& why_none) {
  const std::string& name = page->name();
  if (why_none.errno_value == kAnotherProgram) {
    remove_orphan(*page, kStartedAnother);
  } else if (why_none.errno_value != ESRCH) {
    refuse(name, why_none);
  } else if (auto claimed = claimed_process(page->claims());
             !claimed && is_for_now(claimed.error())) {
    refuse(name, claimed.error());
  } else if (!claimed) {
    free_.erase(name);
    remove_orphan(*page, "the worker ended inside the scope while no server was running");
  } else if (const auto waiting = free_.find(name); waiting != free_.end()) {
    if (!std::exchange(waiting->second.is_refused, true)) {
      core_.rejections.add(fmt::format("page '{}': {}", name, why_none.message), name, 0);
    }
  } else if (!make_room_to_wait()) {
    refuse(name, {why_none.message, EAGAIN});
  } else {
    wait_for_exit(name, std::move(*claimed));
  }
}

// Returns whether one page more may wait for the end of its process. If there is no room, those
// that were refused wait no longer.
bool WatchRegistry::make_room_to_wait() {
  if (free_.size() >= kMaxFreePages) {
    std::erase_if(free_, [this](const auto& other) {
      if (other.second.is_refused) {
        skip(other.first, false);
      }
      return other.second.is_refused;
    });
  }
  return free_.size() < kMaxFreePages;
}

void WatchRegistry::add(Worker& worker, const std::shared_ptr<MappedPage>& page) {
  if (has_random_stack(worker.process->pid)) {
    page->close_descriptor();
  }
  core_.directory.pages().confirm(
      page->name(), {worker.process->pid, worker.process->start_time, page->program()});
  refused_.erase(page->name());
  add_claims(*worker.facts, worker_facts_claimed(page->claims()));
  worker.pages.reserve(worker.pages.size() + 1);  // a name alone would never be looked at again
  pages_.insert(page->name());
  worker.pages.push_back(page);
  core_.wants_scan = true;
  if (!has_ended_) {  // the scopes of one that is adopted are known
    page->note_new();
  }
  messages::debug("page '{}' belongs to pid {}", page->name(), worker.process->pid);
}

// Returns the worker that a page belongs to, and watches it if it is new.
Result<Worker*> WatchRegistry::owner_of(MappedPage& page) {
  auto process = open_owner(page);
  FILETIMER_TRY(process);
  page.set_program(process->start_stack);
  const auto confirmed = confirmed_owner(page);
  FILETIMER_TRY(check_claims(
      page.claims(), *process,
      confirmed && confirmed->pid == process->pid && confirmed->start_time == process->start_time));
  return worker_for(std::move(*process));
}

// Returns the process that holds the lock of the page. While this server starts, also accepts the
// owner that an earlier server confirmed, of a page whose lock no process holds: a holder outside
// this pid namespace is alive, and the number in the note is one of another namespace.
Result<Process> WatchRegistry::open_owner(MappedPage& page) const {
  const Result<pid_t> holder = page.owner();
  const auto confirmed = confirmed_owner(page);
  if (!holder && (!confirmed || holder.error().errno_value != ESRCH)) {
    return tl::unexpected<Error>(holder.error());
  }
  const pid_t pid = holder ? *holder : confirmed->pid;
  auto process = open_process(pid);
  if (!process) {
    return process;
  }
  if (holder) {
    // The pid may have been reused before the process was opened. No test covers this: the interval
    // lasts microseconds.
    const Result<pid_t> again = page.owner();
    FILETIMER_TRY(again);
    if (*again != pid) {
      return failure(fmt::format("pid {} has dropped its lock", pid), ESRCH);
    }
  } else if (process->start_time != confirmed->start_time) {
    return failure(fmt::format("pid {} has ended", pid), ESRCH);
  } else if (confirmed->start_stack != 0 && !process->is_exiting &&
             (process->start_stack != confirmed->start_stack || !has_random_stack(pid))) {
    // The program that could have released the scopes has ended.
    return failure(fmt::format("pid {} has started another program", pid), kAnotherProgram);
  }
  return process;
}

// A worker that exits loses its lock shortly before its pidfd reports the exit. So its page is
// looked at again after the exit; if the process still runs, the next sweep reports the page.
void WatchRegistry::wait_for_exit(const std::string& name, Process process) {
  Free& free = free_[name];
  free.process = std::move(process);
  free.exit = watch_io(core_.loop, free.process.pidfd.get(), EPOLLIN, kDeathsFirst, [this, name] {
    const std::string page = name;  // erase() destroys the handler
    free_.erase(page);
    if (core_.directory.pages().has(page)) {
      look_at(page);
    }
  });
}

void WatchRegistry::record_orphaned_scopes(const PageClaims& claims, pid_t pid,
                                           const std::vector<SlotReading>& scopes,
                                           std::string_view reason, const HasEnded& has_ended) {
  const WorkerIdentity worker = claimed_identity(claims, pid);
  const Instant now = claims.boot == this_boot() ? Instant::now() : Instant::never();
  for (const SlotReading& scope : scopes) {
    const bool was_open = slot_word::is_open(scope.word) || slot_word::is_expired(scope.word);
    // An idle timeout is listed with the scopes while its kill is under way.
    if (was_open && !scope.has(slot_flag::kWholeProcess) && !scope.has(slot_flag::kIdle) &&
        !(has_ended && has_ended(pid, claims.start_time, scope)) &&
        ++orphaned_scopes_ <= kMaxOrphanedScopes) {
      core_.log->append(core_.records.left_open(worker, core_.policy.view_of(scope), now, reason));
    }
  }
}

void WatchRegistry::remove_orphan(MappedPage& page, std::string_view reason) {
  const auto owner = core_.directory.pages().confirmed_owner(page.name());
  PageClaims claims = page.claims();
  const pid_t pid = owner ? owner->pid : claims.pid;
  claims.start_time = owner ? owner->start_time : claims.start_time;  // not known without /proc
  record_orphaned_scopes(claims, pid, page.open_slots(), reason, has_ended_);
  StatisticsByName statistics;
  page.add_statistics(statistics);
  append_statistics(claimed_identity(claims, pid), statistics);
  core_.directory.pages().remove(page.name());
}

// Removes the oldest page whose file is gone and that has no scopes: its worker has made another
// one. Returns false if there is none.
bool WatchRegistry::remove_lost_page(Worker& worker) {
  const auto lost = std::ranges::find_if(worker.pages, [&](const auto& page) {
    return page != worker.pipe && !core_.directory.pages().has(page->name()) &&
           page->open_slots().empty();
  });
  if (lost == worker.pages.end()) {
    return false;
  }
  take_out(worker, **lost, "");
  return true;
}

// The page is the worker's until all of this is done: what fails for want of memory is done again.
void WatchRegistry::take_out(Worker& worker, const WorkerPage& page, std::string_view reason) {
  const std::string name = page.name();
  const auto place = std::ranges::find(worker.pages, &page, &std::shared_ptr<WorkerPage>::get);
  const std::shared_ptr<WorkerPage> held = *place;
  if (!held->is_whole()) {
    core_.rejections.add(
        fmt::format("page '{}' of pid {} was truncated: its scopes are no longer watched", name,
                    worker.process->pid),
        name, worker.process->pid);
  }
  if (!reason.empty()) {
    flush_(worker, reason);
  }
  const Instant now = Instant::now();
  std::vector<std::string> records;
  for (const SlotReading& reading : held->open_slots()) {
    if (slot_word::is_open(reading.word) && !reason.empty() &&
        !reading.has(slot_flag::kWholeProcess)) {
      records.push_back(
          core_.records.left_open(worker, core_.policy.view_of(reading), now, reason));
    }
  }
  StatisticsByName statistics = worker.lost_statistics;
  held->add_statistics(statistics);
  if (held == worker.pipe) {
    worker.pipe->remove();
  } else {
    core_.directory.pages().remove(name);
  }
  core_.log->append(std::move(records));
  worker.lost_statistics.swap(statistics);
  worker.pages.erase(place);
  pages_.erase(name);
  worker.pipe = held == worker.pipe ? nullptr : worker.pipe;
}

void WatchRegistry::record_statistics_of_living_workers() const {
  core_.workers.for_each([this](const Worker& worker) {
    StatisticsByName statistics = worker.lost_statistics;
    for (const auto& page : worker.pages) {
      page->add_statistics(statistics);
    }
    append_statistics(worker, statistics);
  });
}

}  // namespace filetimer
