// SPDX-License-Identifier: MIT
#include "timer_server/hardening.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "common/directory.hpp"
#include "common/limits.hpp"
#include "common/numbers.hpp"
#include "common/proc_files.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/questions/askers.hpp"

namespace filetimer {
namespace {

// Behind whatever fills the memory, but not beyond all reach, as -1000 would be.
constexpr int kOomScoreAdj = -900;
constexpr const char* kOomScoreFile = "/proc/self/oom_score_adj";

// A pidfd and, of a worker of the pipe, the page of its timers; the rest is for the pipe, the log,
// /proc, hooks, and the descendants of a worker that is killed.
constexpr std::size_t kReservedDescriptors = 128;
constexpr std::size_t kDescriptorsPerWorker = 2;
constexpr std::size_t kAskersShare = 8;  // of all: one in so many

// What it was; empty when it is as it was.
std::string lower_oom_score() {
  const auto text = read_small_file(kOomScoreFile);
  std::string_view rest = text ? std::string_view(*text) : std::string_view{};
  const int before = take_number<int>(rest).value_or(kOomScoreAdj);
  if (before <= kOomScoreAdj) {
    return {};
  }
  const std::string wanted = fmt::format("{}", kOomScoreAdj);
  const UniqueFd file(::open(kOomScoreFile, O_WRONLY | O_CLOEXEC));
  if (!file || !write_at(file.get(), wanted.data(), wanted.size(), 0)) {
    messages::debug("oom_score_adj stays {}: {}", before,
                    std::generic_category().message(errno));  // it takes CAP_SYS_RESOURCE
    return {};
  }
  return fmt::format("{}", before);
}

// Only where no limit counts: under one, locking for the future makes a later allocation fail,
// which is worse than a page that was swapped out. Only what is touched: a thread's stack is 8 MiB
// of which it uses a few pages.
void lock_memory() {
  constexpr int kAll = MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT;
  rlimit before{};
  ::getrlimit(RLIMIT_MEMLOCK, &before);
  if (before.rlim_cur != RLIM_INFINITY) {
    // With a limit of nothing it succeeds for those alone whom the limit does not bind
    // (CAP_IPC_LOCK of the host's first user namespace, which no file of /proc tells).
    const rlimit nothing{0, before.rlim_max};
    ::setrlimit(RLIMIT_MEMLOCK, &nothing);
  }
  if (::mlockall(kAll) != 0) {
    messages::debug("memory is not locked: {}", std::generic_category().message(errno));
  }
  ::setrlimit(RLIMIT_MEMLOCK, &before);
}

// Each worker takes descriptors, those of a server before this one at once.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

void harden(Inheritance& inheritance) {
  raise_descriptor_limit();
  inheritance.oom_score_adj = lower_oom_score();
  lock_memory();
}

std::size_t open_descriptors() {
  Directory descriptors("/proc/self/fd");
  std::size_t count = 0;
  while (descriptors.next() != nullptr) {
    ++count;
  }
  return descriptors ? count - 1 : 0;  // the directory's own one is among them
}

std::size_t descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::size_t>::max();
  }
  return limit.rlim_cur;
}

std::size_t most_askers() {
  return std::min(descriptor_limit() / kAskersShare, Askers::kMost);
}

std::size_t most_workers() {
  const std::size_t limit = descriptor_limit();
  const std::size_t others = kReservedDescriptors + most_askers();
  const std::size_t for_workers = limit > 2 * others ? limit - others : limit / 2;
  return std::min(for_workers / kDescriptorsPerWorker, kMaxWorkers);
}

}  // namespace filetimer
