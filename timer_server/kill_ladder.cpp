// SPDX-License-Identifier: MIT
#include "timer_server/kill_ladder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <thread>

namespace filetimer {
namespace {

enum class Stage {
  kFacts,      // who the worker is may still be on its way from the side thread
  kRecorded,   // the verdict is in the log's queue; waiting for the disk and for evidence
  kSignalled,  // the first signal is sent; grace runs
  kKilled,     // SIGKILL is sent
  kLastLook,   // it did not die in time: what holds it is being looked at
  kEnded,
};

std::vector<pid_t> this_process_and_above() {
  std::vector<pid_t> pids = ancestors_of(::getpid());
  pids.push_back(::getpid());
  return pids;
}

// What keeps a process from dying, as far as the kernel tells.
std::string why_alive(pid_t pid) {
  const std::string folder = fmt::format("/proc/{}", pid);
  const auto stat = read_stat(folder);
  const auto wchan = read_small_file(folder + "/wchan");
  return fmt::format("pid {} is in state {}{}", pid, stat ? stat->state : '?',
                     wchan && *wchan != "0" ? " in " + *wchan : std::string{});
}

}  // namespace

bool may_be_forking(pid_t pid) {
  return std::ranges::any_of(threads_of(pid), [pid](pid_t tid) {
    const auto stat = read_stat(fmt::format("/proc/{}/task/{}", pid, tid));
    return stat && (stat->state == 'R' || stat->state == 'D');
  });
}

struct KillLadder::Kill {
  KillOrder order;
  Stage stage = Stage::kFacts;
  std::uint64_t number = 0;
  bool has_news = false;  // one of its processes has ended
  Instant next_step_at;   // when step() has something to do at the latest
  Instant sync_until;
  Instant evidence_until;
  std::uint64_t record_number = 0;
  std::shared_ptr<Gathering> gathering;  // null: the evidence is in, or not wanted
  std::optional<Evidence> last_look;     // of a worker that does not die
  bool hurried = false;
  bool ends_in_sigkill = false;        // known once it was signalled
  bool may_be_left = false;            // likewise: see ScopeTerms::spare_if_left
  std::vector<std::string> cancelled;  // the worker's other scopes, ended by this kill
  std::vector<Process> companions;
  std::vector<SentSignal> signals;
  Instant first_signal;
  std::optional<Instant> worker_died;

  [[nodiscard]] const Process& worker() const { return *order.worker.process; }
  [[nodiscard]] bool waits_to_be_left() const { return stage == Stage::kSignalled && may_be_left; }
  [[nodiscard]] std::vector<pid_t> alive() const {
    std::vector<pid_t> pids;
    if (worker().is_alive()) {
      pids.push_back(worker().pid);
    }
    for (const Process& process : companions) {
      if (process.is_alive()) {
        pids.push_back(process.pid);
      }
    }
    return pids;
  }
};

const Expiry* KillOrder::deciding() const {
  const Expiry* found = nullptr;
  for (const Expiry& expiry : expiries) {
    const ScopeTerms& terms = expiry.scope.terms;
    if (terms.signal <= 0 || expiry.released_at) {
      continue;
    }
    if (!terms.spare_if_left) {
      return &expiry;
    }
    found = found == nullptr ? &expiry : found;
  }
  return found;
}

KillLadder::KillLadder(KillPolicy policy, Records& records, RecordLog& log,
                       SideThreads& side_threads, Listener listener, MayBeForking may_be_forking)
    : policy_(policy),
      records_(records),
      log_(log),
      side_threads_(side_threads),
      listener_(std::move(listener)),
      may_be_forking_(std::move(may_be_forking)),
      spared_(this_process_and_above()),
      deaths_(::epoll_create1(EPOLL_CLOEXEC)) {}

KillLadder::~KillLadder() = default;

void KillLadder::start(KillOrder order, Instant now) {
  auto kill = std::make_shared<Kill>();
  kill->order = std::move(order);
  kill->number = ++last_number_;
  kill->hurried = is_hurried_;
  kill->next_step_at = now + kFactsLimit;
  kills_.push_back(std::move(kill));
}

// Which kills lost a process: the others need not ask their pidfds, of which there may be
// thousands.
void KillLadder::note_deaths() {
  std::array<epoll_event, 64> events{};
  int count = 0;
  do {
    count = ::epoll_wait(deaths_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;
      const auto kill = std::ranges::find_if(
          kills_, [number](const auto& each) { return each->number == number; });
      // Several, where a scope expired in the grace of another that may still be left. The one that
      // watched last may have ended since; then whoever is left looks.
      for (const auto& each : kills_) {
        each->has_news =
            each->has_news || kill == kills_.end() || &each->worker() == &(*kill)->worker();
      }
    }
  } while (count == static_cast<int>(events.size()));
}

Instant KillLadder::advance(Instant now) {
  hold_budget_ = kHoldBudget;
  if (!kills_.empty()) {
    note_deaths();
  }
  Instant next = Instant::never();
  do {
    one_ended_ = false;
    next = Instant::never();
    for (std::size_t i = 0; i < kills_.size(); ++i) {
      const std::shared_ptr<Kill> kill = kills_[i];  // step() may end it
      while (step(kill, now)) {
      }
      if (kill->stage != Stage::kEnded) {
        next = std::min(next, kill->next_step_at);
        if (kill->waits_to_be_left()) {
          next = std::min(next, now + kLeaveLook);
        }
      }
    }
    std::erase_if(kills_, [](const auto& kill) { return kill->stage == Stage::kEnded; });
  } while (one_ended_ && !kills_.empty());
  return next;
}

bool KillLadder::step(const std::shared_ptr<Kill>& kill, Instant now) {
  switch (kill->stage) {
    case Stage::kFacts:
      return record_verdict(kill, now);
    case Stage::kRecorded:
      return send_first_signal(*kill, now);
    case Stage::kSignalled:
    case Stage::kKilled:
      return wait_for_death(kill, now);
    case Stage::kLastLook:
      return look_a_last_time(*kill, now);
    case Stage::kEnded:
      break;
  }
  return false;
}

bool KillLadder::record_verdict(const std::shared_ptr<Kill>& kill, Instant now) {
  KillOrder& order = kill->order;
  if (!*order.worker.facts && now < kill->next_step_at) {
    return false;
  }
  Incident& incident = *order.incident;
  if (!incident.recorded && !order.is_recorded) {
    incident.recorded = true;
    log_.append(records_.incident(incident.id, incident.expiries, incident.workers,
                                  incident.omitted, incident.when));
    incident.workers = {};
  }
  for (const Expiry& expiry : order.expiries) {
    if (order.is_recorded) {
      break;
    }
    // Once for all expiries of the worker: there may be a thousand of both.
    const bool is_first = &expiry == &order.expiries.front();
    std::string record = records_.expired(order.worker, expiry,
                                          is_first ? order.open_scopes : std::vector<ScopeView>{});
    if (is_first) {
      order.record = record;
    }
    kill->record_number = log_.append(std::move(record));
  }
  for (const Expiry& expiry : order.expiries) {
    if (expiry.released_at) {
      log_.append(records_.released_late(order.worker, expiry, false));
    }
  }
  kill->stage = Stage::kRecorded;
  kill->sync_until = now + kSyncLimit;
  kill->evidence_until = now;
  if (policy_.evidence != EvidenceLevel::kNone && !order.has_evidence) {
    kill->evidence_until = now + policy_.evidence_timeout;
    gather(kill);
  }
  return true;
}

void KillLadder::gather(const std::shared_ptr<Kill>& kill) {
  EvidenceOptions options{policy_.evidence, kill->evidence_until, {}};
  // Who is to get no signal gets none for his stacks either.
  if (!policy_.dry_run && kill->order.deciding() != nullptr) {
    options.python = kill->order.python;
  }
  kill->gathering = Gathering::start(side_threads_, kill->order.worker.process, std::move(options),
                                     [this, weak = std::weak_ptr(kill)] {
                                       if (const auto waiting = weak.lock()) {
                                         end_gathering(*waiting);
                                       }
                                     });
}

// Evidence that comes after the signal is of a process that was signalled: not evidence any more.
void KillLadder::end_gathering(Kill& kill) {
  if (kill.gathering && kill.stage == Stage::kRecorded) {
    log_.append(records_.evidence(kill.order.worker, kill.order.expiries.front().id,
                                  kill.gathering->take()));
    kill.gathering.reset();
  }
}

bool KillLadder::send_first_signal(Kill& kill, Instant now) {
  const bool synced =
      log_.synced() >= kill.record_number || now >= kill.sync_until || !log_.is_working(now);
  if (now >= kill.evidence_until) {
    end_gathering(kill);
  }
  const bool evidence_is_in = !kill.gathering;
  if (!synced || !evidence_is_in) {
    kill.next_step_at = synced           ? kill.evidence_until
                        : evidence_is_in ? kill.sync_until
                                         : std::min(kill.sync_until, kill.evidence_until);
    return false;
  }
  Kill* const other = other_kill_of(kill);
  const bool waits_for_other = other != nullptr && other->ends_in_sigkill;
  // Before the last look at who was released: finding them takes a while.
  std::vector<Process> companions;
  if (!waits_for_other && !policy_.dry_run && kill.worker().is_alive()) {
    // One look does: all of them are held before they are signalled, and looked for again.
    companions = companions_of(kill.worker(), policy_.mode, spared_, 1);
  }
  look_for_releases(kill, now);
  const Expiry* const deciding = kill.order.deciding();
  if (policy_.dry_run || deciding == nullptr) {
    const bool released = std::ranges::any_of(
        kill.order.expiries, [](const Expiry& expiry) { return expiry.released_at.has_value(); });
    end(kill, KillVerdict::kSpared,
        policy_.dry_run ? "dry run"
        : released      ? "released late, but before the signal"
                        : "signal 0");
    return true;
  }
  if (!kill.worker().is_alive()) {
    end(kill, KillVerdict::kAlreadyGone, {});
    return true;
  }
  const ScopeTerms& terms = deciding->scope.terms;
  kill.may_be_left = terms.spare_if_left && terms.signal != SIGKILL && terms.grace;
  // Who is asked to leave one scope can be asked to leave another beside it.
  if (waits_for_other) {
    kill.next_step_at = Instant::never();  // its end decides, and calls us again
    return false;
  }
  if (other != nullptr && !(other->may_be_left && kill.may_be_left)) {
    end(*other, KillVerdict::kSpared, "it outlived the signal, and another scope expired");
  }
  kill.ends_in_sigkill = !kill.may_be_left && (terms.signal == SIGKILL || terms.grace);
  const bool is_last = terms.signal == SIGKILL || !terms.grace;
  if (!kill.may_be_left) {
    kill.cancelled = listener_.on_signal(kill.worker(), kill.ends_in_sigkill);
    kill.companions = std::move(companions);
    hold_all(kill);
  }
  send(kill, terms.signal);
  kill.first_signal = kill.signals.back().when.mono;
  watch(kill, kill.worker());
  for (const Process& process : kill.companions) {
    watch(kill, process);
  }
  kill.stage = is_last ? Stage::kKilled : Stage::kSignalled;
  kill.next_step_at = kill.first_signal + (is_last        ? policy_.kill_wait
                                           : kill.hurried ? Duration::zero()
                                                          : *terms.grace);
  return true;
}

void KillLadder::send(Kill& kill, int signal) {
  SentSignal sent{signal, ClockReading::now(), {}};
  // False for one that may not be signalled (a set-uid program below the worker): not ours.
  const auto to = [&](const Process& process) {
    if (!process.is_alive()) {
      return true;
    }
    if (!process.send_signal(signal)) {
      return errno != EPERM;
    }
    sent.pids.push_back(process.pid);
    // A stopped process would not act on the signal; as GNU timeout does.
    if (signal != SIGKILL && signal != SIGCONT) {
      process.send_signal(SIGCONT);
    }
    return true;
  };
  // The worker last: with its end its process groups may be orphaned, and who is stopped in such a
  // group gets SIGHUP from the kernel. For the same reason children come before their parents.
  for (std::size_t i = kill.companions.size(); i-- > 0;) {
    if (!to(kill.companions[i])) {
      kill.companions.erase(kill.companions.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  to(kill.worker());
  std::ranges::reverse(sent.pids);
  kill.signals.push_back(std::move(sent));
}

void KillLadder::watch(const Kill& kill, const Process& process) const {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;  // it stays readable for ever: tell once
  event.data.u64 = kill.number;
  // An earlier kill of the same worker may have watched it.
  if (::epoll_ctl(deaths_.get(), EPOLL_CTL_ADD, process.pidfd.get(), &event) != 0) {
    ::epoll_ctl(deaths_.get(), EPOLL_CTL_MOD, process.pidfd.get(), &event);
  }
}

bool KillLadder::wait_for_death(const std::shared_ptr<Kill>& held, Instant now) {
  Kill& kill = *held;
  // First: who left the scope in time may have ended by itself since.
  if (kill.waits_to_be_left()) {
    look_for_releases(kill, now);
    if (kill.order.deciding() == nullptr) {
      end(kill, KillVerdict::kSpared, "released within the grace");
      return true;
    }
  }
  // Only saves the looks: with news in every turn nothing that can be observed would change.
  if (!std::exchange(kill.has_news, false) && now < kill.next_step_at) {
    return false;
  }
  if (!kill.worker_died && !kill.worker().is_alive()) {
    kill.worker_died = Instant::now();  // `now` may be from before the signal
  }
  const std::vector<pid_t> alive = kill.alive();
  if (alive.empty()) {
    end(kill, KillVerdict::kDead, {});
    return true;
  }
  if (now < kill.next_step_at) {
    return false;
  }
  if (kill.waits_to_be_left()) {
    kill.may_be_left = false;
    kill.ends_in_sigkill = true;
    kill.cancelled = listener_.on_signal(kill.worker(), true);
  }
  if (kill.stage == Stage::kSignalled) {
    hold_all(kill);
    send(kill, SIGKILL);
    kill.stage = Stage::kKilled;
    kill.next_step_at = kill.signals.back().when.mono + policy_.kill_wait;
    return true;
  }
  if (kill.worker_died || kill.signals.back().signal != SIGKILL) {
    end_as_it_stands(kill, alive);
    return true;
  }
  kill.stage = Stage::kLastLook;
  kill.next_step_at = now + policy_.evidence_timeout;
  kill.gathering = Gathering::start(
      side_threads_, kill.order.worker.process,
      {EvidenceLevel::kProc, kill.next_step_at, std::nullopt}, [weak = std::weak_ptr(held)] {
        if (const auto waiting = weak.lock(); waiting && waiting->gathering) {
          waiting->last_look = waiting->gathering->take();
          waiting->gathering.reset();
        }
      });
  return true;
}

// A worker that SIGKILL did not end: what the kernel says of it, and then that it is unkillable.
bool KillLadder::look_a_last_time(Kill& kill, Instant now) {
  if (!kill.worker().is_alive()) {
    kill.worker_died = Instant::now();
  } else if (kill.gathering && now < kill.next_step_at) {
    return false;
  }
  end_as_it_stands(kill, kill.alive());
  return true;
}

void KillLadder::end_as_it_stands(Kill& kill, const std::vector<pid_t>& alive) {
  if (kill.worker_died) {
    end(kill, KillVerdict::kDead,
        alive.empty()
            ? std::string{}
            : fmt::format("of those signalled with it, still alive: {}", fmt::join(alive, ", ")));
  } else if (kill.signals.back().signal == SIGKILL) {
    if (kill.gathering) {
      kill.last_look = kill.gathering->take();
    }
    end(kill, KillVerdict::kUnkillable,
        fmt::format("still alive after SIGKILL: {}", why_alive(kill.worker().pid)));
  } else {
    end(kill, KillVerdict::kSpared,
        fmt::format("it outlived {}, and no grace was given before SIGKILL",
                    signal_name(kill.signals.back().signal)));
  }
}

// Who has stopped starts nothing more, so what is found below those that have is all there is:
// nothing is born between the look and the signal, to live on as an orphan with the worker's memory
// and devices. A fork() that is under way when SIGSTOP comes still completes, so who was running
// then is waited for; who slept stops before it runs anything. SIGCONT comes behind the signal.
void KillLadder::hold_all(Kill& kill) {
  if (policy_.mode == KillMode::kProcess) {
    return;
  }
  const Instant begun = Instant::now();
  const Instant until = begun + std::min(kHoldLimit, hold_budget_);
  std::vector<pid_t> running;
  const auto hold = [this, &running](const Process& process) {
    if (may_be_forking_(process.pid)) {
      running.push_back(process.pid);
    }
    process.send_signal(SIGSTOP);
  };
  hold(kill.worker());
  std::size_t held = 0;
  do {
    for (; held < kill.companions.size(); ++held) {
      hold(kill.companions[held]);
    }
    for (const pid_t pid : std::exchange(running, {})) {
      wait_until_stopped(pid, until);
    }
    look_again(kill);
  } while (held < kill.companions.size() && held < kMaxTreeProcesses);
  hold_budget_ -= std::min(hold_budget_, Instant::now() - begun);
}

void KillLadder::wait_until_stopped(pid_t pid, Instant until) const {
  constexpr int kLooksWithoutPause = 5;
  for (int look = 1; may_be_forking_(pid) && Instant::now() < until; ++look) {
    if (look <= kLooksWithoutPause) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds{50});
    }
  }
}

// What was started since the first look must not outlive the worker.
void KillLadder::look_again(Kill& kill) const {
  for (Process& process : new_companions(kill.worker(), kill.companions, policy_.mode, spared_)) {
    watch(kill, process);
    kill.companions.push_back(std::move(process));
  }
}

// Another scope of the worker expired before, and was signalled for.
KillLadder::Kill* KillLadder::other_kill_of(const Kill& kill) const {
  for (const auto& other : kills_) {
    if (other.get() != &kill && &other->worker() == &kill.worker() &&
        other->stage >= Stage::kSignalled && other->stage != Stage::kEnded) {
      return other.get();
    }
  }
  return nullptr;
}

bool KillLadder::note_release(const Process& worker, std::string_view scope_id, Instant now) {
  for (const auto& kill : kills_) {
    if (&kill->worker() != &worker || (kill->stage > Stage::kRecorded && !kill->may_be_left)) {
      continue;
    }
    for (Expiry& expiry : kill->order.expiries) {
      if (expiry.scope_id == scope_id && !expiry.released_at) {
        note_late(*kill, expiry, now);
        return true;
      }
    }
  }
  return false;
}

void KillLadder::look_for_releases(Kill& kill, Instant now) {
  for (Expiry& expiry : kill.order.expiries) {
    if (!expiry.released_at && listener_.was_released(kill.worker(), expiry)) {
      note_late(kill, expiry, now);
    }
  }
}

void KillLadder::note_late(Kill& kill, Expiry& expiry, Instant now) {
  expiry.released_at = now;
  if (kill.stage >= Stage::kRecorded) {
    log_.append(records_.released_late(kill.order.worker, expiry, kill.stage > Stage::kRecorded));
  }
}

void KillLadder::give_time(Duration missed) {
  for (const auto& kill : kills_) {
    if (kill->stage >= Stage::kSignalled && !kill->hurried) {
      kill->next_step_at = kill->next_step_at + missed;
    }
  }
}

bool KillLadder::has_kill_of(const Process& worker) const {
  return std::ranges::any_of(kills_, [&](const auto& kill) {
    return &kill->worker() == &worker && kill->stage != Stage::kEnded;
  });
}

void KillLadder::hurry(Instant now) {
  is_hurried_ = true;
  for (const auto& kill : kills_) {
    kill->hurried = true;
    if (kill->stage == Stage::kSignalled) {
      kill->next_step_at = now;
    }
  }
}

void KillLadder::give_up() {
  for (const auto& kill : kills_) {
    if (kill->stage == Stage::kEnded) {
      continue;
    }
    if (kill->signals.empty()) {
      end(*kill, KillVerdict::kSpared, "the server stopped before the signal");
      continue;
    }
    if (!kill->worker_died && !kill->worker().is_alive()) {
      kill->worker_died = Instant::now();
    }
    end_as_it_stands(*kill, kill->alive());
  }
  kills_.clear();
}

void KillLadder::end(Kill& kill, KillVerdict verdict, std::string_view reason) {
  kill.stage = Stage::kEnded;
  one_ended_ = true;
  Records::Outcome outcome;
  outcome.verdict = verdict;
  outcome.signals = kill.signals;
  outcome.reason = reason;
  outcome.cancelled = kill.cancelled;
  if (kill.last_look && verdict == KillVerdict::kUnkillable) {
    outcome.held_by = &*kill.last_look;
  }
  if (kill.worker_died) {
    outcome.dead_after = *kill.worker_died - kill.first_signal;
  }
  KillEnd told;
  told.verdict = verdict;
  for (const Expiry& expiry : kill.order.expiries) {
    std::string record = records_.killed(kill.order.worker, expiry, outcome);
    if (told.record.empty()) {
      told.record = record;
    }
    told.record_number = log_.append(std::move(record));
    outcome.cancelled = {};  // told once: there may be a thousand of both
  }
  listener_.on_end(kill.order, told);
}

}  // namespace filetimer
