// SPDX-License-Identifier: MIT
#include "tests/slots/machine.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <random>
#include <sstream>
#include <stdexcept>

#include "tests/support/bound.hpp"

namespace filetimer::slots {
namespace {

constexpr std::array<std::string_view, 20> kNames{
    "acquire", "renew", "release", "pause",  "resume", "suspend", "unsuspend",
    "end",     "fork",  "idle",    "unidle", "look",   "expire",  "finish",
    "revoke",  "die",   "start",   "hour",   "fill",   "again"};
constexpr std::size_t kLength = 60;

// What a child reports: memory of both.
struct Report {
  char text[1000];
};

void play(System& system, const Ops& ops, std::size_t from) {
  for (std::size_t i = from; i < ops.size(); ++i) {
    system.rest = [&, i] { play(system, ops, i + 1); };
    try {
      system.apply(ops[i]);
    } catch (const Difference& difference) {
      throw Difference{fmt::format("{}: {}", text_of({ops[i]}), difference.what)};
    }
  }
  system.finish();
}

}  // namespace

std::string text_of(const Ops& ops) {
  std::string text;
  for (const Op& op : ops) {
    text += fmt::format("{}{} {} {} {}", text.empty() ? "" : "; ",
                        kNames.at(static_cast<std::size_t>(op.kind)), op.a, op.b, op.c);
  }
  return text;
}

Ops ops_of(std::string_view text) {
  Ops ops;
  std::istringstream all{std::string(text)};
  for (std::string each; std::getline(all, each, ';');) {
    std::istringstream words(each);
    std::string name;
    Op op;
    words >> name >> op.a >> op.b >> op.c;
    const auto found = std::ranges::find(kNames, name);
    if (found == kNames.end()) {
      throw std::invalid_argument("unknown operation: " + each);
    }
    op.kind = static_cast<Kind>(found - kNames.begin());
    ops.push_back(op);
  }
  return ops;
}

void run_in_child(bool by_clone, const std::function<void()>& body) {
  auto* const report = static_cast<Report*>(
      ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto child =
      by_clone ? static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) : ::fork();
  if (child == 0) {
    const auto fail = [&](std::string_view what) {
      report->text[what.copy(report->text, sizeof report->text - 1)] = '\0';
      ::_exit(1);
    };
    ::alarm(
        static_cast<unsigned>(std::chrono::ceil<std::chrono::seconds>(testing::kBound).count()));
    try {
      body();
    } catch (const Difference& difference) {
      fail(difference.what);
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("an exception");  // of a REQUIRE
    }
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string text =
      WIFSIGNALED(status) ? fmt::format("ended by signal {}", WTERMSIG(status)) : report->text;
  ::munmap(report, sizeof(Report));
  if (status != 0) {
    throw Difference{text};
  }
}

std::optional<std::string> run(const Kit& kit, unsigned variant, const Ops& ops) {
  try {
    run_in_child(false, [&] {
      const std::unique_ptr<System> system = kit.make(variant);
      play(*system, ops, 0);
    });
  } catch (const Difference& difference) {
    return difference.what;
  }
  return std::nullopt;
}

Ops random_ops(const Kit& kit, unsigned seed) {
  std::mt19937 random(seed);
  std::discrete_distribution<int> kinds(kit.weights.begin(), kit.weights.end());
  const int keys = 1 + static_cast<int>(random() % kKeys);  // few: the worker is often in no scope
  Ops ops(kLength);
  for (Op& op : ops) {
    const auto below = [&](int end) {
      return static_cast<int>(random() % static_cast<unsigned>(end));
    };
    op.kind = static_cast<Kind>(kinds(random));
    if (op.kind <= Kind::kResume) {
      op = {op.kind, below(keys), below(8) == 0 ? kNever : 1 + below(6), below(kThreads)};
    } else {
      op.a = op.kind == Kind::kIdle                              ? 1 + below(4)
             : op.kind == Kind::kFork || op.kind == Kind::kStart ? below(2)
                                                                 : below(kThreads);
    }
  }
  return ops;
}

// Drops halves, then quarters, down to single operations, as long as the sequence still differs.
std::string shortest(const Kit& kit, unsigned variant, Ops ops) {
  std::string what = run(kit, variant, ops).value_or("it does not differ any more");
  for (std::size_t size = ops.size() / 2; size > 0;) {
    bool has_dropped = false;
    for (std::size_t at = 0; at < ops.size();) {
      Ops fewer = ops;
      const auto first = fewer.begin() + static_cast<std::ptrdiff_t>(at);
      fewer.erase(first, first + static_cast<std::ptrdiff_t>(std::min(size, ops.size() - at)));
      if (const auto differs = run(kit, variant, fewer)) {
        ops = std::move(fewer);
        what = *differs;
        has_dropped = true;
      } else {
        at += size;
      }
    }
    size = has_dropped && size == 1 ? 1 : size / 2;
  }
  return fmt::format("{} {}: {}\n  {}", kit.name, variant, text_of(ops), what);
}

}  // namespace filetimer::slots
