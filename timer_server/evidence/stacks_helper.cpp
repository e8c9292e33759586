// SPDX-License-Identifier: MIT
#include "timer_server/evidence/stacks_helper.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <vector>

#include "common/limits.hpp"
#include "timer_server/process.hpp"

namespace filetimer {
namespace {

// Seen from the server's own folder: the build's, an installation's.
constexpr std::array<const char*, 2> kPlaces{"filetimer-stacks", FILETIMER_STACKS_FROM_BIN};
// A helper that was killed is gone at once, unless the kernel does not let it die.
constexpr Duration kEndLimit = std::chrono::milliseconds{100};
// For how long a helper is still known after its end.
constexpr Duration kRemembered = std::chrono::seconds{1};
// The exit status of a helper that could not be executed, as a shell has it.
constexpr int kNotExecuted = 127;

// The pids of all helpers that may be about, and those of some that are not any more.
class Helpers {
 public:
  static Helpers& all() {
    static Helpers helpers;
    return helpers;
  }

  void add(pid_t pid) {
    const std::lock_guard lock(mutex_);
    const Instant now = Instant::now();
    std::erase_if(helpers_, [&](const Helper& helper) {
      return helper.ended && now - *helper.ended > kRemembered;
    });
    helpers_.push_back({pid, std::nullopt});
  }
  void ended(pid_t pid) {
    const std::lock_guard lock(mutex_);
    const auto helper = std::ranges::find_if(
        helpers_, [pid](const Helper& each) { return each.pid == pid && !each.ended; });
    helper->ended = Instant::now();
  }
  bool contains(pid_t pid) {
    const std::lock_guard lock(mutex_);
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
  std::mutex mutex_;
  std::vector<Helper> helpers_;
};

Result<std::string> helper_path() {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlink("/proc/self/exe", target.data(), target.size());
  if (length <= 0) {
    return system_error("cannot read '/proc/self/exe'");
  }
  const std::string_view own(target.data(), static_cast<std::size_t>(length));
  const std::string_view folder = own.substr(0, own.rfind('/') + 1);
  for (const char* const place : kPlaces) {
    std::string path = fmt::format("{}{}", folder, place);
    if (::access(path.c_str(), X_OK) == 0) {
      return path;
    }
  }
  return failure(fmt::format("'{}{}' is missing", folder, kPlaces[0]));
}

// From here to the execution: nothing but system calls. Another thread may have held any lock.
[[noreturn]] void run_helper(const char* path, int socket, char* const* environment) {
  for (int signal = 1; signal < NSIG; ++signal) {
    ::signal(signal, SIG_DFL);
  }
  // Away from 0 to 2 first: what stands there already would stay close-on-exec.
  const int away = ::fcntl(socket, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (away < 0 || nowhere < 0) {
    ::_exit(kNotExecuted);
  }
  ::dup2(away, STDIN_FILENO);
  ::dup2(away, STDOUT_FILENO);
  ::dup2(nowhere, STDERR_FILENO);
  // Now, not at the execution: a file system that hangs may keep that waiting, and an open request
  // pipe would tell clients and the next server that this one still reads it.
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  sigset_t none{};
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const std::array<char*, 2> arguments{const_cast<char*>(path), nullptr};  // NOLINT: execve's types
  ::execve(path, arguments.data(), environment);
  ::_exit(kNotExecuted);
}

// fork() and not posix_spawn(), which waits for an execution that a hung file system may keep
// waiting. Scheduling is ordinary again in what is forked, by enter_realtime().
Result<OwnChild> fork_helper(const std::string& path, int socket) {
  // Nothing of our environment, which may preload libraries or name servers of debug files, but
  // where libraries are found.
  std::string libraries = "LD_LIBRARY_PATH=";
  const char* const where = std::getenv("LD_LIBRARY_PATH");
  libraries += where == nullptr ? "" : where;
  const std::array<char*, 2> environment{where == nullptr ? nullptr : libraries.data(), nullptr};
  int error = 0;
  OwnChild child = OwnChild::start([&] {
    const pid_t pid = ::fork();
    error = errno;
    if (pid == 0) {
      run_helper(path.c_str(), socket, environment.data());
    }
    return pid;
  });
  if (!child) {
    return system_error(fmt::format("cannot run '{}'", path), error);
  }
  return child;
}

// Milliseconds for poll(), rounded up.
int left_until(Instant until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Instant::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, INT_MAX));
}

bool send_line(int socket, const std::string& line) {
  return ::send(socket, line.data(), line.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(line.size());
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(number)
                                                                  : std::nullopt;
}

int yama_scope() {
  const auto text = read_small_file("/proc/sys/kernel/yama/ptrace_scope");
  return text ? number_of<int>(std::string_view(*text).substr(0, text->find('\n'))).value_or(0) : 0;
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
  return Helpers::all().contains(tracer);
}

Result<StacksHelper> StacksHelper::start(pid_t pid, std::uint64_t start_time, Instant until) {
  auto path = helper_path();
  if (!path) {
    return tl::unexpected<Error>(std::move(path.error()));
  }
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_error("cannot make a socket");
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  auto helper = fork_helper(*path, theirs.get());
  if (!helper) {
    return tl::unexpected<Error>(helper.error());
  }
  // Before it knows whom to trace.
  Helpers::all().add(helper->pid());
  UniqueFd pidfd = open_pidfd(helper->pid());
  StacksHelper started(std::move(*helper), std::move(pidfd), std::move(ours), until);
  if (!send_line(started.socket_.get(), fmt::format("{} {} {} {}\n", pid, start_time, ::getpid(),
                                                    std::max(left_until(until), 1)))) {
    return failure("the helper " + started.end());
  }
  return started;
}

StacksHelper::StacksHelper(StacksHelper&& other) noexcept
    : child_(std::move(other.child_)),
      pidfd_(std::move(other.pidfd_)),
      socket_(std::move(other.socket_)),
      until_(other.until_) {}

StacksHelper::~StacksHelper() {
  if (child_) {
    end();
  }
}

// Kills it, and says how it had ended by then.
std::string StacksHelper::end() {
  const pid_t pid = child_.pid();
  ::kill(pid, SIGKILL);  // our child and not reaped: the pid is its own
  pollfd ended{pidfd_.get(), POLLIN, 0};
  const int bound = left_until(Instant::now() + kEndLimit);
  retry_eintr([&] { return ::poll(&ended, 1, bound); });
  const auto how = child_.reap();
  child_ = {};  // one that does not die is nobody's now, and reaped when it does
  Helpers::all().ended(pid);
  if (!how) {
    return "does not die";
  }
  if (how->exit_status == kNotExecuted) {
    return "could not be executed";
  }
  return how->exit_status ? fmt::format("ended with status {}", *how->exit_status)
                          : fmt::format("was ended by signal {}", how->signal);
}

// All that it says until it closes its end, its time is up, or it was too much.
std::string StacksHelper::read_answer(bool& is_in_time) {
  std::string answer;
  std::array<char, 65536> bytes;
  is_in_time = true;
  while (answer.size() < kMaxStacksBytes) {
    pollfd more{socket_.get(), POLLIN, 0};
    if (retry_eintr([&] { return ::poll(&more, 1, left_until(until_)); }) <= 0) {
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
  send_line(socket_.get(), "go\n");  // if it has ended, that is seen in a moment
  const std::string answer = read_answer(is_in_time);
  if (is_in_time && answer.size() < kMaxStacksBytes) {
    // It has closed its end, and ends: so that its status is its own.
    pollfd ended{pidfd_.get(), POLLIN, 0};
    retry_eintr([&] { return ::poll(&ended, 1, left_until(until_)); });
  }
  const std::string how = end();
  if (!take_stacks(answer, evidence)) {
    evidence.miss(is_in_time ? fmt::format("native stacks are not whole: the helper {}", how)
                             : "native stacks are not whole: time was up");
  }
}

bool take_stacks(std::string_view answer, Evidence& evidence) {
  ThreadEvidence* thread = nullptr;
  bool is_whole = false;
  std::size_t at = 0;
  // A line without its end was cut.
  for (std::size_t end = answer.find('\n'); end != answer.npos; end = answer.find('\n', at)) {
    const std::string_view line = answer.substr(at, end - at);
    at = end + 1;
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string_view key = line.substr(0, space);
    const std::string_view text =
        line.substr(std::min(space + 1, line.size())).substr(0, kMaxFrameBytes);
    if (key == "thread") {
      const auto tid = number_of<pid_t>(text);
      const auto found = std::ranges::find_if(
          evidence.threads, [&](const ThreadEvidence& each) { return each.tid == tid; });
      thread = found == evidence.threads.end() ? nullptr : &*found;
    } else if (key == "frame" && thread != nullptr &&
               thread->native_stack.size() < kMaxStackFrames) {
      thread->native_stack.emplace_back(text);
    } else if (key == "cut" && thread != nullptr) {
      thread->native_stack.push_back(fmt::format("... {}", text));
      thread = nullptr;
    } else if (key == "note") {
      evidence.miss(text);
    } else if (key == "stopped_us") {
      if (const auto us = number_of<std::int64_t>(text)) {
        evidence.held_ms = static_cast<double>(*us) / 1000;
      }
    } else if (key == "end") {
      is_whole = true;
    }
  }
  return is_whole;
}

}  // namespace filetimer
