// SPDX-License-Identifier: MIT
#include "tests/bench/expiries.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <list>
#include <random>

namespace filetimer::bench {
namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

struct Order {
  pid_t pid;
  std::int64_t deadline_ns;
};

// --- the bare loop ---------------------------------------------------------------------------

constexpr std::size_t kRecordBytes = 1000;  // as a short `expired` record

struct BareLoop {
  int results;
  UniqueFd record_file;
};

struct Pending {
  UniqueFd pidfd;
  std::int64_t deadline_ns;
  const BareLoop* loop;
};

int on_deadline(sd_event_source* source, uint64_t, void* data) {
  const auto* pending = static_cast<Pending*>(data);
  if (pending->loop->record_file) {
    const std::string record(kRecordBytes, 'x');
    write_all(pending->loop->record_file.get(), record.data(), record.size());
    ::fdatasync(pending->loop->record_file.get());
  }
  const std::int64_t now = Instant::now().ns;  // as in the server, read before the signal is sent
  ::syscall(SYS_pidfd_send_signal, pending->pidfd.get(), SIGKILL, nullptr, 0U);
  const std::int64_t late = now - pending->deadline_ns;
  write_all(pending->loop->results, &late, sizeof late);
  delete pending;
  ::sd_event_source_unref(source);
  return 0;
}

int on_order(sd_event_source* source, int fd, uint32_t, void* loop) {
  Order order{};
  read_all(fd, &order, sizeof order);
  auto* const pending =
      new Pending{UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, order.pid, 0U))),
                  order.deadline_ns, static_cast<const BareLoop*>(loop)};
  sd_event_source* timer = nullptr;
  ::sd_event_add_time(::sd_event_source_get_event(source), &timer, CLOCK_MONOTONIC,
                      static_cast<uint64_t>((order.deadline_ns + 999) / 1000), 1, on_deadline,
                      pending);
  return 0;
}

void run_bare_loop(int orders, BareLoop bare, BareSubject::Scheduling scheduling) {
  if (scheduling == BareSubject::Scheduling::kRealtime) {
    sched_param param{};
    param.sched_priority = ::sched_get_priority_min(SCHED_RR);
    ::sched_setscheduler(0, SCHED_RR, &param);
  }
  sd_event* loop = nullptr;
  if (::sd_event_new(&loop) < 0 ||
      ::sd_event_add_io(loop, nullptr, orders, EPOLLIN, on_order, &bare) < 0) {
    fail("cannot make an event loop");
  }
  ::sd_event_loop(loop);
}

// --- the run ---------------------------------------------------------------------------------

struct Waiting {
  Child worker;
  Deadline deadline;
  Subject* subject;
};

Deadline deadline_in(std::chrono::microseconds lead) {
  const ClockReading now = ClockReading::now();
  const auto wall_ns = now.wall_ns + std::chrono::nanoseconds(lead).count();
  return {now.mono + lead, static_cast<double>(wall_ns) / 1e9};
}

void see_death(const Waiting& waiting, const ClockReading& now, Report& report) {
  waiting.subject->deaths.add(Milliseconds(now.mono - waiting.deadline.mono).count());
  const long double early_ns = static_cast<long double>(waiting.deadline.unix_s) * 1e9L -
                               static_cast<long double>(now.wall_ns);
  if (early_ns > 0) {
    report.fault(fmt::format("{} killed a worker {:.0f} ns before its deadline",
                             waiting.subject->name(), static_cast<double>(early_ns)));
  }
}

}  // namespace

void TorchSubject::arm(pid_t worker, const Deadline& deadline) {
  const UniqueFd pipe(::open(fifo_.c_str(), O_WRONLY | O_CLOEXEC));
  const std::string line = acquire_line(worker, "forward", deadline.unix_s);
  write_all(pipe.get(), line.data(), line.size());
}

BareSubject::BareSubject(Scheduling scheduling, const std::string& record_file)
    : orders_(make_pipe()),
      results_(make_pipe()),
      child_(fork_child([this, scheduling, &record_file] {
        BareLoop loop{results_.write.get(), {}};
        if (!record_file.empty()) {
          loop.record_file.reset(
              ::open(record_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
        }
        run_bare_loop(orders_.read.get(), std::move(loop), scheduling);
      })) {}

void BareSubject::arm(pid_t worker, const Deadline& deadline) {
  const Order order{worker, deadline.mono.ns};
  write_all(orders_.write.get(), &order, sizeof order);
  ++armed_;
}

Samples BareSubject::signals() {
  Samples samples;
  for (; armed_ > 0; --armed_) {
    std::int64_t late_ns = 0;
    read_all(results_.read.get(), &late_ns, sizeof late_ns);
    samples.add(static_cast<double>(late_ns) / 1e6);
  }
  return samples;
}

void run_expiries(const std::vector<Subject*>& subjects, const ExpiryPlan& plan, Report& report) {
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  std::list<Waiting> waiting;
  const int total = plan.count * static_cast<int>(subjects.size());
  // Irregular deadlines, which a timer tick neither favours nor punishes. The seed is fixed.
  std::minstd_rand random(1);
  std::uniform_int_distribution<int> jitter_us(0, 4000);
  Instant next = Instant::now();
  for (int sent = 0; sent < total || !waiting.empty();) {
    const Instant now = Instant::now();
    const bool may_send = sent < total && waiting.size() < plan.at_once;
    if (may_send && now >= next) {
      Subject* const subject = subjects[static_cast<std::size_t>(sent) % subjects.size()];
      waiting.push_back({fork_idle(), {}, subject});
      Waiting& added = waiting.back();
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.ptr = &added;
      ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, added.worker.pidfd(), &event);
      added.deadline = deadline_in(plan.lead + std::chrono::microseconds(jitter_us(random)));
      subject->arm(added.worker.pid(), added.deadline);
      ++sent;
      next = now + plan.spacing;
      continue;
    }
    const auto pause = std::chrono::ceil<std::chrono::milliseconds>(next - now);
    std::array<epoll_event, 16> events{};
    const int count = ::epoll_wait(
        epoll.get(), events.data(), static_cast<int>(events.size()),
        static_cast<int>(may_send ? std::max<std::int64_t>(pause.count(), 0) : kBound.count()));
    const ClockReading seen = ClockReading::now();
    if (count == 0 && !may_send) {
      fail(fmt::format("{} let a worker live {} s past its deadline",
                       waiting.front().subject->name(), kBound.count() / 1000));
    }
    for (int i = 0; i < count; ++i) {
      const auto* const ended = static_cast<Waiting*>(events[static_cast<std::size_t>(i)].data.ptr);
      see_death(*ended, seen, report);
      // Explicitly, because a worker forked meanwhile may still have a copy of the descriptor.
      ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, ended->worker.pidfd(), nullptr);
      waiting.remove_if([ended](const Waiting& each) { return &each == ended; });
    }
  }
}

Samples logged_signals(const ServerUnderTest& server, Report& report) {
  Samples samples;
  for (const LoggedKill& kill : server.kills()) {
    if (kill.deadline_ns <= 0 || kill.signal_ns < kill.deadline_ns) {
      report.fault(fmt::format("the log has a signal {} ns before its deadline",
                               kill.deadline_ns - kill.signal_ns));
    }
    samples.add(static_cast<double>(kill.signal_ns - kill.deadline_ns) / 1e6);
  }
  return samples;
}

}  // namespace filetimer::bench
