// The server's pages: whose they are, when they are read, and what is found on them. The deadlines
// of a page are judged like those of the pipe, in Server::judge(); here they are only collected.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/limits.hpp"
#include "common/wake_protocol.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/server.hpp"

namespace filetimer {
namespace {

// Libraries in one process that each have a page of their own; more is somebody's game.
constexpr std::size_t kMaxPagesPerWorker = 8;
// Pages at a time whose worker may be on its way out.
constexpr std::size_t kMaxUnclaimedPages = 64;
// How soon a worker that is in a scope is looked at again for an idle timeout that is shorter.
constexpr Duration kIdleLook = std::chrono::milliseconds{100};
// Files in `scopes` that one sweep looks at, and names of those it need not look at again.
constexpr std::size_t kMaxLooksPerSweep = 256;
constexpr std::size_t kMaxRefusedPages = 16384;
// Pages that each sweep looks at again, since what they lacked may be there.
constexpr std::size_t kMaxRefusedForNow = 256;
// `left_open` records for pages of workers that nobody has seen alive: anybody can make such files.
constexpr std::size_t kMaxPutAwayScopes = 8192;

// Empty when it is not for us to see.
std::string time_namespace(std::string_view pid) {
  std::array<char, 64> target{};
  const ssize_t length =
      ::readlink(fmt::format("/proc/{}/ns/time", pid).c_str(), target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : std::string{};
}

// The process that a page says is its worker, if it lives.
std::optional<Process> claimed_process(const PageClaims& claims) {
  auto process = open_process(claims.pid);
  const bool is_it =
      process && (claims.start_time == 0 || process->start_time == claims.start_time);
  return is_it ? std::optional(std::move(*process)) : std::nullopt;
}

// A worker that no server will see alive, as its page says.
WorkerIdentity claimed_identity(const PageClaims& claims, pid_t pid) {
  Process process;
  process.pid = pid;
  process.start_time = claims.start_time;
  process.uid = claims.uid;
  process.comm = claims.comm;
  return {std::make_shared<const Process>(std::move(process)),
          std::make_shared<std::optional<WorkerFacts>>(
              worker_facts_claimed(claims.rank, claims.local_rank, claims.job_id))};
}

// A refusal for want of room or of descriptors, which may be there later: sweeps look at the page
// again.
bool is_for_now(const Error& refusal) {
  constexpr std::array kForNow{EAGAIN, EMFILE, ENFILE, ENOMEM, ENOSPC};
  return std::ranges::find(kForNow, refusal.errno_value) != kForNow.end();
}

constexpr int kAnotherProgram = ENOEXEC;  // as an Error's number, within this file
constexpr std::string_view kStartedAnother = "the worker started another program inside the scope";

// The kernel puts the stack of every new program somewhere else. False where that can't be seen.
bool runs_another_program(const Process& process, const WorkerPage& page) {
  if (page.program() == 0) {
    return false;
  }
  const auto stat = read_stat(fmt::format("/proc/{}", process.pid));
  return stat && stat->start_time == process.start_time && stat->start_stack != 0 &&
         stat->start_stack != page.program();
}

// What the page says of its worker, against what the kernel says.
Status check_claims(const PageClaims& claims, const Process& process) {
  if (claims.pid != process.innermost_pid) {
    return failure(fmt::format("it says pid {}: expected {}, who holds its lock", claims.pid,
                               process.innermost_pid));
  }
  if (claims.start_time != 0 && claims.start_time != process.start_time) {
    return failure(fmt::format("it says that pid {} started at {}: expected {}", claims.pid,
                               claims.start_time, process.start_time));
  }
  const std::string theirs = time_namespace(fmt::format("{}", process.pid));
  const std::string ours = time_namespace("self");
  if (!theirs.empty() && !ours.empty() && theirs != ours) {
    return failure(
        fmt::format("pid {} lives in another time namespace ({}): its deadlines mean something "
                    "else than ours",
                    process.pid, theirs));
  }
  return {};
}

}  // namespace

// A worker says that there is something new on its page.
void Server::on_page_hint(std::string_view name) {
  if (!is_page_name(name)) {
    rejections_.add(
        fmt::format("x_page is no name of a page: expected letters, digits and '-', at most {}",
                    kMaxPageNameBytes),
        name, 0);
    return;
  }
  scan_wanted_ = true;
  std::string page(name);
  if (!pages_.contains(page)) {
    look_at_page(page);
  }
  if (pages_.contains(page)) {
    hinted_pages_.insert(std::move(page));
  }
}

void Server::look_at_page(const std::string& name) {
  if (refused_pages_in_batch_.contains(name)) {
    return;
  }
  const auto refuse = [&](const Error& reason) {
    unclaimed_.erase(name);
    refused_pages_in_batch_.insert(name);
    rejections_.add(fmt::format("page '{}': {}", name, reason.message), name, 0);
    if (is_for_now(reason) && refused_for_now_.size() >= kMaxRefusedForNow) {
      pages_unlooked_ = true;
      return;
    }
    if (refused_pages_.size() >= kMaxRefusedPages) {
      refused_pages_.clear();
    }
    refused_pages_.insert(name);
    if (is_for_now(reason) && std::ranges::find(refused_for_now_, name) == refused_for_now_.end()) {
      refused_for_now_.push_back(name);
    }
  };
  const auto opened = MappedPage::open(directory_.pages().page_path(name), name);
  if (!opened) {
    refuse(opened.error());
    return;
  }
  const std::shared_ptr<MappedPage>& page = *opened;
  // A container may show another boot id to its processes: a lock that is held is of this boot.
  const auto holder = page->owner();
  const bool is_free = !holder && holder.error().errno_value == ESRCH;
  if (page->claims().boot != this_boot() && is_free) {
    put_away_page(*page, "the machine was restarted");
    return;
  }
  const Result<Worker*> worker = owner_of(*page);
  if (!worker) {
    if (worker.error().errno_value == kAnotherProgram) {
      put_away_page(*page, kStartedAnother);
    } else if (worker.error().errno_value != ESRCH) {
      refuse(worker.error());
    } else if (auto claimed = claimed_process(page->claims()); !claimed) {
      unclaimed_.erase(name);
      put_away_page(*page, "the worker ended inside the scope, unseen");
    } else if (unclaimed_.contains(name)) {
      refuse(worker.error());
    } else if (unclaimed_.size() >= kMaxUnclaimedPages) {
      refuse({worker.error().message, EAGAIN});
    } else {
      wait_for_end(name, std::move(*claimed));
    }
    return;
  }
  unclaimed_.erase(name);
  drop_pages_of_other_programs(**worker);
  const std::size_t own_pages = (*worker)->pages.size() - ((*worker)->pipe ? 1 : 0);
  if (own_pages >= kMaxPagesPerWorker) {
    refuse({fmt::format("pid {} has {} pages already", (*worker)->process->pid, kMaxPagesPerWorker),
            EAGAIN});
    return;
  }
  page->close_descriptor();
  directory_.pages().confirm(
      name, {(*worker)->process->pid, (*worker)->process->start_time, page->program()});
  refused_pages_.erase(name);
  pages_[name] = *worker;
  (*worker)->pages.push_back(page);
  scan_wanted_ = true;
  messages::debug("page '{}' is of pid {}", name, (*worker)->process->pid);
}

// The worker that a page belongs to: who holds its lock, or who held it when a server last asked.
Result<Worker*> Server::owner_of(MappedPage& page) {
  const Result<pid_t> holder = page.owner();
  // Only what a server has written, and only while this one starts: later it knows for itself.
  const auto confirmed =
      is_adopting_ ? directory_.pages().confirmed_owner(page.name()) : std::nullopt;
  if (!holder && !confirmed) {
    return tl::unexpected<Error>(holder.error());
  }
  const pid_t pid = holder ? *holder : confirmed->pid;
  if (pid == ::getpid()) {
    return failure("this server holds its lock");
  }
  auto process = open_process(pid);
  if (!process) {
    return tl::unexpected<Error>(std::move(process.error()));
  }
  if (holder) {
    // Asked again: the pid that was named may have come to mean another before it was opened. That
    // lasts microseconds, which no test can hold still.
    const Result<pid_t> again = page.owner();
    if (!again || *again != pid) {
      return tl::unexpected<Error>(Error{fmt::format("pid {} has let go of it", pid), ESRCH});
    }
  } else if (process->start_time != confirmed->start_time) {
    return tl::unexpected<Error>(Error{fmt::format("pid {} has ended", pid), ESRCH});
  } else if (process->start_stack != confirmed->start_stack) {
    // The program that could have released the scopes is no more.
    return tl::unexpected<Error>(
        Error{fmt::format("pid {} has started another program", pid), kAnotherProgram});
  }
  page.set_program(process->start_stack);
  if (process->uid != ::geteuid()) {
    return failure(fmt::format("pid {} belongs to user {}: expected a process of user {}", pid,
                               process->uid, ::geteuid()));
  }
  if (Status checked = check_claims(page.claims(), *process); !checked) {
    return tl::unexpected<Error>(std::move(checked.error()));
  }
  if (Worker* const known = workers_.find(pid)) {
    if (known->process->start_time == process->start_time && known->process->is_alive()) {
      return known;
    }
    bury(*known);
  }
  return watch(std::move(*process));
}

void Server::drop_pages_of_other_programs(Worker& worker) {
  const auto pages = worker.pages;
  for (const auto& page : pages) {
    if (runs_another_program(*worker.process, *page)) {
      drop_page(worker, *page, kStartedAnother);
    }
  }
}

// A worker that ends lets go of its lock a moment before its end can be seen. So its page is looked
// at again then; if it should live on, the next sweep refuses the page.
void Server::wait_for_end(const std::string& name, Process process) {
  Unclaimed& unclaimed = unclaimed_[name];
  unclaimed.process = std::make_shared<Process>(std::move(process));
  unclaimed.end = add_io(unclaimed.process->pidfd.get(), kDeathsFirst, [this, name] {
    const std::string page = name;  // a copy: this handler ends with its entry
    unclaimed_.erase(page);         // whatever becomes of the page: the process has ended
    refused_pages_in_batch_.erase(page);
    look_at_page(page);
  });
}

// Scopes of a worker that no server will see alive: told once.
void Server::put_away(const PageClaims& claims, pid_t pid, const std::vector<SlotReading>& scopes,
                      std::string_view reason) {
  const WorkerIdentity worker = claimed_identity(claims, pid);
  const Instant now = Instant::now();
  for (const SlotReading& scope : scopes) {
    const bool was_left = slot_word::is_open(scope.word) || slot_word::is_expired(scope.word);
    const bool is_told = (scope.flags & (slot_flag::kWholeProcess | slot_flag::kIdle)) != 0 ||
                         past_verdict(pid, claims.start_time, scope) != nullptr;
    if (was_left && !is_told && ++put_away_scopes_ <= kMaxPutAwayScopes) {
      log_->append(records_.left_open(worker, view_of(scope), now, reason));
    }
  }
}

void Server::put_away_page(MappedPage& page, std::string_view reason) {
  const auto owner = directory_.pages().confirmed_owner(page.name());
  const pid_t pid = owner ? owner->pid : page.claims().pid;
  put_away(page.claims(), pid, page.open_slots(), reason);
  StatisticsByName statistics;
  page.add_statistics(statistics);
  record_end(claimed_identity(page.claims(), pid), statistics);
  directory_.pages().remove(page.name());
}

// At the start: whoever was watched is watched on.
void Server::adopt_pages() {
  directory_.pages().has_changed();
  for (const std::string& name : directory_.pages().names()) {
    if (is_page_name(name)) {
      look_at_page(name);
    } else {
      rejections_.add(fmt::format("'{}' in the folder of pages is none", name), name, 0);
    }
  }
  workers_.for_each([&](const Worker& worker) {
    for (const auto& page : worker.pages) {
      adopted_scopes_ += page->open_count();
    }
  });
  for (const pid_t pid : directory_.pages().pipe_workers()) {
    adopt_pipe_page(pid);
  }
}

// A hint that was lost (its writer was killed, the pipe was gone) is made good within a sweep.
void Server::look_for_pages() {
  const bool unlooked = std::exchange(pages_unlooked_, false);
  refused_pages_in_batch_.clear();
  std::vector<std::string> unclaimed;
  for (const auto& [name, waiting] : unclaimed_) {
    unclaimed.push_back(name);
  }
  for (const std::string& name : unclaimed) {
    look_at_page(name);
  }
  for (const std::string& name : std::exchange(refused_for_now_, {})) {
    refused_pages_.erase(name);
    if (!pages_.contains(name)) {
      look_at_page(name);
    }
  }
  if (!directory_.pages().has_changed() && !unlooked) {
    return;
  }
  std::size_t looks = 0;
  for (const std::string& name : directory_.pages().names()) {
    const bool is_new = is_page_name(name) && !pages_.contains(name) &&
                        !refused_pages_.contains(name) && !unclaimed_.contains(name);
    if (is_new && ++looks > kMaxLooksPerSweep) {
      pages_unlooked_ = true;
      break;
    }
    if (is_new) {
      look_at_page(name);
    }
  }
}

WorkerPage::Scan Server::scan_of(const Worker& worker, Instant now) const {
  return {.now = now, .terms = page_terms_, .given = given_time_, .resumed = worker.resumed};
}

// Reads every page; the order of it is argued in common/wake_protocol.hpp. What is due is judged
// before the status page says when the server wakes next, so a worker that renews in between wakes
// the server.
void Server::scan_pages(Instant woke, std::vector<DueScope>& due) {
  Board& board = directory_.status_page();
  announce_scan(board);
  scan_wanted_ = false;
  next_scan_ = Instant::never();
  WorkerPage::Found found;
  struct Dropped {
    Worker* worker;
    std::shared_ptr<WorkerPage> page;
    std::string_view reason;
  };
  std::vector<Dropped> dropped;  // after all pages were gone through
  workers_.for_each([&](Worker& worker) {
    if (worker.dying) {
      return;
    }
    WorkerPage::Activity activity;
    for (const auto& page : worker.pages) {
      // Anew for each page: the worker may have been found resumed on the one before.
      const WorkerPage::Scan scan = scan_of(worker, woke);
      found.clear();
      next_scan_ = std::min(next_scan_, page->scan(scan, found, activity));
      const bool is_due = !found.due.empty() || !found.soft.empty();
      if (is_due && !take_due(worker, page, found.due, woke, due)) {
        dropped.push_back({&worker, page, kStartedAnother});
      } else {
        note_soft_due(worker, page, found.soft);
      }
      if (page_terms_.max_timeout != kForever && page != worker.pipe) {
        tell_cuts(worker, *page);
      }
      if (!page->is_whole()) {
        dropped.push_back({&worker, page, {}});
      }
    }
    if (!activity.watches.empty()) {
      judge_idleness(worker, activity, woke, due);
    }
  });
  // An earlier one would have to wake us; a later one is found by the sweep.
  announce_next_scan(board, std::min(next_scan_, next_sweep_).ns);
  for (const Dropped& each : dropped) {
    if (pages_.contains(each.page->name())) {
      drop_page(*each.worker, *each.page, each.reason);
    }
  }
}

// Of a worker in no scope, or in none yet. A worker that is in one now, or leaves its last one from
// now on, is due after its timeout at the earliest: it is read again then, which costs one look in
// that time.
void Server::judge_idleness(Worker& worker, const WorkerPage::Activity& activity, Instant woke,
                            std::vector<DueScope>& due) {
  const Instant last_left = std::max(activity.last_left, worker.left_on_pipe);
  for (const auto& watch : activity.watches) {
    Instant next = woke + std::max(watch.timeout, kIdleLook);
    if (!activity.is_inside && last_left > watch.since) {
      next = watch.page->idle_due(watch, last_left, scan_of(worker, woke)).value_or(next);
    }
    if (next > woke) {
      next_scan_ = std::min(next_scan_, next);
      continue;
    }
    const auto page =
        std::ranges::find(worker.pages, watch.page, [](const auto& each) { return each.get(); });
    const WorkerPage::Due candidate{watch.slot, slot_word::kIdleWatch, next};
    if (worker.resumed <= woke && worker.process->is_alive() &&
        !runs_another_program(*worker.process, **page) &&
        !should_defer(worker, **page, candidate) && (*page)->try_expire_idle(watch.slot, next)) {
      due.push_back({&worker, next, {*page, watch.slot, next.ns}});
    }
  }
}

// Who was idle for too long and is in a scope now, or has left one since, has come back.
bool Server::has_come_back(pid_t pid, Instant since) {
  Worker* const worker = workers_.find(pid);
  if (worker == nullptr) {
    return false;
  }
  bool is_back = worker->left_on_pipe > since;
  for (const auto& page : worker->pages) {
    const WorkerPage::Activity activity = page->activity();
    is_back = is_back || activity.is_inside || activity.last_left > since;
  }
  return is_back;
}

// False: the worker runs another program now, and has left what is on the page.
bool Server::take_due(Worker& worker, const std::shared_ptr<WorkerPage>& page,
                      const std::vector<WorkerPage::Due>& candidates, Instant woke,
                      std::vector<DueScope>& due) {
  if (!worker.process->is_alive()) {
    return true;  // its end is on its way to us, and decides
  }
  if (runs_another_program(*worker.process, *page)) {
    return false;
  }
  // A worker that was found resumed in this scan is judged in the next one.
  if (worker.resumed > woke ||
      (!candidates.empty() && should_defer(worker, *page, candidates.front()))) {
    return true;
  }
  due.reserve(due.size() + candidates.size());  // what was judged must not be lost
  for (const WorkerPage::Due& candidate : candidates) {
    if (page->try_expire(candidate.slot, candidate.word)) {
      due.push_back({&worker, candidate.deadline, {page, candidate.slot, candidate.word}});
    }
  }
  keep(worker);
  return true;
}

// What was judged stays in its slot until the kill is over, so its name and times are there to
// read.
std::optional<Expiry> Server::expiry_of(const DueScope& due) {
  const PageVerdict& verdict = due.place;
  auto reading = verdict.page->read(verdict.slot, slot_word::expired(verdict.word));
  if (!reading) {
    reading = verdict.page->read(verdict.slot, slot_word::kReleasedLate);
  }
  if (!reading) {
    return std::nullopt;
  }
  Expiry expiry;
  expiry.scope = view_of(*reading);
  expiry.scope.terms.deadline = due.deadline;
  expiry.place = verdict;
  return expiry;
}

ScopeView Server::view_of(const SlotReading& reading) const {
  ScopeView view;
  view.name = reading.name;
  ScopeTerms& terms = view.terms;
  terms.acquired = reading.acquired;
  terms.asked = reading.asked;
  terms.deadline = reading.deadline;
  terms.is_idle = (reading.flags & slot_flag::kIdle) != 0;
  if (settings_.max_timeout && !terms.is_idle) {
    terms.deadline = due_time(reading, *settings_.max_timeout);
  }
  if (!terms.deadline.is_never()) {
    terms.timeout = std::max(terms.deadline - reading.started, Duration::zero());
  }
  terms.soft_ms = reading.soft_ms;
  terms.signal = reading.signal;
  terms.tid = reading.tid;
  terms.is_paused = slot_word::is_paused(reading.word);
  terms.whole_process = (reading.flags & slot_flag::kWholeProcess) != 0;
  terms.spare_if_left = (reading.flags & slot_flag::kSpareIfLeft) != 0;
  if (!reading.grace_ms) {
    terms.grace = grace_of(settings_.grace ? *settings_.grace : Settings::kDefaultGrace);
  } else if (*reading.grace_ms != kNoSigkill) {
    terms.grace = Grace{*reading.grace_ms};
  }
  return view;
}

// With the time that the scope was given.
ScopeView Server::view_of(const SlotReading& reading, const Worker& worker) const {
  ScopeView view = view_of(reading);
  view.terms.deadline = given_time_.deadline(
      {reading.started, view.terms.deadline, view.terms.timeout}, worker.resumed);
  return view;
}

void Server::tell_cuts(const Worker& worker, WorkerPage& page) {
  for (const SlotReading& reading : page.take_slots_over(*settings_.max_timeout)) {
    tell_cut(worker, reading.name, reading.asked);
  }
}

void Server::tell_ended_threads(const std::string& name) {
  const auto found = pages_.find(name);
  if (found == pages_.end()) {
    return;
  }
  Worker& worker = *found->second;
  for (const auto& page : worker.pages) {
    if (page->name() != name) {
      continue;
    }
    for (const SlotReading& reading : page->take_thread_ended()) {
      log_->append(records_.warned(WorkerIdentity::of(worker), view_of(reading),
                                   "the thread that opened it has ended; its deadline stands"));
    }
  }
}

// The program that kept the page has ended and its worker lives on, or the page cannot be read.
void Server::drop_page(Worker& worker, const WorkerPage& page, std::string_view reason) {
  StatisticsByName statistics;
  remove_page(worker, page, reason, statistics);
  record_end(WorkerIdentity::of(worker), statistics);
}

// `reason` is for the scopes that were open on the page; empty: they were told of already, or there
// is nothing to read.
void Server::remove_page(Worker& worker, const WorkerPage& page, std::string_view reason,
                         StatisticsByName& statistics) {
  const std::string name = page.name();
  const auto place = std::ranges::find_if(
      worker.pages, [&](const std::shared_ptr<WorkerPage>& other) { return other.get() == &page; });
  const std::shared_ptr<WorkerPage> held = *place;
  worker.pages.erase(place);
  pages_.erase(name);
  if (!held->is_whole()) {
    rejections_.add(fmt::format("page '{}' of pid {} was cut short: its scopes are watched no more",
                                name, worker.process->pid),
                    name, worker.process->pid);
  }
  const Instant now = Instant::now();
  for (const SlotReading& reading : held->open_slots()) {
    const bool tell = slot_word::is_open(reading.word) && !reason.empty() &&
                      (reading.flags & (slot_flag::kWholeProcess | slot_flag::kIdle)) == 0;
    if (tell) {
      log_->append(records_.left_open(WorkerIdentity::of(worker), view_of(reading), now, reason));
    }
  }
  if (held == worker.pipe) {
    std::exchange(worker.pipe, nullptr)->remove();
    return;
  }
  held->add_statistics(statistics);
  directory_.pages().remove(name);
}

// One record a worker, of all its pages; none of a worker that has counted no scope.
void Server::record_end(const WorkerIdentity& worker, const StatisticsByName& statistics) {
  if (!statistics.empty()) {
    log_->append(records_.worker_ended(worker, statistics), kMaxLogBacklogBytesOfStatistics);
  }
}

}  // namespace filetimer
