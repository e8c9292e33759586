// SPDX-License-Identifier: MIT
#include "timer_server/system/own_children.hpp"

#include <sys/wait.h>

#include <algorithm>

#include "common/mutex.hpp"
#include "common/posix.hpp"

namespace filetimer {
namespace {

// A start that takes longer hangs in a file system. A child without an owner is reaped then, and
// the one that is being started may be taken for one if it ends first.
constexpr Duration kLongestStart = std::chrono::seconds{1};

// The own children of the process.
struct Registry {
  Mutex mutex;
  std::vector<pid_t> pids FILETIMER_GUARDED_BY(mutex);
  // Children that are being started, whose pids are not known yet.
  std::size_t starting FILETIMER_GUARDED_BY(mutex) = 0;
  Instant last_start FILETIMER_GUARDED_BY(mutex);
};

Registry& registry() {
  static Registry* const one = new Registry;  // side threads may outlive main()
  return *one;
}

}  // namespace

OwnChild OwnChild::start(const std::function<pid_t()>& fork) {
  Registry& all = registry();
  OwnChild child;
  MutexLock lock(all.mutex);
  all.pids.reserve(all.pids.size() + all.starting + 1);  // push_back() must not fail after the fork
  ++all.starting;
  all.last_start = Instant::now();
  lock.unlock();
  child.pid_ = std::max(fork(), 0);
  lock.lock();
  --all.starting;
  if (child) {
    all.pids.push_back(child.pid_);
  }
  return child;
}

OwnChild& OwnChild::operator=(OwnChild&& other) noexcept {
  if (this != &other) {
    disown();
    pid_ = std::exchange(other.pid_, 0);
  }
  return *this;
}

// Holds the lock, so that the pid leaves the registry before another child can get it.
std::optional<ChildEnd> OwnChild::reap() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  siginfo_t info{};
  const int result = retry_eintr(
      [&] { return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG); });
  if (result == 0 && info.si_pid == 0) {
    return std::nullopt;
  }
  std::erase(all.pids, std::exchange(pid_, 0));
  ChildEnd end;
  if (result == 0 && info.si_code == CLD_EXITED) {
    end.exit_status = info.si_status;
  } else if (result == 0) {
    end.signal = info.si_status;
  }
  return end;
}

ChildEnd OwnChild::wait() {
  for (;;) {
    siginfo_t info{};
    retry_eintr([&] { return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT); });
    if (const auto end = reap()) {
      return *end;
    }
  }
}

void OwnChild::disown() {
  if (pid_ > 0 && !reap()) {
    Registry& all = registry();
    const MutexLock lock(all.mutex);
    std::erase(all.pids, std::exchange(pid_, 0));
  }
}

std::vector<pid_t> own_children() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  return all.pids;
}

bool reap_orphans(Instant now) {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  if (all.starting > 0 && now - all.last_start < kLongestStart) {
    return false;
  }
  for (;;) {
    siginfo_t info{};
    // WNOWAIT leaves the child to be reaped.
    const int result =
        retry_eintr([&] { return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT); });
    if (result != 0 || info.si_pid == 0) {
      return true;
    }
    if (std::ranges::find(all.pids, info.si_pid) != all.pids.end()) {
      return false;
    }
    retry_eintr(
        [&] { return ::waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG); });
  }
}

}  // namespace filetimer
