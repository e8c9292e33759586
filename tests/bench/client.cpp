// What a scope costs the worker: the C++ client over the pipe, beside the two pipe writes that it
// can't do without, and PyTorch's.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <filetimer/timer_client.hpp>

#include "common/clock.hpp"
#include "tests/bench/processes.hpp"
#include "tests/bench/samples.hpp"
#include "tests/bench/sections.hpp"
#include "tests/bench/server_under_test.hpp"
#include "tests/bench/torch.hpp"

namespace filetimer::bench {
namespace {

// Scopes in one go, far fewer than fill a pipe; then the reader gets time to empty it.
constexpr int kBatch = 50;
constexpr std::chrono::milliseconds kPause{2};

struct Costs {
  double clock_ns = 0;
  double writes_ns = 0;
  double scope_ns = 0;
};

template <class Work>
double ns_of_one(Work&& work) {
  const Instant begin = Instant::now();
  for (int i = 0; i < kBatch; ++i) {
    work();
  }
  return static_cast<double>((Instant::now() - begin).count()) / kBatch;
}

// In turns, medians of batches. Runs in a child: the server refuses to watch who started it.
Costs measure_costs(const std::string& dir, int batches) {
  Pipe bare = make_pipe();
  Child reader = fork_child([&] {
    bare.write.reset();
    char bytes[65536];
    while (::read(bare.read.get(), bytes, sizeof bytes) > 0) {
    }
  });
  ConnectOptions options;
  options.dir = dir;
  TimerClient client = TimerClient::connect(std::move(options));
  const std::string acquire = acquire_line(::getpid(), "forward", far_deadline());
  const std::string release = release_line(::getpid(), "forward");
  Samples clock;
  Samples writes;
  Samples scopes;
  for (int i = 0; i < batches; ++i) {
    clock.add(ns_of_one([] { (void)Instant::now(); }));
    writes.add(ns_of_one([&] {
      write_all(bare.write.get(), acquire.data(), acquire.size());
      write_all(bare.write.get(), release.data(), release.size());
    }));
    sleep_for(kPause);
    scopes.add(
        ns_of_one([&] { const auto scope = client.expires(std::chrono::hours(1), "forward"); }));
    sleep_for(kPause);
  }
  return {clock.median(), writes.median(), scopes.median()};
}

}  // namespace

void measure_client(const Plan& plan, Report& report) {
  report.section("one scope, entered and left, in the worker", "two bare pipe writes");
  const std::string dir = plan.memory_dir + "/client";
  ServerUnderTest server(plan.server, dir);
  Pipe result = make_pipe();
  Child worker = fork_child([&] {
    const Costs costs = measure_costs(dir, plan.client_batches);
    write_all(result.write.get(), &costs, sizeof costs);
  });
  result.write.reset();
  Costs costs;
  read_all(result.read.get(), &costs, sizeof costs);
  worker.wait();
  if (const LastWords words = server.stop(); words.rejected != 0) {
    report.fault(fmt::format("{} of the client's requests rejected", words.rejected));
  }
  const double base = costs.writes_ns / 1000;
  report.add({.measure = "filetimer::client, pipe",
              .unit = "us",
              .value = costs.scope_ns / 1000,
              .base = base});
  const auto torch =
      plan.with_torch ? TorchServer::start(plan.memory_dir + "/torch-client") : nullptr;
  if (torch) {
    const TorchServer::ClientCost cost = torch->client_cost(plan.torch_scopes);
    torch->stop();
    report.add({.measure = "PyTorch's expires(), named scope",
                .unit = "us",
                .value = cost.named_us,
                .base = base});
    report.add({.measure = "PyTorch's expires(), default scope",
                .unit = "us",
                .value = cost.default_us,
                .base = base});
  } else {
    report.add(
        {.measure = "PyTorch's expires()", .note = plan.with_torch ? "not installed" : "left out"});
  }
  report.section("the same scope against the clock", "clock_gettime(CLOCK_MONOTONIC)");
  report.add({.measure = "filetimer::client, pipe",
              .unit = "us",
              .value = costs.scope_ns / 1000,
              .base = costs.clock_ns / 1000});
}

}  // namespace filetimer::bench
