// SPDX-License-Identifier: MIT
#include "timer_server/evidence/stacks_helper.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {
namespace {

// Relative to the folder of the server's program: in a build tree, and in an installation.
constexpr std::array<const char*, 2> kPlaces{"filetimer-stacks",
                                             FILETIMER_LIBEXEC_FROM_BIN "/filetimer-stacks"};
// How long a helper may take to exit after SIGKILL.
constexpr Duration kEndLimit = std::chrono::milliseconds{100};
constexpr std::string_view kLastLine = "\nend\n";
constexpr std::string_view kLastLines = "\nagain\nend\n";  // of a helper that is idle then

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

// The helper gets LD_LIBRARY_PATH only. Other variables may preload libraries (LD_PRELOAD), or make
// libdw download debug files (DEBUGINFOD_URLS).
std::vector<std::string> helper_environment() {
  const char* const libraries = std::getenv("LD_LIBRARY_PATH");
  return libraries == nullptr ? std::vector<std::string>{}
                              : std::vector{fmt::format("LD_LIBRARY_PATH={}", libraries)};
}

bool send_line(int socket, const std::string& line) {
  return ::send(socket, line.data(), line.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(line.size());
}

int yama_scope() {
  return std::atoi(read_small_file("/proc/sys/kernel/yama/ptrace_scope").value_or("").c_str());
}

}  // namespace

bool may_trace() {
  const int scope = yama_scope();
  if (scope == 0) {
    return true;
  }
  constexpr std::uint64_t kCapSysPtrace = std::uint64_t{1} << 19;
  const auto status = read_status("/proc/self");
  return scope < 3 && status && (status->effective_capabilities & kCapSysPtrace) != 0;
}

EvidenceLevel most_evidence_allowed() {
  return yama_scope() <= 1 || may_trace() ? EvidenceLevel::kStacks : EvidenceLevel::kProc;
}

Result<StacksHelper> StacksHelper::start(pid_t pid, std::uint64_t start_time, Instant until) {
  const auto path = helper_path();
  FILETIMER_TRY(path);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_error("cannot make a socket");
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  auto child = start_child({.words = {*path},
                            .environment = helper_environment(),
                            .output = theirs.get(),
                            .input = theirs.get(),
                            .is_helper = true});
  FILETIMER_TRY(child);
  theirs.reset();
  StacksHelper started(std::move(*child), std::move(ours));
  if (!started.begin_next(pid, start_time, until)) {
    return failure("the helper " + started.end());
  }
  return started;
}

bool StacksHelper::begin_next(pid_t pid, std::uint64_t start_time, Instant until) {
  is_idle_ = false;
  until_ = until;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Instant::now()).count();
  return send_line(socket_.get(), fmt::format("{} {} {} {}\n", pid, start_time, ::getpid(),
                                              std::max<std::int64_t>(left, 1)));
}

// Does not wait: reap_orphans() reaps the helper. It stops a worker in collect() only.
StacksHelper::~StacksHelper() {
  child_.kill(SIGKILL);
}

std::string StacksHelper::end() {
  child_.kill(SIGKILL);
  (void)child_.has_ended_within(kEndLimit);
  const auto how = child_.reap();
  child_ = {};  // reap_orphans() reaps a helper that has not exited yet
  if (!how) {
    return "did not exit after SIGKILL";
  }
  return how->exit_status ? fmt::format("ended with status {}", *how->exit_status)
                          : fmt::format("was ended by signal {}", how->signal);
}

// Reads until the answer is complete, the helper closes its end, its time is up, or the answer has
// kMaxStacksBytes.
std::string StacksHelper::read_answer(bool& is_in_time) {
  std::string answer;
  std::array<char, 8192> bytes;  // a thread may have a small stack (ulimit -s)
  is_in_time = true;
  while (answer.size() < kMaxStacksBytes && !answer.ends_with(kLastLine)) {
    if (!is_readable_within(socket_.get(), until_ - Instant::now())) {
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
  if (parse_stacks(answer, evidence)) {
    is_idle_ = answer.ends_with(kLastLines);
    if (!is_idle_) {
      child_.kill(SIGKILL);
      child_ = {};  // no signal waits for the exit of the helper; reap_orphans() reaps it
    }
    return;
  }
  if (is_in_time && answer.size() < kMaxStacksBytes) {
    // The helper has closed its end and is about to exit. Waiting for that keeps end() from killing
    // it, so that its own exit status is named.
    (void)child_.has_ended_within(until_ - Instant::now());
  }
  const std::string how = end();
  evidence.add_missing(is_in_time ? fmt::format("native stacks are incomplete: the helper {}", how)
                                  : "native stacks are incomplete: time was up");
}

Result<StacksHelper> IdleStacksHelpers::start(pid_t pid, std::uint64_t start_time, Instant until) {
  for (;;) {
    MutexLock lock(mutex_);
    if (helpers_.empty()) {
      break;
    }
    StacksHelper helper = std::move(helpers_.back());
    helpers_.pop_back();
    lock.unlock();
    if (helper.begin_next(pid, start_time, until)) {
      return helper;
    }
  }
  return StacksHelper::start(pid, start_time, until);
}

void IdleStacksHelpers::keep(StacksHelper helper) {
  const MutexLock lock(mutex_);
  if (helpers_.size() < kMost) {
    helpers_.push_back(std::move(helper));
  }
}

void IdleStacksHelpers::clear() {
  const MutexLock lock(mutex_);
  helpers_.clear();
}

bool parse_stacks(std::string_view answer, Evidence& evidence) {
  ThreadEvidence* thread = nullptr;
  bool is_whole = false;
  answer = answer.substr(0, answer.rfind('\n') + 1);  // a line without a newline is incomplete
  while (!answer.empty()) {
    std::string_view rest = take_until(answer, '\n');
    const std::string_view key = take_until(rest, ' ');
    const std::string_view text = rest.substr(0, kMaxFrameBytes);
    if (key == "thread") {
      thread = nullptr;
      std::istringstream tids{std::string(rest)};
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
