// The cost of the Python package: a scope beside an empty context manager and PyTorch's expires(),
// and the import. Without Python's headers there is no package to measure.
// SPDX-License-Identifier: MIT
#include <sstream>

#include "tests/bench/sections.hpp"
#include "tests/bench/torch.hpp"

namespace filetimer::bench {

#ifdef FILETIMER_BENCH_PYTHON

namespace {

constexpr const char* kPythonScript = FILETIMER_BENCH_DIR "/python_scopes.py";
constexpr double kTargetScope = 2.5;    // empty contexts
constexpr double kTargetScopeUs = 0.4;  // at the median
constexpr double kTargetExpiresUs = 1;
constexpr double kTargetPythonTorch = 200;  // times faster than PyTorch's expires()
constexpr double kTargetImportMs = 30;
constexpr double kTargetImportMiB = 5;
constexpr int kImports = 9;

std::istringstream output_of(const std::vector<std::string>& words) {
  std::vector<std::string> argv{FILETIMER_BENCH_PYTHON, kPythonScript,
                                FILETIMER_BENCH_PYTHON_PATHS};
  argv.insert(argv.end(), words.begin(), words.end());
  return std::istringstream(first_line_of(argv));
}

void measure_import(const Plan& plan, Report& report) {
  Samples times;
  Samples memory;
  for (int i = 0; i < (plan.python_batches > 10 ? kImports : 1); ++i) {
    double ms = 0;
    double kib = 0;
    output_of({"import"}) >> ms >> kib;
    times.add(ms);
    memory.add(kib);
  }
  report.section("import filetimer, beside bare Python", "");
  report.add("time", "ms", times.median(), {}, Target::value_at_most(kTargetImportMs));
  report.add("memory", "MiB", memory.median() / 1024, {}, Target::value_at_most(kTargetImportMiB));
}

}  // namespace

void measure_python(const Plan& plan, Report& report) {
  const std::string dir = plan.memory_dir + "/python";
  ServerUnderTest server(plan.server, dir);
  double noop = 0;
  double prepared = 0;
  double single = 0;
  double named = 0;
  double unnamed = 0;
  output_of({"scopes", dir, std::to_string(plan.python_batches)}) >> noop >> prepared >> single >>
      named >> unnamed;
  if (const LastWords words = server.stop(); words.rejected != 0 || unnamed <= 0) {
    report.fault("the Python package could not be measured, or was rejected");
  }
  report.section("a scope in Python", "an empty `with` on a context of C's that does nothing");
  const auto row = [&](const char* measure, double ns, Target target) {
    report.add(measure, "us", ns / 1000, noop / 1000, target);
  };
  row("with scope, prepared", prepared, Target::ratio_at_most(kTargetScope));
  row("one entry of it, with two looks at the clock, p50", single,
      Target::value_at_most(kTargetScopeUs));
  row("with filetimer.expires(30, \"x\")", named, Target::value_at_most(kTargetExpiresUs));
  row("with filetimer.expires(30)", unnamed, {});
  auto torch = TorchServer::start(plan, "torch-python");
  report.section("the same against PyTorch's, times faster", "PyTorch's expires(), named scope");
  if (torch) {
    const double torch_us = torch->client_cost_us(plan.torch_scopes);
    torch->stop();
    report.add(times_faster("with filetimer.expires(30, \"x\")", "us", named / 1000, torch_us,
                            kTargetPythonTorch));
  } else {
    report.add(without_torch(plan, "with filetimer.expires(30, \"x\")"));
  }
  measure_import(plan, report);
}

#else

void measure_python(const Plan&, Report& report) {
  report.section("a scope in Python", "");
  report.add({.measure = "with scope", .note = "built without the Python package"});
}

#endif

}  // namespace filetimer::bench
