// SPDX-License-Identifier: MIT
#include "timer_server/system/hardening.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/text.hpp"
#include "timer_server/system/messages.hpp"
#include "timer_server/system/own_children.hpp"

namespace filetimer {
namespace {

// The kernel kills almost every other process first. With -1000 it could not kill the server at
// all, even if the server itself filled the memory.
constexpr int kOomScoreAdj = -900;
constexpr const char* kOomScoreFile = "/proc/self/oom_score_adj";

// For the request pipe, the log, /proc, hooks, and the descendants of a worker that is killed.
constexpr std::size_t kReservedDescriptors = 128;
// A pidfd, and for a worker of the pipe the page file of its scopes.
constexpr std::size_t kDescriptorsPerWorker = 2;
constexpr std::size_t kClientsShare = 8;  // one descriptor in so many is for waiting clients

// Returns the previous oom_score_adj, or an empty string if it was not changed.
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
                    std::generic_category().message(errno));  // lowering it takes CAP_SYS_RESOURCE
    return {};
  }
  return fmt::format("{}", before);
}

// Locks the memory only if RLIMIT_MEMLOCK does not bind the server: with a limit MCL_FUTURE makes
// later allocations fail, which is worse than swapping. MCL_ONFAULT locks touched pages only: the
// stack of a thread has 8 MiB, of which it uses a few pages.
void lock_memory() {
  constexpr int kAll = MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT;
  rlimit before{};
  ::getrlimit(RLIMIT_MEMLOCK, &before);
  if (before.rlim_cur != RLIM_INFINITY) {
    // The limit does not bind a process with CAP_IPC_LOCK in the host's first user namespace. No
    // file of /proc shows that. With a limit of 0 mlockall() succeeds for such a process only.
    const rlimit nothing{0, before.rlim_max};
    ::setrlimit(RLIMIT_MEMLOCK, &nothing);
  }
  if (::mlockall(kAll) != 0) {
    messages::debug("memory is not locked: {}", std::generic_category().message(errno));
  }
  ::setrlimit(RLIMIT_MEMLOCK, &before);
}

// Each worker takes descriptors. The next server takes those of all workers at once.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

void harden() {
  raise_descriptor_limit();
  inheritance().oom_score_adj = lower_oom_score();
  lock_memory();
}

Status enter_realtime() {
  sched_param param{};
  param.sched_priority = ::sched_get_priority_min(SCHED_RR);
  if (::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &param) != 0) {
    return system_error("--realtime is not allowed here");
  }
  return {};
}

std::size_t open_descriptors() {
  const std::size_t count = numbers_in("/proc/self/fd").size();
  return count > 0 ? count - 1 : 0;  // without that by which the folder was read
}

std::size_t descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;  // RLIM_INFINITY is the largest number
}

std::size_t max_waiting_clients() {
  return std::min(descriptor_limit() / kClientsShare, kMaxWaitingClients);
}

std::size_t most_workers() {
  const std::size_t limit = descriptor_limit();
  const std::size_t others = kReservedDescriptors + max_waiting_clients();
  const std::size_t for_workers = limit > 2 * others ? limit - others : limit / 2;
  return std::min(for_workers / kDescriptorsPerWorker, kMaxWorkers);
}

}  // namespace filetimer
