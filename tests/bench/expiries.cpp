// SPDX-License-Identifier: MIT
#include "tests/bench/expiries.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <list>
#include <memory>
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
  int orders;
  int results;
  UniqueFd record_file;
  UniqueFd epoll{::epoll_create1(EPOLL_CLOEXEC)};

  // `data` is null for the orders, or what is to happen at the deadline.
  void watch(int fd, void* data) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = data;
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      fail_errno("cannot watch a descriptor");
    }
  }
};

struct Pending {
  UniqueFd pidfd;
  UniqueFd timer{::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)};
  std::int64_t deadline_ns;
};

void on_deadline(const BareLoop& loop, const Pending& pending) {
  if (loop.record_file) {
    const std::string record(kRecordBytes, 'x');
    write_all(loop.record_file.get(), record.data(), record.size());
    ::fdatasync(loop.record_file.get());
  }
  const std::int64_t now = Instant::now().ns;  // as in the server, read before the signal is sent
  ::syscall(SYS_pidfd_send_signal, pending.pidfd.get(), SIGKILL, nullptr, 0U);
  const std::int64_t late = now - pending.deadline_ns;
  write_all(loop.results, &late, sizeof late);
}

void on_order(const BareLoop& loop) {
  Order order{};
  read_all(loop.orders, &order, sizeof order);
  auto pending = std::make_unique<Pending>();
  pending->pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, order.pid, 0U)));
  pending->deadline_ns = order.deadline_ns;
  constexpr std::int64_t kSecond = 1'000'000'000;
  const itimerspec at{{0, 0}, {order.deadline_ns / kSecond, order.deadline_ns % kSecond}};
  ::timerfd_settime(pending->timer.get(), TFD_TIMER_ABSTIME, &at, nullptr);
  loop.watch(pending->timer.get(), pending.get());
  (void)pending.release();  // until its deadline
}

void run_bare_loop(const BareLoop& loop, BareSubject::Scheduling scheduling) {
  if (scheduling == BareSubject::Scheduling::kRealtime) {
    sched_param param{};
    param.sched_priority = ::sched_get_priority_min(SCHED_RR);
    ::sched_setscheduler(0, SCHED_RR, &param);
  }
  loop.watch(loop.orders, nullptr);
  for (;;) {
    epoll_event event{};
    if (retry_eintr([&] { return ::epoll_wait(loop.epoll.get(), &event, 1, -1); }) < 0) {
      fail_errno("cannot wait for events");
    }
    if (event.data.ptr == nullptr) {
      on_order(loop);
    } else {
      const std::unique_ptr<Pending> pending(static_cast<Pending*>(event.data.ptr));
      on_deadline(loop, *pending);
    }
  }
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
                             waiting.subject->name, static_cast<double>(early_ns)));
  }
}

}  // namespace

Subject subject_of(const std::string& name, const ServerUnderTest& server) {
  return {name, [&server](pid_t worker, const Deadline& deadline) {
            server.send(request_line(worker, "forward", deadline.unix_s));
          }};
}

Subject torch_subject(const std::string& fifo) {
  return {"PyTorch", [fifo](pid_t worker, const Deadline& deadline) {
            const UniqueFd pipe(::open(fifo.c_str(), O_WRONLY | O_CLOEXEC));
            const std::string line = request_line(worker, "forward", deadline.unix_s);
            write_all(pipe.get(), line.data(), line.size());
          }};
}

BareSubject::BareSubject(Scheduling scheduling, const std::string& record_file)
    : Subject{"bare loop",
              [this](pid_t worker, const Deadline& deadline) {
                const Order order{worker, deadline.mono.ns};
                write_all(orders_.write.get(), &order, sizeof order);
                ++armed_;
              }},
      orders_(make_pipe()),
      results_(make_pipe()),
      child_(fork_child([this, scheduling, &record_file] {
        BareLoop loop{orders_.read.get(), results_.write.get(), {}};
        if (!record_file.empty()) {
          loop.record_file.reset(
              ::open(record_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
        }
        run_bare_loop(loop, scheduling);
      })) {}

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
      fail(fmt::format("{} let a worker live {} s past its deadline", waiting.front().subject->name,
                       kBound.count() / 1000));
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

Samples logged_signals(ServerUnderTest& server, Report& report) {
  server.stop();
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
