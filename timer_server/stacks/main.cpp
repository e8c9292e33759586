// filetimer-stacks, the stacks helper: reads the native stacks of workers, one after the other.
// timer_server starts it. It is a program of its own because reading the memory and the libraries
// of a broken process may crash or hang. That costs the evidence, but neither the server nor the
// worker anything (see Tracees).
//
// Two lines of standard input are a request:
//   PID START_TIME SERVER_PID MILLISECONDS   the worker, the server, the time for everything
//   go                                       the worker may be stopped now
// Between the two lines the helper reads the files of the worker's code, while the worker runs.
// The answer on standard output may end anywhere; each line is useful without the next ones:
//   thread TID...  the frames that follow are of each of these threads
//   frame TEXT     a frame, the innermost first
//   cut TEXT       why further frames of the thread are missing
//   note TEXT      why something else is missing
//   stopped_us N   how long the worker was stopped; no such line: none of its threads was
//   again          the helper waits for another request; without this line it exits
//   end            the answer is complete
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/sanitizers.hpp"
#include "timer_server/stacks/unwinder.hpp"

namespace filetimer::stacks {
namespace {

using std::chrono::milliseconds;

// How long the worker may be stopped: until its threads have stopped, and then until the stacks
// have been read. Detaching from the threads comes on top.
constexpr milliseconds kStopLimit{100};
constexpr milliseconds kUnwindLimit{300};
// Limits allocated memory; mapped files do not count. The symbols of the largest libraries take
// some hundred megabytes.
[[maybe_unused]] constexpr rlim_t kMaxMemory = rlim_t{1} << 30;

// Stops the threads so that the worker survives a helper that is killed at any moment. PTRACE_SEIZE
// and PTRACE_INTERRUPT are used, never PTRACE_ATTACH: that sends SIGSTOP, and a tracer that is
// killed before it resumes the process leaves it stopped for good. When the tracer of a seized
// process exits, the kernel detaches it and the process runs on, neither stopped nor traced. For
// the same reason no ptrace option is set, PTRACE_O_EXITKILL in particular.
//
// All members are called from one thread: ptrace requests must come from the thread that seized.
class Tracees {
 public:
  explicit Tracees(pid_t pid) : pid_(pid) {}

  // Seizes the threads of the process, the main one first, at most kMaxEvidenceThreads. The threads
  // run on. Fails if no thread could be seized.
  Status seize();
  // Stops the threads. Returns when all have stopped, or after `bound`: a thread in uninterruptible
  // sleep does not stop. SIGCHLD must be blocked.
  void stop(std::chrono::nanoseconds bound);
  // Resumes the threads that have stopped by now. It is called again because others may stop later.
  // Returns whether no thread is traced any longer.
  bool release();

  enum class State { kRunning, kStopped, kGone };
  // Returns the seized threads in this state.
  [[nodiscard]] std::vector<pid_t> threads_in(State state) const;

 private:
  struct Tracee {
    pid_t tid = 0;
    State state = State::kRunning;
    int signal = 0;  // the signal that stopped the thread; passed on when it is resumed
  };
  // Notes which threads have stopped or exited.
  void read_wait_statuses();

  const pid_t pid_;
  std::vector<Tracee> tracees_;
};

Status Tracees::seize() {
  int why_not = ESRCH;
  // A thread that is not seized yet may start another one: look until there is no new thread.
  for (bool found_new = true; found_new;) {
    found_new = false;
    for (const pid_t tid : threads_of(pid_)) {
      const bool is_known =
          std::ranges::any_of(tracees_, [&](const Tracee& tracee) { return tracee.tid == tid; });
      if (is_known || tracees_.size() >= kMaxEvidenceThreads) {
        continue;
      }
      if (::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) == 0) {
        tracees_.push_back({.tid = tid});
        found_new = true;
      } else if (errno != ESRCH) {
        why_not = errno;
      }
    }
  }
  if (tracees_.empty()) {
    return system_error(fmt::format("cannot trace pid {}", pid_), why_not);
  }
  return {};
}

void Tracees::stop(std::chrono::nanoseconds bound) {
  const Instant end = Instant::now() + bound;
  for (const Tracee& tracee : tracees_) {
    ::ptrace(PTRACE_INTERRUPT, tracee.tid, nullptr, nullptr);
  }
  const sigset_t child = signal_set({SIGCHLD});
  for (;;) {
    read_wait_statuses();
    const std::int64_t left = (end - Instant::now()).count();
    if (left <= 0 || threads_in(State::kRunning).empty()) {
      return;
    }
    const timespec timeout{static_cast<time_t>(left / 1'000'000'000),
                           static_cast<long>(left % 1'000'000'000)};
    (void)::sigtimedwait(&child, nullptr, &timeout);  // a stop raises SIGCHLD
  }
}

void Tracees::read_wait_statuses() {
  int status = 0;
  // __WALL: a thread is not waited for as a child process is.
  for (pid_t tid = 0; (tid = ::waitpid(-1, &status, __WALL | WNOHANG)) > 0;) {
    const auto found = std::ranges::find(tracees_, tid, &Tracee::tid);
    if (found == tracees_.end()) {
      continue;
    }
    found->state = WIFSTOPPED(status) ? State::kStopped : State::kGone;
    // A thread stops for PTRACE_INTERRUPT, for an earlier SIGSTOP, or to report a signal that it is
    // about to get. That signal must be passed on.
    const bool is_signal = WIFSTOPPED(status) && status >> 16 != PTRACE_EVENT_STOP;
    found->signal = is_signal ? WSTOPSIG(status) : 0;
  }
}

bool Tracees::release() {
  read_wait_statuses();
  bool are_gone = true;
  for (Tracee& tracee : tracees_) {
    // A thread that was killed since then cannot be resumed, and its exit is read in the next call.
    if (tracee.state == State::kStopped &&
        ::ptrace(PTRACE_DETACH, tracee.tid, nullptr,
                 reinterpret_cast<void*>(std::intptr_t{tracee.signal})) == 0) {
      tracee.state = State::kGone;
    }
    are_gone = are_gone && tracee.state == State::kGone;
  }
  return are_gone;
}

std::vector<pid_t> Tracees::threads_in(State state) const {
  std::vector<pid_t> tids;
  for (const Tracee& tracee : tracees_) {
    if (tracee.state == state) {
      tids.push_back(tracee.tid);
    }
  }
  return tids;
}

struct Request {
  pid_t pid = 0;
  unsigned long long start_time = 0;
  pid_t server = 0;
  long time_limit_ms = 0;
};

bool read_request(Request& request) {
  char line[128] = {};
  return std::fgets(line, sizeof line, stdin) != nullptr &&
         std::sscanf(line, "%d %llu %d %ld", &request.pid, &request.start_time, &request.server,
                     &request.time_limit_ms) == 4;
}

bool wait_for_go() {
  char line[8] = {};
  return std::fgets(line, sizeof line, stdin) != nullptr && std::string_view(line) == "go\n";
}

// Makes the kernel kill the helper first when memory is short. The server may have protected itself
// from that, and a child inherits the protection.
void set_oom_score() {
  if (std::FILE* const file = std::fopen("/proc/self/oom_score_adj", "w")) {
    std::fputs("1000", file);
    std::fclose(file);
  }
}

// Limits the memory of the helper, and ends it with its server.
void limit_resources(const Request& request) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != request.server) {
    ::_exit(1);  // the server ended before PR_SET_PDEATHSIG
  }
  ::signal(SIGALRM, SIG_DFL);
  ::prctl(PR_SET_DUMPABLE, 0);  // a crash leaves no core file
  if (!kIsSanitized) {          // sanitizers map terabytes
    const rlimit memory{kMaxMemory, kMaxMemory};
    ::setrlimit(RLIMIT_DATA, &memory);
  }
  const sigset_t child = signal_set({SIGCHLD});
  ::sigprocmask(SIG_SETMASK, &child, nullptr);
}

// Ends the helper after so long; 0: not. The server kills a helper that takes too long, but a
// killed server cannot.
void limit_time(long ms) {
  const itimerval limit{{}, {ms / 1000, static_cast<suseconds_t>(ms % 1000 * 1000)}};
  ::setitimer(ITIMER_REAL, &limit, nullptr);
}

void note(std::string_view text) {
  fmt::print("note {}\n", text);
}

void answer_without_stacks(const std::string& why) {
  note("no native stacks: " + why);
}

// Returns whether the pid still belongs to the worker.
bool is_same_process(const Request& request) {
  const auto stat = read_stat(fmt::format("/proc/{}", request.pid));
  return stat && stat->start_time == request.start_time;
}

std::string why_untraceable(const Request& request, const std::string& error) {
  const auto status = read_status(fmt::format("/proc/{}", request.pid));
  return status && status->tracer != 0 ? fmt::format("{} (pid {} traces it)", error, status->tracer)
                                       : error;
}

// Adds a stack, or its thread to an equal stack.
void fold_into(std::vector<Stack>& folded, Stack stack) {
  const auto equal = std::ranges::find_if(folded, [&](const Stack& each) {
    return each.frames == stack.frames && each.ended_early == stack.ended_early;
  });
  if (equal == folded.end()) {
    folded.push_back(std::move(stack));
  } else {
    equal->tids.push_back(stack.tids.front());
  }
}

// Stops the worker, reads its stacks without names, and resumes it.
std::vector<Stack> read_stacks(Unwinder& unwinder, Tracees& tracees) {
  std::vector<Stack> stacks;
  const Instant begin = Instant::now();
  tracees.stop(kStopLimit);
  const std::vector<pid_t> are_stopped = tracees.threads_in(Tracees::State::kStopped);
  for (const pid_t tid : are_stopped) {
    if (Instant::now() - begin >= kStopLimit + kUnwindLimit) {
      note("not all native stacks: the worker was stopped for the longest time allowed");
      break;
    }
    Stack stack = unwinder.unwind(tid);
    const bool is_empty = stack.frames.empty();
    fold_into(stacks, std::move(stack));
    if (is_empty) {
      // A stopped thread has no frames only if its process was killed. libdw would abort if asked
      // for the next thread.
      break;
    }
  }
  const std::vector<pid_t> running = tracees.threads_in(Tracees::State::kRunning);
  tracees.release();
  const auto stopped =
      std::chrono::duration_cast<std::chrono::microseconds>(Instant::now() - begin);
  if (!are_stopped.empty()) {
    fmt::print("stopped_us {}\n", stopped.count());
  }
  for (const pid_t tid : running) {
    note(fmt::format("no native stack of thread {}: it did not stop", tid));
  }
  return stacks;
}

// Returns whether the worker is no longer traced, so that another request can be answered. A thread
// that has not stopped yet is let go when the helper exits.
bool answer(const Request& request, ElfFiles& elf_files) {
  auto unwinder = is_same_process(request) ? Unwinder::prepare(request.pid, elf_files)
                                           : failure("the process had ended");
  if (!wait_for_go()) {
    return false;
  }
  if (!unwinder) {
    answer_without_stacks(unwinder.error().message);
    return true;
  }
  Tracees tracees(request.pid);
  if (Status seized = tracees.seize(); !seized) {
    answer_without_stacks(why_untraceable(request, seized.error().message));
    return true;
  }
  // A seized thread keeps its pid in use, so this check stays true. Another process has not been
  // stopped by now, and runs on untraced when the helper exits.
  if (!is_same_process(request)) {
    answer_without_stacks("the process had ended");
    return false;
  }
  const std::vector<Stack> stacks = read_stacks(**unwinder, tracees);
  for (const Stack& stack : stacks) {
    (*unwinder)->will_name(stack);
  }
  for (const Stack& stack : stacks) {
    fmt::print("thread {}\n", fmt::join(stack.tids, " "));
    for (const Stack::Frame& frame : stack.frames) {
      fmt::print("frame {}\n", (*unwinder)->name(frame));
      tracees.release();
    }
    if (!stack.ended_early.empty()) {
      fmt::print("cut {}\n", stack.ended_early);
    }
    std::fflush(stdout);
  }
  if (const auto& files = (*unwinder)->not_found(); !files.empty()) {
    note(fmt::format("files of code that were not found: {}", fmt::join(files, ", ")));
  }
  return tracees.release();
}

int run() {
  Request request;
  if (!read_request(request)) {
    fmt::print(stderr, "filetimer-stacks: started by timer_server, not by hand\n");
    return 2;
  }
  set_oom_score();  // by a user without privileges only while the process is dumpable
  limit_resources(request);
  ElfFiles elf_files;
  for (bool may_go_on = true; may_go_on;) {
    limit_time(request.time_limit_ms);
    may_go_on = answer(request, elf_files);
    limit_time(0);
    fmt::print("{}end\n", may_go_on ? "again\n" : "");
    std::fflush(stdout);
    may_go_on = may_go_on && read_request(request);
  }
  return 0;
}

}  // namespace
}  // namespace filetimer::stacks

int main() {
  try {
    return filetimer::stacks::run();
  } catch (const std::exception& error) {
    filetimer::stacks::answer_without_stacks(error.what());
    fmt::print("end\n");
  }
}
