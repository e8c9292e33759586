// The time from a deadline to the signal, never early, beside the best that this machine can do.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "tests/bench/expiries.hpp"
#include "tests/bench/sections.hpp"
#include "tests/bench/torch.hpp"

namespace filetimer::bench {
namespace {

using std::chrono::milliseconds;

constexpr double kTargetP50Ms = 0.5;
constexpr double kTargetP99Ms = 3;

void add_quantiles(Report& report, const std::string& what, const Samples& ours,
                   const Samples& base, bool has_targets = false) {
  const auto add = [&](const char* name, double q, double limit) {
    report.add(fmt::format("{}, {}", what, name), "ms", ours.quantile(q),
               base.empty() ? std::nullopt : std::optional(base.quantile(q)),
               has_targets && limit > 0 ? Target::value_at_most(limit) : Target{});
  };
  add("p50", 0.5, kTargetP50Ms);
  add("p99", 0.99, kTargetP99Ms);
  add("max", 1, 0);
}

void add_torch(Report& report, const Plan& plan, std::optional<TorchServer>& torch,
               const ExpiryPlan& expiries, const Samples& base) {
  const std::string what = "PyTorch's server, death";
  if (!torch) {
    report.add(without_torch(plan, what));
    return;
  }
  Subject subject = torch_subject(torch->fifo);
  run_expiries({&subject}, expiries, report);
  torch->stop();
  add_quantiles(report, what, subject.deaths, base);
}

}  // namespace

void measure_deadlines_idle(const Plan& plan, Report& report) {
  report.section("deadline to signal, machine idle, --evidence none",
                 "epoll and timerfd, then pidfd_send_signal");
  const std::vector<std::string> args{"--evidence", "none"};
  ServerUnderTest in_memory(plan.server, plan.memory_dir + "/idle", {}, args);
  Subject memory = subject_of("timer_server", in_memory);
  BareSubject bare;
  std::vector<Subject*> subjects{&bare, &memory};

  std::optional<ServerUnderTest> on_disk;
  std::optional<Subject> disk;
  std::optional<BareSubject> bare_disk;
  if (!plan.disk_dir.empty()) {
    on_disk.emplace(plan.server, plan.memory_dir + "/idle-disk", plan.disk_dir + "/idle.jsonl",
                    args);
    disk = subject_of("timer_server", *on_disk);
    bare_disk.emplace(BareSubject::Scheduling::kOrdinary, plan.disk_dir + "/bare");
    subjects.insert(subjects.end(), {&*bare_disk, &*disk});
  }
  run_expiries(subjects, {.count = plan.expiries, .lead = milliseconds(10)}, report);

  const Samples base = bare.signals();
  add_quantiles(report, "log in memory", logged_signals(in_memory, report), base, true);
  if (on_disk) {
    // The time of the disk is not under our control, so there is no target, and the base includes
    // it.
    add_quantiles(report, "log on disk; base appends, fdatasyncs 1 kB",
                  logged_signals(*on_disk, report), bare_disk->signals());
  } else {
    report.add({.measure = "log on disk", .note = "no disk"});
  }
  add_quantiles(report, "death seen, log in memory", memory.deaths, bare.deaths);
  auto torch = TorchServer::start(plan, "torch-timer");
  add_torch(report, plan, torch,
            {.count = plan.torch_expiries,
             .lead = milliseconds(150),
             .spacing = milliseconds(25),
             .at_once = 64},
            bare.deaths);
}

void measure_deadlines_busy(const Plan& plan, Report& report) {
  report.section(fmt::format("the same with {} busy loops, log in memory", plan.busy_loops),
                 "the same loop, scheduled the same way");
  ServerUnderTest ordinary(plan.server, plan.memory_dir + "/busy", {}, {"--evidence", "none"});
  ServerUnderTest realtime(plan.server, plan.memory_dir + "/busy-realtime", {},
                           {"--evidence", "none", "--realtime"});
  Subject ours = subject_of("timer_server", ordinary);
  Subject ours_realtime = subject_of("timer_server --realtime", realtime);
  BareSubject bare;
  BareSubject bare_realtime(BareSubject::Scheduling::kRealtime);
  // The lead is long enough for the request to be read in time on a machine this busy.
  const ExpiryPlan expiries{.count = plan.busy_expiries,
                            .lead = milliseconds(200),
                            .spacing = milliseconds(10),
                            .at_once = 64};
  auto torch =
      TorchServer::start(plan, "torch-timer");  // its import takes seconds, more on a busy machine
  std::vector<Child> busy;
  for (int i = 0; i < plan.busy_loops; ++i) {
    busy.push_back(fork_busy());
  }
  run_expiries({&bare, &ours, &bare_realtime, &ours_realtime}, expiries, report);
  ExpiryPlan for_torch = expiries;
  for_torch.count = plan.torch_expiries;
  for_torch.spacing = milliseconds(25);
  const Samples base = bare.signals();
  const Samples base_realtime = bare_realtime.signals();
  add_quantiles(report, "ordinary", logged_signals(ordinary, report), base);
  add_quantiles(report, "--realtime", logged_signals(realtime, report), base_realtime);
  add_torch(report, plan, torch, for_torch, bare.deaths);
}

}  // namespace filetimer::bench
