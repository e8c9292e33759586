// SPDX-License-Identifier: MIT
#include "timer_server/evidence/stacks_helper.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <vector>

#include "common/limits.hpp"
#include "common/mutex.hpp"
#include "common/numbers.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {
namespace {

// Relative to the folder of the server's program: in a build tree, and in an installation.
constexpr std::array<const char*, 2> kPlaces{"filetimer-stacks",
                                             FILETIMER_LIBEXEC_FROM_BIN "/filetimer-stacks"};
// How long a helper may take to exit after SIGKILL.
constexpr Duration kEndLimit = std::chrono::milliseconds{100};
// How long is_own_helper() knows the pid of a helper that has ended.
constexpr Duration kRemembered = std::chrono::seconds{1};

// The pids of all helpers that run, or that ended less than kRemembered ago.
class HelperPids {
 public:
  static HelperPids& all() {
    static HelperPids pids;
    return pids;
  }

  void add(pid_t pid) {
    const MutexLock lock(mutex_);
    const Instant now = Instant::now();
    std::erase_if(helpers_, [&](const Helper& helper) {
      return helper.ended && now - *helper.ended > kRemembered;
    });
    helpers_.push_back({pid, std::nullopt});
  }
  void set_ended(pid_t pid) {
    const MutexLock lock(mutex_);
    const auto helper = std::ranges::find_if(
        helpers_, [pid](const Helper& each) { return each.pid == pid && !each.ended; });
    helper->ended = Instant::now();
  }
  bool contains(pid_t pid) {
    const MutexLock lock(mutex_);
    const Instant now = Instant::now();
    return std::ranges::any_of(helpers_, [&](const Helper& helper) {
      return helper.pid == pid && (!helper.ended || now - *helper.ended <= kRemembered);
    });
  }

 private:
  struct Helper {
    pid_t pid = 0;
    std::optional<Instant> ended;
  };
  Mutex mutex_;
  std::vector<Helper> helpers_ FILETIMER_GUARDED_BY(mutex_);
};

Result<std::string> helper_path() {
  const std::string folder = folder_of_this_program();
  for (const char* const place : kPlaces) {
    std::string path = fmt::format("{}{}", folder, place);
    if (::access(path.c_str(), X_OK) == 0) {
      return path;
    }
  }
  return failure(fmt::format("'{}{}' is missing", folder, kPlaces[0]));
}

// What posix_spawn() does in the helper before the execve().
class HelperSetup {
 public:
  explicit HelperSetup(int socket) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_adddup2(&actions_, socket, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, STDIN_FILENO, STDOUT_FILENO);
    ::posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    // The descriptors are closed here and not by the execve(), which may wait for a hung file
    // system. While the request pipe is open, clients and the next server take this server for its
    // reader.
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
    ::posix_spawnattr_init(&attributes_);
    sigset_t signals{};
    ::sigfillset(&signals);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
    ::sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes_, &signals);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  ~HelperSetup() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  HelperSetup(const HelperSetup&) = delete;
  HelperSetup& operator=(const HelperSetup&) = delete;

  int spawn(pid_t& pid, const std::string& path, char* const* environment) const {
    const std::array<char*, 2> arguments{const_cast<char*>(path.c_str()), nullptr};  // NOLINT
    return ::posix_spawn(&pid, path.c_str(), &actions_, &attributes_, arguments.data(),
                         environment);
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

// Returns after the execve(), which waits for a hung file system: the side thread waits then, and
// the kill goes on when the time for evidence is up. A fork() would not wait, but copies the page
// tables of the server for each of many helpers. enter_realtime() makes sure that the child has
// ordinary scheduling.
Result<OwnChild> spawn_helper(const std::string& path, int socket) {
  // The helper gets LD_LIBRARY_PATH only. Other variables may preload libraries (LD_PRELOAD), or
  // make libdw download debug files (DEBUGINFOD_URLS).
  std::string libraries = "LD_LIBRARY_PATH=";
  const char* const where = std::getenv("LD_LIBRARY_PATH");
  libraries += where == nullptr ? "" : where;
  const std::array<char*, 2> environment{where == nullptr ? nullptr : libraries.data(), nullptr};
  const HelperSetup setup(socket);
  int error = 0;
  OwnChild child = OwnChild::start([&] {
    pid_t pid = 0;
    error = setup.spawn(pid, path, environment.data());
    return error == 0 ? pid : 0;
  });
  if (!child) {
    return system_error(fmt::format("cannot run '{}'", path), error);
  }
  return child;
}

// Returns the timeout for poll(), rounded up.
int poll_timeout(Instant until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Instant::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, INT_MAX));
}

bool send_line(int socket, const std::string& line) {
  return ::send(socket, line.data(), line.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(line.size());
}

int yama_scope() {
  const auto text = read_small_file("/proc/sys/kernel/yama/ptrace_scope");
  std::string_view rest = text ? std::string_view(*text) : std::string_view{};
  return take_number<int>(rest).value_or(0);
}

bool has_ptrace_capability() {
  constexpr std::uint64_t kCapSysPtrace = std::uint64_t{1} << 19;
  const auto status = read_status("/proc/self");
  return status && (status->effective_capabilities & kCapSysPtrace) != 0;
}

}  // namespace

bool may_trace() {
  return yama_scope() == 0 || (yama_scope() < 3 && has_ptrace_capability());
}

EvidenceLevel most_evidence_allowed() {
  return yama_scope() <= 1 || may_trace() ? EvidenceLevel::kStacks : EvidenceLevel::kProc;
}

bool is_own_helper(pid_t tracer) {
  return HelperPids::all().contains(tracer);
}

Result<StacksHelper> StacksHelper::start(pid_t pid, std::uint64_t start_time, Instant until) {
  auto path = helper_path();
  FILETIMER_TRY(path);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_error("cannot make a socket");
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  auto helper = spawn_helper(*path, theirs.get());
  FILETIMER_TRY(helper);
  // The pid is noted before the request is sent: no worker can have an unknown helper as its
  // tracer.
  HelperPids::all().add(helper->pid());
  UniqueFd pidfd = open_pidfd(helper->pid());
  StacksHelper started(std::move(*helper), std::move(pidfd), std::move(ours), until);
  if (!send_line(started.socket_.get(), fmt::format("{} {} {} {}\n", pid, start_time, ::getpid(),
                                                    std::max(poll_timeout(until), 1)))) {
    return failure("the helper " + started.end());
  }
  return started;
}

StacksHelper::StacksHelper(StacksHelper&& other) noexcept
    : child_(std::move(other.child_)),
      pidfd_(std::move(other.pidfd_)),
      socket_(std::move(other.socket_)),
      until_(other.until_) {}

// Does not wait: reap_orphans() reaps the helper. It stops a worker in collect() only.
StacksHelper::~StacksHelper() {
  if (child_) {
    ::kill(child_.pid(), SIGKILL);
    HelperPids::all().set_ended(child_.pid());
  }
}

std::string StacksHelper::end() {
  const pid_t pid = child_.pid();
  ::kill(pid, SIGKILL);  // the child is not reaped yet, so the pid cannot be another process's
  pollfd ended{pidfd_.get(), POLLIN, 0};
  const int bound = poll_timeout(Instant::now() + kEndLimit);
  retry_eintr([&] { return ::poll(&ended, 1, bound); });
  const auto how = child_.reap();
  child_ = {};  // reap_orphans() reaps a helper that has not exited yet
  HelperPids::all().set_ended(pid);
  if (!how) {
    return "did not exit after SIGKILL";
  }
  return how->exit_status ? fmt::format("ended with status {}", *how->exit_status)
                          : fmt::format("was ended by signal {}", how->signal);
}

// Reads until the helper closes its end, its time is up, or the answer has kMaxStacksBytes.
std::string StacksHelper::read_answer(bool& is_in_time) {
  std::string answer;
  std::array<char, 65536> bytes;
  is_in_time = true;
  while (answer.size() < kMaxStacksBytes) {
    pollfd more{socket_.get(), POLLIN, 0};
    if (retry_eintr([&] { return ::poll(&more, 1, poll_timeout(until_)); }) <= 0) {
      is_in_time = false;
      break;
    }
    const ssize_t got =
        retry_eintr([&] { return ::read(socket_.get(), bytes.data(), bytes.size()); });
    if (got <= 0) {
      break;
    }
    answer.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return answer;
}

void StacksHelper::collect(Evidence& evidence) {
  bool is_in_time = false;
  send_line(socket_.get(), "go\n");  // a failure shows as an answer without an end
  const std::string answer = read_answer(is_in_time);
  if (is_in_time && answer.size() < kMaxStacksBytes) {
    // The helper has closed its end and is about to exit. Waiting for that keeps end() from killing
    // it, so that `how` tells its own exit status.
    pollfd ended{pidfd_.get(), POLLIN, 0};
    retry_eintr([&] { return ::poll(&ended, 1, poll_timeout(until_)); });
  }
  const std::string how = end();
  if (!parse_stacks(answer, evidence)) {
    evidence.add_missing(is_in_time
                             ? fmt::format("native stacks are incomplete: the helper {}", how)
                             : "native stacks are incomplete: time was up");
  }
}

bool parse_stacks(std::string_view answer, Evidence& evidence) {
  ThreadEvidence* thread = nullptr;
  bool is_whole = false;
  std::size_t at = 0;
  // A line without a newline is incomplete and ignored.
  for (std::size_t end = answer.find('\n'); end != answer.npos; end = answer.find('\n', at)) {
    const std::string_view line = answer.substr(at, end - at);
    at = end + 1;
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string_view key = line.substr(0, space);
    const std::string_view text =
        line.substr(std::min(space + 1, line.size())).substr(0, kMaxFrameBytes);
    if (key == "thread") {
      thread = nullptr;
      std::istringstream tids{std::string(line.substr(space))};
      for (pid_t tid = 0; tids >> tid;) {
        const auto found = std::ranges::find(evidence.threads, tid, &ThreadEvidence::tid);
        if (found != evidence.threads.end() && thread != nullptr) {
          found->native_stack_of = thread->tid;
        } else if (found != evidence.threads.end()) {
          thread = &*found;
        }
      }
    } else if (key == "frame" && thread != nullptr &&
               thread->native_stack.size() < kMaxStackFrames) {
      thread->native_stack.emplace_back(text);
    } else if (key == "cut" && thread != nullptr) {
      thread->native_stack.push_back(fmt::format("... {}", text));
      thread = nullptr;
    } else if (key == "note") {
      evidence.add_missing(text);
    } else if (key == "stopped_us") {
      if (const auto us = number_from<std::int64_t>(text)) {
        evidence.held_ms = static_cast<double>(*us) / 1000;
      }
    } else if (key == "end") {
      is_whole = true;
    }
  }
  return is_whole;
}

}  // namespace filetimer
