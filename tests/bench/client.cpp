// The cost of a scope and of a timer on a bare pipe for the worker, beside the clock reads and pipe
// writes that they need, and PyTorch's timer.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <filetimer/timer_client.hpp>

#include "tests/bench/sections.hpp"
#include "tests/bench/torch.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"

namespace filetimer::bench {
namespace {

// Scopes in one batch, far fewer than fill a pipe. Afterwards the reader gets time to empty it.
constexpr int kBatch = 50;
constexpr std::chrono::milliseconds kPause{2};

// Operations of some nanoseconds in one batch.
constexpr int kLongBatch = 5000;
constexpr double kTargetReads = 3.0;   // clock reads
constexpr double kTargetWrite = 8;     // times faster than one pipe write
constexpr double kTargetTorch = 1000;  // times faster than PyTorch's expires()

// Nanoseconds for each operation, medians of interleaved batches.
struct Costs {
  double clock = 0;
  double write = 0;  // of one line to a pipe
  double line_scope = 0;
  double page_scope = 0;
};

template <class Work>
double ns_of_one(int batch, Work&& work) {
  const Instant begin = Instant::now();
  for (int i = 0; i < batch; ++i) {
    work();
  }
  return static_cast<double>((Instant::now() - begin).count()) / batch;
}

// Runs in a child, because the server refuses to watch the process that started it.
Costs measure_costs(const ServerUnderTest& server, const std::string& dir, int batches) {
  Pipe bare = make_pipe();
  Child reader = fork_child([&] {
    bare.write.reset();
    char bytes[65536];
    while (::read(bare.read.get(), bytes, sizeof bytes) > 0) {
    }
  });
  TimerClient client = TimerClient::connect({.dir = dir});
  const std::string acquire = request_line(::getpid(), "forward", unix_in(std::chrono::hours(1)));
  const auto read_clock = [] { (void)Instant::now(); };
  Samples clock;
  Samples writes;
  Samples line_scopes;
  Samples page_scopes;
  for (int i = 0; i < batches; ++i) {
    clock.add(ns_of_one(kLongBatch, read_clock));
    page_scopes.add(ns_of_one(
        kLongBatch, [&] { const auto scope = client.expires(std::chrono::hours(1), "forward"); }));
    writes.add(
        ns_of_one(kBatch, [&] { write_all(bare.write.get(), acquire.data(), acquire.size()); }));
    sleep_for(kPause);
    line_scopes.add(ns_of_one(kBatch, [&] {
      send_request(server.fifo(), acquire_request(std::chrono::hours(1), "forward"));
      send_request(server.fifo(), release_request("forward"));
    }));
    sleep_for(kPause);
  }
  return {.clock = clock.median(),
          .write = writes.median(),
          .line_scope = line_scopes.median(),
          .page_scope = page_scopes.median()};
}

void report_pages(const Costs& costs, Report& report) {
  report.section("a scope on the worker's page against the clock",
                 "clock_gettime(CLOCK_MONOTONIC)");
  report.add("filetimer::client, page", "ns", costs.page_scope, costs.clock,
             Target::ratio_at_most(kTargetReads));
  report.section("the same against one line to a pipe, times faster", "one bare pipe write");
  report.add(
      times_faster("filetimer::client, page", "ns", costs.page_scope, costs.write, kTargetWrite));
}

}  // namespace

void measure_client(const Plan& plan, Report& report) {
  report.section("one scope, entered and left, in the worker", "two bare pipe writes");
  const std::string dir = plan.memory_dir + "/client";
  ServerUnderTest server(plan.server, dir);
  Pipe result = make_pipe();
  Child worker = fork_child([&] {
    const Costs costs = measure_costs(server, dir, plan.client_batches);
    write_all(result.write.get(), &costs, sizeof costs);
  });
  result.write.reset();
  Costs costs;
  read_all(result.read.get(), &costs, sizeof costs);
  worker.wait();
  if (const LastWords words = server.stop(); words.rejected != 0) {
    report.fault(fmt::format("{} of the client's requests rejected", words.rejected));
  }
  const double base = 2 * costs.write / 1000;
  report.add("filetimer, a timer on the pipe", "us", costs.line_scope / 1000, base);
  auto torch = TorchServer::start(plan, "torch-client");
  const double torch_us = torch ? torch->client_cost_us(plan.torch_scopes) : 0;
  if (torch) {
    torch->stop();
    report.add("PyTorch's expires()", "us", torch_us, base);
  } else {
    report.add(without_torch(plan, "PyTorch's expires()"));
  }
  report_pages(costs, report);
  if (torch) {
    report.section("the same against PyTorch's, times faster", "PyTorch's expires()");
    // PyTorch's timer counts nothing; ours does more.
    report.add(times_faster("filetimer::client, page", "us", costs.page_scope / 1000, torch_us,
                            kTargetTorch));
  }
}

}  // namespace filetimer::bench
