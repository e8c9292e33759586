// filetimer_bench: measures the figures of speed and size in the README, each beside a base of the
// same run, and prints one table. scripts/bench builds a release and runs it.
// Exit status: 0 measured, whether or not a target was met; 1 something behaved wrongly (a kill
// before its deadline, a lost line) or could not be measured; 2 usage.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <stdexcept>

#include "tests/bench/processes.hpp"
#include "tests/bench/sections.hpp"

namespace filetimer::bench {
namespace {

struct Options {
  bool quick = false;
  bool smoke = false;
  bool no_torch = false;
  std::string disk = "/var/tmp";
  std::string only;  // parts, joined by commas; empty: all
};

Plan plan_for(const Options& options) {
  Plan plan;
  if (options.quick || options.smoke) {
    plan.expiries = 100;
    plan.busy_expiries = 60;
    plan.torch_expiries = 20;
    plan.ingest_rounds = 3;
    plan.ingest_lines = 200'000;
    plan.client_batches = 50;
    plan.torch_scopes = 100;
    plan.evidence_expiries = 20;
    plan.page_expiries = 100;
    plan.page_workers = 200;
    plan.python_batches = 30;
  }
  if (options.smoke) {
    plan.expiries = 5;
    plan.busy_expiries = 3;
    plan.busy_loops = 2;
    plan.ingest_rounds = 1;
    plan.ingest_lines = 2000;
    plan.workers = 20;
    plan.scopes_per_worker = 5;
    plan.idle_seconds = 0;
    plan.client_batches = 2;
    plan.evidence_expiries = 1;
    plan.crowds = {2};
    plan.page_expiries = 3;
    plan.page_scopes = 1000;
    plan.page_workers = 3;
    plan.page_scopes_idle = 100;
    plan.python_batches = 2;
  }
  plan.with_torch = !options.no_torch && !options.smoke;
  return plan;
}

std::string make_folder(const std::string& parent) {
  std::string path = parent + "/filetimer-bench-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    fail_errno("cannot make a folder in " + parent);
  }
  return path;
}

// A sync without a disk costs nothing, so its figure would mislead.
bool is_on_disk(const std::string& dir) {
  struct statfs fs {};
  return ::statfs(dir.c_str(), &fs) == 0 && fs.f_type != TMPFS_MAGIC && fs.f_type != RAMFS_MAGIC;
}

int measure(const Options& options, const Plan& plan) {
  Report report;
  const auto step = [&](const std::string& name, const std::function<void()>& run) {
    if (options.only.empty() || (options.only + ",").find(name + ",") != std::string::npos) {
      fmt::print(stderr, "filetimer_bench: measuring {}\n", name);
      run();
    }
  };
  step("deadlines", [&] { measure_deadlines_idle(plan, report); });
  step("busy", [&] { measure_deadlines_busy(plan, report); });
  step("evidence", [&] { measure_evidence(plan, report); });
  step("crowds", [&] { measure_crowds(plan, report); });
  step("ingest", [&] { measure_ingest(plan, report); });
  std::vector<IdleServer> idle;
  step("table", [&] { idle.push_back(fill_table(plan, report)); });
  step("pages", [&] { idle.push_back(open_idle_pages(plan)); });
  step("client", [&] { measure_client(plan, report); });
  step("pages", [&] { measure_pages(plan, report); });
  step("python", [&] { measure_python(plan, report); });
  for (IdleServer& server : idle) {
    server.finish(plan, report);
  }
  report.print_table(stdout);
  std::fflush(stdout);
  return report.has_faults() ? 1 : 0;
}

// The measurements run in a child. Its processes die with it, and its parent removes its folders,
// so an interrupted run leaves nothing behind.
int supervise(const Options& options) {
  const sigset_t signals = signal_set({SIGINT, SIGTERM, SIGHUP, SIGCHLD});
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  Plan plan = plan_for(options);
  plan.memory_dir = make_folder("/dev/shm");
  if (is_on_disk(options.disk)) {
    plan.disk_dir = make_folder(options.disk);
  }
  int result = 1;
  {
    Child child = fork_child([&] {
      ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
      ::setpgid(0, 0);  // Ctrl-C reaches the supervisor alone
      ::_exit(measure(options, plan));
    });
    int signal = 0;
    ::sigwait(&signals, &signal);
    if (signal == SIGCHLD) {
      const int status = child.wait();
      result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    } else {
      result = 128 + signal;
    }
  }
  std::filesystem::remove_all(plan.memory_dir);
  if (!plan.disk_dir.empty()) {
    std::filesystem::remove_all(plan.disk_dir);
  }
  return result;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Measures the figures of the README and prints one table.", "filetimer_bench");
  app.add_flag("--quick", options.quick, "fewer repetitions, about a minute");
  app.add_flag("--smoke", options.smoke, "as little as shows that all of it works");
  app.add_flag("--no-torch", options.no_torch, "leave PyTorch's timer out");
  app.add_option(
      "--only", options.only,
      "some of: deadlines, busy, evidence, crowds, ingest, table, client, pages, python");
  app.add_option("--disk", options.disk, "where the log on disk is made; /var/tmp");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
#ifndef __OPTIMIZE__
  if (!options.smoke) {
    throw std::runtime_error("it is compiled without optimisation: scripts/bench measures");
  }
#endif
  // Each worker is held by a pidfd.
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  return supervise(options);
}

}  // namespace
}  // namespace filetimer::bench

int main(int argc, char** argv) {
  try {
    return filetimer::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "filetimer_bench: {}\n", error.what());
    return 1;
  }
}
