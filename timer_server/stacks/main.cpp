// filetimer-stacks: the native stacks of one process, for timer_server, which starts it. A program
// of its own because what it does can crash, hang or be killed at any moment: that costs the
// evidence, and neither the server nor the worker anything (see tracees.hpp).
//
// It is told what to do on standard input, in two lines:
//   PID START_TIME SERVER_PID MILLISECONDS   the worker, who asks, and how long all may take
//   go                                       when the worker may be stopped
// Between them it reads what it will need, while the worker runs on. It answers on standard output,
// a line each; what comes first is of use even if the rest does not come:
//   thread TID
//   frame TEXT     of that thread, the innermost first
//   cut TEXT       of that thread: there are more frames, and why they are not here
//   note TEXT      something that is missing
//   stopped_us N   how long the worker stood still
//   end
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/proc_files.hpp"
#include "common/sanitizers.hpp"
#include "timer_server/stacks/tracees.hpp"
#include "timer_server/stacks/unwinder.hpp"

namespace filetimer::stacks {
namespace {

using std::chrono::milliseconds;

// The worker stands still for at most so long, and a little for letting go of it: for its threads
// to stop, and then for the stacks to be read.
constexpr milliseconds kStopLimit{100};
constexpr milliseconds kUnwindLimit{300};
// What is allocated; mapped files do not count. A library's symbols take some hundred megabytes at
// the most.
[[maybe_unused]] constexpr rlim_t kMaxMemory = rlim_t{1} << 30;
constexpr std::size_t kMaxNamesTold = 8;

struct Request {
  pid_t pid = 0;
  unsigned long long start_time = 0;
  pid_t server = 0;
  long time_limit_ms = 0;
};

bool read_request(Request& request) {
  return std::scanf("%d %llu %d %ld\n", &request.pid, &request.start_time, &request.server,
                    &request.time_limit_ms) == 4;
}

bool wait_for_go() {
  char line[8] = {};
  return std::fgets(line, sizeof line, stdin) != nullptr && std::string_view(line) == "go\n";
}

// When memory is short this is the first to go. The server may stand under protection from that,
// which a child inherits.
void offer_oneself_to_the_oom_killer() {
  if (std::FILE* const file = std::fopen("/proc/self/oom_score_adj", "w")) {
    std::fputs("1000", file);
    std::fclose(file);
  }
}

// The server kills what takes too long; this is for a helper whose server is gone, too.
void limit_oneself(const Request& request) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != request.server) {
    ::_exit(1);
  }
  ::signal(SIGALRM, SIG_DFL);
  ::prctl(PR_SET_DUMPABLE, 0);  // should it crash, nobody wants its core
  const itimerval time_limit{{},
                             {request.time_limit_ms / 1000,
                              static_cast<suseconds_t>(request.time_limit_ms % 1000 * 1000)}};
  ::setitimer(ITIMER_REAL, &time_limit, nullptr);
  if (!kIsAddressSanitized && !kIsThreadSanitized) {  // which map terabytes
    const rlimit memory{kMaxMemory, kMaxMemory};
    ::setrlimit(RLIMIT_DATA, &memory);
  }
  sigset_t child{};
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
}

void note(std::string_view text) {
  fmt::print("note {}\n", text);
}

int give_up(const std::string& why) {
  note("no native stacks: " + why);
  fmt::print("end\n");
  return 0;
}

bool is_still(const Request& request) {
  const auto stat = read_stat(fmt::format("/proc/{}", request.pid));
  return stat && stat->start_time == request.start_time;
}

std::string why_untraceable(const Request& request, const std::string& error) {
  const auto status = read_status(fmt::format("/proc/{}", request.pid));
  return status && status->tracer != 0 ? fmt::format("{} (pid {} traces it)", error, status->tracer)
                                       : error;
}

std::string join(const std::vector<std::string>& names) {
  std::string list;
  for (std::size_t i = 0; i < names.size() && i < kMaxNamesTold; ++i) {
    list += (i == 0 ? "" : ", ") + names[i];
  }
  return names.size() > kMaxNamesTold
             ? fmt::format("{} and {} more", list, names.size() - kMaxNamesTold)
             : list;
}

// The part for which the worker stands still.
std::vector<Stack> read_stacks(Unwinder& unwinder, Tracees& tracees) {
  std::vector<Stack> stacks;
  const Instant begin = Instant::now();
  tracees.stop(kStopLimit);
  for (const pid_t tid : tracees.stopped()) {
    if (Instant::now() - begin >= kStopLimit + kUnwindLimit) {
      note("not all native stacks: the worker had stood still for long enough");
      break;
    }
    stacks.push_back(unwinder.unwind(tid));
    if (stacks.back().frames.empty()) {
      break;  // a stopped thread only ends with its process; libdw aborts if asked for another one
    }
  }
  const std::vector<pid_t> running = tracees.running();
  tracees.release();
  const auto stopped =
      std::chrono::duration_cast<std::chrono::microseconds>(Instant::now() - begin);
  fmt::print("stopped_us {}\n", stopped.count());
  for (const pid_t tid : running) {
    note(fmt::format("no native stack of thread {}: it did not stop", tid));
  }
  return stacks;
}

int run() {
  Request request;
  if (!read_request(request)) {
    fmt::print(stderr, "filetimer-stacks: started by timer_server, not by hand\n");
    return 2;
  }
  limit_oneself(request);
  offer_oneself_to_the_oom_killer();
  if (!is_still(request)) {
    return give_up("the process had ended");
  }
  auto unwinder = Unwinder::prepare(request.pid);
  if (!unwinder) {
    return give_up(unwinder.error().message);
  }
  if (!wait_for_go()) {
    return 1;
  }
  Tracees tracees(request.pid);
  if (!is_still(request)) {
    return give_up("the process had ended");
  }
  if (Status seized = tracees.seize(); !seized) {
    return give_up(why_untraceable(request, seized.error().message));
  }
  // Again: what is held now cannot become another process any more.
  if (!is_still(request)) {
    return give_up("the process had ended");
  }
  for (const Stack& stack : read_stacks(**unwinder, tracees)) {
    fmt::print("thread {}\n", stack.tid);
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
    note("files of code that were not found: " + join(files));
  }
  fmt::print("end\n");
  std::fflush(stdout);
  return 0;
}

}  // namespace
}  // namespace filetimer::stacks

int main() {
  try {
    return filetimer::stacks::run();
  } catch (const std::exception& error) {
    return filetimer::stacks::give_up(error.what());
  }
}
