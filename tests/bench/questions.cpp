// The time of an answer to a control request, alone and during kills, and the time until all ranks
// of a rendezvous have their answers.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filetimer/admin.hpp>
#include <thread>

#include "common/clock.hpp"
#include "tests/bench/expiries.hpp"
#include "tests/bench/sections.hpp"

namespace filetimer::bench {
namespace {

using namespace std::chrono_literals;

constexpr double kTargetP50Us = 100;
constexpr double kTargetP99Us = 1000;
constexpr double kTargetReleaseMs = 5;
constexpr double kTargetVerdictP50Ms = 0.5;  // as without questions
constexpr double kTargetVerdictP99Ms = 3;
constexpr int kAskersAtOnce = 200;
constexpr int kRanks = 64;
constexpr auto kBetweenPings = 1ms;

double microseconds_since(Instant begin) {
  return static_cast<double>((Instant::now() - begin).count()) / 1e3;
}

// Answers each line of `fifo` by a byte on the pipe that the line names.
Child fork_echo(const std::string& fifo, int ready) {
  return fork_child([&] {
    const UniqueFd requests(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));
    write_all(ready, "!", 1);
    char line[256];
    for (;;) {
      const ssize_t got = ::read(requests.get(), line, sizeof line);
      if (got <= 0) {
        return;
      }
      const std::string path(line, static_cast<std::size_t>(got) - 1);
      const UniqueFd reply(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
      (void)!::write(reply.get(), "x", 1);
    }
  });
}

// The bare exchange: makes a pipe, opens it, writes its name, waits for the byte.
void exchange_bare(const std::string& fifo, const std::string& reply) {
  if (::mkfifo(reply.c_str(), 0600) != 0) {
    fail_errno("cannot make a pipe");
  }
  const UniqueFd reader(::open(reply.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const std::string line = reply + "\n";
  {
    const UniqueFd writer(::open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    write_all(writer.get(), line.data(), line.size());
  }
  pollfd readable{reader.get(), POLLIN, 0};
  if (::poll(&readable, 1, static_cast<int>(kBound.count())) != 1) {
    fail("no answer in a bare exchange");
  }
  ::unlink(reply.c_str());
}

void measure_pings(const Plan& plan, const std::string& dir, Report& report) {
  const std::string fifo = plan.memory_dir + "/echo";
  if (::mkfifo(fifo.c_str(), 0600) != 0) {
    fail_errno("cannot make a pipe");
  }
  Pipe ready = make_pipe();
  const Child echo = fork_echo(fifo, ready.write.get());
  char byte = 0;
  if (::read(ready.read.get(), &byte, 1) != 1) {
    fail("the bare exchange did not start");
  }
  const AdminClient client({.dir = dir});
  Samples ours;
  Samples bare;
  for (int i = 0; i < plan.pings; ++i) {
    Instant begin = Instant::now();
    exchange_bare(fifo, fmt::format("{}/reply-{}", plan.memory_dir, i));
    bare.add(microseconds_since(begin));
    begin = Instant::now();
    client.ping();
    ours.add(microseconds_since(begin));
  }
  report.add({.measure = "a ping, p50",
              .unit = "us",
              .value = ours.median(),
              .base = bare.median(),
              .target = Target::value_at_most(kTargetP50Us)});
  report.add({.measure = "a ping, p99",
              .unit = "us",
              .value = ours.quantile(0.99),
              .base = bare.quantile(0.99),
              .target = Target::value_at_most(kTargetP99Us)});
  const Instant begin = Instant::now();
  std::vector<std::thread> askers;
  for (int i = 0; i < kAskersAtOnce; ++i) {
    askers.emplace_back([&] { client.ping(10s); });  // throws without an answer
  }
  for (std::thread& asker : askers) {
    asker.join();
  }
  report.add({.measure = fmt::format("{} at once, all answered", kAskersAtOnce),
              .unit = "ms",
              .value = microseconds_since(begin) / 1e3});
}

// Measures a thousand pings a second while workers expire.
void measure_kills(const Plan& plan, Report& report) {
  const std::string dir = plan.memory_dir + "/asked";
  ServerUnderTest asked(plan.server, dir, {}, {"--evidence", "none"});
  ServerUnderTest left_alone(plan.server, plan.memory_dir + "/left-alone", {},
                             {"--evidence", "none"});
  const Child asker = fork_child([&] {
    const AdminClient client({.dir = dir});
    for (Instant next = Instant::now();; next = next + kBetweenPings) {
      std::this_thread::sleep_for(next - Instant::now());
      client.ping();
    }
  });
  OurSubject busy("asked", asked);
  OurSubject quiet("left alone", left_alone);
  run_expiries({&quiet, &busy}, {.count = plan.expiries, .lead = 10ms}, report);
  asker.signal(SIGKILL);
  asked.stop();
  left_alone.stop();
  const Samples ours = logged_signals(asked, report);
  const Samples base = logged_signals(left_alone, report);
  for (const auto& [name, q, limit] : {std::tuple{"p50", 0.5, kTargetVerdictP50Ms},
                                       std::tuple{"p99", 0.99, kTargetVerdictP99Ms}}) {
    report.add({.measure = fmt::format("signal at 1,000 pings a second, {}; base: at none", name),
                .unit = "ms",
                .value = ours.quantile(q),
                .base = base.quantile(q),
                .target = Target::value_at_most(limit)});
  }
}

// Each rank reports when it had its answer. The last one joins when all others wait.
void measure_rendezvous(const Plan& plan, const std::string& dir, Report& report) {
  Samples releases;
  for (int round = 0; round < plan.rendezvous; ++round) {
    Pipe times = make_pipe();
    const auto join = [&](int rank) {
      const AdminClient client({.dir = dir});
      const Instant begin = Instant::now();
      (void)client.rendezvous({.rank = rank, .world = kRanks, .timeout = kBound});
      const Instant times_taken[] = {begin, Instant::now()};
      write_all(times.write.get(), times_taken, sizeof times_taken);
      ::pause();  // its exit would take time from the others
    };
    std::vector<Child> ranks;
    for (int rank = 1; rank < kRanks; ++rank) {
      ranks.push_back(fork_child([&] { join(rank); }));
    }
    const AdminClient watcher({.dir = dir});
    const Instant until = Instant::now() + kBound;
    // All have joined when the server has read as many lines.
    for (std::int64_t asked = -1; asked < kRanks - 1;) {
      asked = watcher.status().askers;
      if (Instant::now() > until) {
        fail("the ranks did not join");
      }
    }
    ranks.push_back(fork_child([&] { join(0); }));
    Instant last_joined;
    Instant last_released;
    for (int rank = 0; rank < kRanks; ++rank) {
      Instant of_rank[2];
      read_all(times.read.get(), of_rank, sizeof of_rank);
      last_joined = std::max(last_joined, of_rank[0]);
      last_released = std::max(last_released, of_rank[1]);
    }
    releases.add(static_cast<double>((last_released - last_joined).count()) / 1e6);
  }
  report.add({.measure = fmt::format("rendezvous of {}: last join to last answer", kRanks),
              .unit = "ms",
              .value = releases.median(),
              .target = Target::value_at_most(kTargetReleaseMs)});
}

}  // namespace

void measure_questions(const Plan& plan, Report& report) {
  report.section("questions", "the same pipes, answered by one byte");
  const std::string dir = plan.memory_dir + "/questions";
  ServerUnderTest server(plan.server, dir);
  measure_pings(plan, dir, report);
  measure_rendezvous(plan, dir, report);
  server.stop();
  measure_kills(plan, report);
}

}  // namespace filetimer::bench
