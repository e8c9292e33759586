// Runs histories of the simulation: those in found/, and those of seeds.
//
//   sim_tests                     found/ and a fixed set of seeds
//   sim_tests --seed N            one seed, with its shortest list of operations if it fails
//   sim_tests --run 'OPERATIONS'  one list, with all that happens
//   sim_tests --from N|random --seconds S
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <set>

#include "common/posix.hpp"
#include "tests/sim/simulation.hpp"

namespace filetimer::sim {
namespace {

constexpr std::uint64_t kSeeds = 400;   // that are always run
constexpr unsigned kHistoryLimit = 20;  // seconds; a history that takes longer hangs
constexpr int kShrinkLimit = 1'500;     // histories that are run to shorten one

std::set<std::string> known;  // faults whose effects count as right

std::string scratch() {
  const char* const folder = std::getenv("TMPDIR");
  std::string path =
      fmt::format("{}/filetimer-sim-XXXXXX", ::access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                             : folder != nullptr             ? folder
                                                                             : "/tmp");
  return ::mkdtemp(path.data()) == nullptr ? std::string() : path;
}

// Runs a history in a child process: the server may crash, and it keeps nothing for the next one.
std::vector<std::string> run_apart(const Operations& operations,
                                   const std::set<std::string>& excused, bool is_verbose = false) {
  const std::string dir = scratch();
  int ends[2];
  if (dir.empty() || ::pipe2(ends, O_CLOEXEC) != 0) {
    return {"no folder or pipe for the simulation"};
  }
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kHistoryLimit);
    sigset_t signals;  // that the server reads; each fiber has the mask of this thread
    ::sigfillset(&signals);
    for (const int signal : {SIGALRM, SIGSEGV, SIGBUS, SIGABRT}) {
      ::sigdelset(&signals, signal);
    }
    ::sigprocmask(SIG_SETMASK, &signals, nullptr);
    const int report = ::fcntl(ends[1], F_DUPFD_CLOEXEC, 600);
    if (!is_verbose) {
      (void)!std::freopen("/dev/null", "w", stderr);
    }
    std::string text;
    for (const std::string& violation : run_history(operations, dir, excused, is_verbose)) {
      text += violation + '\n';
    }
    text += "done\n";
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t put = ::write(report, text.data() + at, text.size() - at);
      if (put <= 0) {
        break;
      }
      at += static_cast<std::size_t>(put);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char block[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], block, sizeof block)) > 0;) {
    text.append(block, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  std::error_code ec;
  std::filesystem::remove_all(dir, ec);
  std::vector<std::string> violations;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    violations.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (violations.empty() || violations.back() != "done") {
    violations.push_back(
        WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM
            ? "server-life: the history hangs"
            : fmt::format("server-life: the server died ({})",
                          WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "exit"));
  } else {
    violations.pop_back();
  }
  return violations;
}

std::string promise_of(const std::string& violation) {
  return violation.substr(0, violation.find(':'));
}

bool fails_as(const Operations& operations, const std::set<std::string>& excused,
              const std::string& promise) {
  for (const std::string& violation : run_apart(operations, excused)) {
    if (promise_of(violation) == promise) {
      return true;
    }
  }
  return false;
}

// Drops operations, then halves numbers, while the history fails in the same way.
Operations shorten(Operations operations, const std::string& promise) {
  int runs = 0;
  for (std::size_t part = operations.size() / 2; part > 0; part /= 2) {
    for (std::size_t at = 0; at < operations.size() && runs < kShrinkLimit;) {
      Operations fewer = operations;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(at),
                  fewer.begin() + static_cast<std::ptrdiff_t>(std::min(at + part, fewer.size())));
      ++runs;
      if (fails_as(fewer, known, promise)) {
        operations = std::move(fewer);
      } else {
        at += part;
      }
    }
  }
  return operations;
}

// Returns whether the history holds. Prints the shortest list of operations otherwise.
bool holds(std::uint64_t seed) {
  const Operations operations = operations_of(seed);
  const std::vector<std::string> violations = run_apart(operations, known);
  if (violations.empty()) {
    return true;
  }
  fmt::print("seed {}: {} operations: {}\n", seed, operations.size(), violations.front());
  const Operations shortest = shorten(operations, promise_of(violations.front()));
  for (const std::string& violation : run_apart(shortest, known)) {
    fmt::print("  {}\n", violation);
  }
  fmt::print("  --run '{}'\n", text_of(shortest));
  return false;
}

struct Found {
  std::string name;
  bool is_known = false;  // and not mended
  Operations operations;
};

std::vector<Found> read_found() {
  std::vector<Found> all;
  std::ifstream file(FILETIMER_SIM_FOUND);
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t bar = line.find('|');
    if (line.starts_with('#') || bar == line.npos) {
      continue;
    }
    Found found;
    found.name = line.substr(0, line.find(' '));
    found.is_known = line.substr(0, bar).find(" known") != line.npos;
    found.operations = parse(std::string_view(line).substr(bar + 1));
    all.push_back(std::move(found));
  }
  return all;
}

// Each found fault is mended, or known and still there.
int check_found(const std::vector<Found>& all) {
  int failures = 0;
  for (const Found& found : all) {
    const std::vector<std::string> violations = run_apart(found.operations, {});
    if (violations.empty() == found.is_known) {
      ++failures;
      fmt::print(
          "{}: {}\n", found.name,
          found.is_known ? "known, but it holds now: take its mark off" : violations.front());
    }
  }
  return failures;
}

int run(int argc, char** argv) {
  const auto all = read_found();
  for (const Found& found : all) {
    if (found.is_known) {
      known.insert(found.name.substr(0, found.name.find('.')));
    }
  }
  std::optional<std::uint64_t> from;
  std::uint64_t count = kSeeds;
  double seconds = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view option = argv[i];
    if (option == "--run") {
      const auto violations = run_apart(parse(argv[i + 1]), {}, true);
      for (const std::string& violation : violations) {
        fmt::print("{}\n", violation);
      }
      return violations.empty() ? 0 : 1;
    }
    if (option == "--seed" || option == "--from") {
      from = std::string_view(argv[i + 1]) == "random" ? std::random_device{}()
                                                       : std::strtoull(argv[i + 1], nullptr, 10);
      count = option == "--seed" ? 1 : ~std::uint64_t{0};
    } else if (option == "--seconds") {
      seconds = std::strtod(argv[i + 1], nullptr);
    }
  }
  int failures = from ? 0 : check_found(all);
  const auto begun = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  };
  const std::uint64_t first = from.value_or(0);
  std::uint64_t done = 0;
  for (; done < count && failures < 5 && (seconds == 0 || elapsed() < seconds); ++done) {
    failures += holds(first + done) ? 0 : 1;
  }
  fmt::print("{} histories from seed {} in {:.1f} s, {} failures\n", done, first, elapsed(),
             failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace filetimer::sim

int main(int argc, char** argv) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return filetimer::sim::run(argc, argv);
}
