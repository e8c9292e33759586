// Runs histories of the simulation: those of the file `found`, and those of seeds.
//
//   sim_tests                     `found` and a fixed set of seeds
//   sim_tests --seed N            one seed, with its shortest list of operations if it fails
//   sim_tests --run 'OPERATIONS'  one list, with all that happens
//   sim_tests --from N|random --seconds S
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <random>

#include "tests/sim/simulation.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer::sim {
namespace {

constexpr std::uint64_t kSeeds = 1'200;  // that are always run
constexpr int kMostFailures = 5;
constexpr int kSweep = 150;  // calls at which the operation with @1 of a swept history takes place
constexpr rlim_t kDescriptors = 4096;
constexpr int kChecker = 1'000;  // the descriptor of history_check

// Has tests/chaos/history_check judge the history and the log in the folder. One process of it
// judges all of them: its start takes far longer than that.
std::vector<std::string> judge(const std::string& dir) {
  static FILE* const answers = [] {
    int ends[2] = {-1, -1};
    (void)!::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
    if (::fork() == 0) {
      ::dup2(ends[1], STDIN_FILENO);
      ::dup2(ends[1], STDOUT_FILENO);
      ::execl(FILETIMER_HISTORY_CHECK, "history_check", "--each", nullptr);
      ::_exit(127);
    }
    ::dup3(ends[0], kChecker, O_CLOEXEC);
    ::close(ends[0]);
    ::close(ends[1]);
    return ::fdopen(kChecker, "r");
  }();
  ::dprintf(kChecker, "%s\t%s/run/expired.jsonl\n", dir.c_str(), dir.c_str());
  static char* line = nullptr;
  static std::size_t room = 0;
  std::vector<std::string> violations;
  ssize_t length = 0;
  while ((length = ::getline(&line, &room, answers)) > 1) {
    violations.emplace_back(line, static_cast<std::size_t>(length) - 1);
  }
  if (length < 1) {
    violations.emplace_back("history_check has ended");
  }
  return violations;
}

std::vector<std::string> run(const Operations& operations, bool is_verbose = false) {
  std::string dir = ::access("/dev/shm", W_OK) == 0
                        ? "/dev/shm"
                        : std::filesystem::temp_directory_path().string();
  dir += "/filetimer-sim-XXXXXX";
  if (::mkdtemp(dir.data()) == nullptr) {
    return {"there is no folder for the simulation"};
  }
  std::fflush(stdout);
  auto violations = testing::run_in_child([&] {
    ::close(kChecker);  // each history has the same descriptors
    sigset_t signals;   // that the server reads; each fiber has the mask of this thread
    ::sigfillset(&signals);
    for (const int signal : {SIGALRM, SIGSEGV, SIGBUS, SIGABRT}) {
      ::sigdelset(&signals, signal);
    }
    ::sigprocmask(SIG_SETMASK, &signals, nullptr);
    if (!is_verbose) {
      (void)!std::freopen("/dev/null", "w", stderr);
    }
    return run_history(operations, dir, is_verbose);
  });
  std::ranges::move(judge(dir), std::back_inserter(violations));
  std::error_code ec;
  std::filesystem::remove_all(dir, ec);
  return violations;
}

// Returns the operations, of which that at the first call takes place at the n-th one.
Operations shifted(Operations operations, int n) {
  for (Operation& operation : operations) {
    operation.at_call = operation.at_call == 1 ? n : operation.at_call;
  }
  return operations;
}

// Returns whether the history holds. Prints the shortest list of operations otherwise.
bool holds(std::uint64_t seed) {
  const Operations operations = operations_of(seed);
  const auto violations = run(operations);
  if (violations.empty()) {
    return true;
  }
  fmt::print("seed {}: {} operations: {}\n", seed, operations.size(), violations.front());
  const std::string promise = violations.front().substr(0, violations.front().find(':') + 1);
  const Operations shortest = testing::shorten(operations, [&](const Operations& fewer) {
    const auto found = run(fewer);
    return std::ranges::any_of(found, [&](const auto& each) { return each.starts_with(promise); });
  });
  for (const std::string& violation : run(shortest)) {
    fmt::print("  {}\n", violation);
  }
  fmt::print("  --run '{}'\n", text_of(shortest));
  return false;
}

int run_all(int argc, char** argv) {
  const auto all = testing::read_found(FILETIMER_SIM_FOUND);
  std::optional<std::uint64_t> from;
  std::uint64_t count = kSeeds;
  std::chrono::duration<double> limit{std::numeric_limits<double>::infinity()};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view option = argv[i];
    const char* const value = argv[i + 1];
    if (option == "--run") {
      const auto violations = run(testing::parse(value), true);
      for (const std::string& violation : violations) {
        fmt::print("{}\n", violation);
      }
      return violations.empty() ? 0 : 1;
    }
    if (option == "--seconds") {
      limit = std::chrono::duration<double>(std::strtod(value, nullptr));
    } else {
      from = value == std::string_view("random") ? std::random_device{}()
                                                 : std::strtoull(value, nullptr, 10);
      count = option == "--seed" ? 1 : std::numeric_limits<std::uint64_t>::max();
    }
  }
  int failures = 0;
  for (const testing::Found& found : all) {
    const bool is_swept = found.words.find("swept") != std::string::npos;
    for (int n = 1; !from && n <= (is_swept ? kSweep : 1); ++n) {
      const Operations operations = is_swept ? shifted(found.operations, n) : found.operations;
      const auto violations = run(operations);
      if (!violations.empty()) {
        ++failures;
        fmt::print("{}: {}\n  --run '{}'\n", found.name, violations.front(), text_of(operations));
      }
    }
  }
  const auto begun = std::chrono::steady_clock::now();
  const std::uint64_t first = from.value_or(0);
  std::uint64_t done = 0;
  for (;
       done < count && failures < kMostFailures && std::chrono::steady_clock::now() - begun < limit;
       ++done) {
    failures += holds(first + done) ? 0 : 1;
  }
  fmt::print("{} histories from seed {}, {} failures\n", done, first, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace filetimer::sim

int main(int argc, char** argv) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min(limit.rlim_max, filetimer::sim::kDescriptors);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  // It initialises a variable, which a crash in a history would leave half done.
  (void)filetimer::has_random_stack(::getpid());
  return filetimer::sim::run_all(argc, argv);
}
