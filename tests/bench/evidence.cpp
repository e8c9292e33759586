// The cost of evidence: how much later a worker is signalled, because evidence is recorded first,
// and how much later the last one of many that expire together.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/bench/expiries.hpp"
#include "tests/bench/sections.hpp"

namespace filetimer::bench {
namespace {

constexpr int kThreads = 16;
constexpr double kTargetStacksMs = 100;
constexpr std::chrono::milliseconds kLead{50};
constexpr std::array<const char*, 3> kLevels{"none", "proc", "stacks"};
// Sending the lines of that many workers takes less.
constexpr std::chrono::milliseconds crowd_lead(int workers) {
  return std::chrono::milliseconds{200 + 2 * workers};
}

Child fork_threads() {
  Pipe ready = make_pipe();
  Child child = fork_child([&] {
    std::vector<std::jthread> threads;
    for (int i = 1; i < kThreads; ++i) {
      threads.emplace_back([] { ::pause(); });
    }
    write_all(ready.write.get(), "ready\n", 6);
    ::pause();
  });
  ready.write.reset();
  read_line(ready.read.get());
  return child;
}

bool has_stacks(const std::string& dir) {
  std::ifstream file(dir + "/expired.jsonl");
  std::stringstream text;
  text << file.rdbuf();
  return text.str().find("\"native_stack\"") != std::string::npos;
}

std::vector<Child> fork_crowd(int workers) {
  std::vector<Child> crowd;
  for (int i = 0; i < workers; ++i) {
    crowd.push_back(fork_idle());
  }
  return crowd;
}

// Returns the milliseconds from the common deadline of so many workers to each signal.
Samples crowd_signals(const Plan& plan, const std::string& level, int workers, Report& report) {
  ServerUnderTest server(plan.server,
                         fmt::format("{}/crowd-{}-{}", plan.memory_dir, workers, level), "",
                         {"--evidence", level});
  std::vector<Child> crowd = fork_crowd(workers);
  const double deadline = unix_in(crowd_lead(workers));
  for (const Child& worker : crowd) {
    server.send(request_line(worker.pid(), "forward", deadline));
  }
  for (Child& worker : crowd) {
    worker.wait();
  }
  return logged_signals(server, report);
}

Samples bare_crowd_signals(int workers) {
  BareSubject bare;
  const std::vector<Child> crowd = fork_crowd(workers);
  const ClockReading now = ClockReading::now();
  for (const Child& worker : crowd) {
    bare.arm(worker.pid(), {now.mono + crowd_lead(workers), 0});
  }
  return bare.signals();
}

}  // namespace

void measure_crowds(const Plan& plan, Report& report) {
  report.section("deadline to the first and last signal of workers that expire together",
                 "the bare loop");
  for (const int workers : plan.crowds) {
    const Samples base = bare_crowd_signals(workers);
    for (const char* const level : kLevels) {
      const Samples ours = crowd_signals(plan, level, workers, report);
      for (const double q : {0.0, 1.0}) {
        report.add(
            fmt::format("{} workers, --evidence {}, {}", workers, level, q == 0 ? "first" : "last"),
            "ms", ours.quantile(q), base.quantile(q));
      }
    }
  }
}

void measure_evidence(const Plan& plan, Report& report) {
  report.section(fmt::format("deadline to signal of a worker with {} threads", kThreads),
                 "--evidence none");
  std::array<std::string, kLevels.size()> dirs;
  std::vector<std::unique_ptr<ServerUnderTest>> servers;
  for (std::size_t i = 0; i < kLevels.size(); ++i) {
    dirs[i] = fmt::format("{}/evidence-{}", plan.memory_dir, kLevels[i]);
    servers.push_back(std::make_unique<ServerUnderTest>(
        plan.server, dirs[i], "", std::vector<std::string>{"--evidence", kLevels[i]}));
  }
  for (int i = 0; i < plan.evidence_expiries; ++i) {
    for (const auto& server : servers) {
      Child worker = fork_threads();
      server->send(request_line(worker.pid(), "forward", unix_in(kLead)));
      worker.wait();
    }
  }
  std::vector<Samples> samples;
  for (const auto& server : servers) {
    samples.push_back(logged_signals(*server, report));
  }
  for (std::size_t i = 1; i < kLevels.size(); ++i) {
    if (i == 2 && !has_stacks(dirs[i])) {
      report.add({.measure = "--evidence stacks", .note = "not allowed here"});
      continue;
    }
    for (const double q : {0.5, 1.0}) {
      report.add(fmt::format("--evidence {}, {}", kLevels[i], q < 1 ? "p50" : "max"), "ms",
                 samples[i].quantile(q), samples[0].quantile(q),
                 i == 2 && q < 1 ? Target::value_at_most(kTargetStacksMs) : Target{});
    }
  }
}

}  // namespace filetimer::bench
