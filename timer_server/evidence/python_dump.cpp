// SPDX-License-Identifier: MIT
#include "timer_server/evidence/python_dump.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include "common/limits.hpp"
#include "common/mapped_file.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

constexpr std::chrono::milliseconds kPollPeriod{1};
// The last line of a dump of more threads than faulthandler writes (100). That of a stack which is
// cut is indented.
constexpr std::string_view kMoreThreads = "...";
// A dump is over when the file has not grown for this long.
constexpr std::chrono::milliseconds kQuiet{5};

constexpr std::uint64_t bit_of(int signal) {
  return std::uint64_t{1} << (signal - 1);
}

// Returns the signal of the page if the process catches it, or why it may not be sent. `threads`: a
// process with fewer may be about to exit, or to start another program, which the signal would end.
Result<int> check_signal(const Process& process, const PythonDump& dump, int threads = 0) {
  const std::uint32_t wanted = dump.signal;
  const int signal = wanted <= 64 ? static_cast<int>(wanted) : 0;
  // The C library uses 32 and 33 itself.
  if (signal == 0 || signal == SIGKILL || signal == SIGSTOP || signal == 32 || signal == 33) {
    return failure(fmt::format("signal {} of its page cannot be caught", wanted));
  }
  const auto status = read_status(fmt::format("/proc/{}", process.pid));
  if (!status || !process.is_alive()) {
    return failure("the process had ended");
  }
  if ((status->caught & bit_of(signal)) == 0) {
    return failure(fmt::format("the worker does not catch signal {} of its page", signal));
  }
  const auto stat = read_stat(fmt::format("/proc/{}", process.pid));
  if (dump.program != 0 && stat && stat->start_stack != 0 && stat->start_stack != dump.program) {
    return failure("the worker has started another program");
  }
  if (stat && stat->threads < threads) {
    return failure("threads of the worker were ending");
  }
  return signal;
}

// Returns the threads in which the signal is blocked. The kernel blocks it while its handler runs.
std::set<pid_t> threads_that_block(pid_t pid, int signal) {
  std::set<pid_t> tids;
  for (const pid_t tid : threads_of(pid)) {
    const auto status = read_status(fmt::format("/proc/{}/task/{}", pid, tid));
    if (status && (status->blocked & bit_of(signal)) != 0) {
      tids.insert(tid);
    }
  }
  return tids;
}

bool is_pending(pid_t pid, int signal) {
  const auto status = read_status(fmt::format("/proc/{}", pid));
  return status && (status->pending & bit_of(signal)) != 0;
}

off_t size_of(const OwnFile& file) {
  struct stat st {};
  return ::fstat(file.fd.get(), &st) == 0 ? st.st_size : 0;
}

// Waits until the dump is over. The text has no mark at its end, so the dump counts as over when
// the file has grown, has not grown again for kQuiet, and the signal handler has returned. Returns
// false when the time is up or the process has exited.
bool wait_for_dump(const Process& process, const OwnFile& file, int signal,
                   const std::set<pid_t>& blocked_before, Instant until) {
  off_t size = file.status.st_size;
  for (Instant changed = Instant::now(); Instant::now() < until && process.is_alive();) {
    std::this_thread::sleep_for(kPollPeriod);
    if (const off_t now = size_of(file); now != size) {
      size = now;
      changed = Instant::now();
    } else if (size > file.status.st_size && Instant::now() - changed >= kQuiet) {
      if (!is_pending(process.pid, signal) &&
          std::ranges::includes(blocked_before, threads_that_block(process.pid, signal))) {
        return true;
      }
    }
  }
  return false;
}

// Reads at most the last kMaxPythonDumpBytes: the main thread comes last.
std::string read_dump(const OwnFile& file) {
  std::string text(kMaxPythonDumpBytes, '\0');
  const off_t begin =
      std::max(file.status.st_size, size_of(file) - static_cast<off_t>(text.size()));
  const ssize_t got =
      retry_eintr([&] { return ::pread(file.fd.get(), text.data(), text.size(), begin); });
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t start = std::min(text.find_first_not_of(" \t\r"), text.size());
  return text.substr(start, text.find_last_not_of(" \t\r") + 1 - start);
}

// Parses "Current thread 0x00007f12 [loader] (most recent call first):".
std::optional<PythonThread> parse_thread_line(std::string_view line) {
  constexpr std::string_view kCurrent = "Current thread ";
  constexpr std::string_view kThread = "Thread ";
  PythonThread thread;
  thread.is_current = line.starts_with(kCurrent);
  if (!thread.is_current && !line.starts_with(kThread)) {
    return std::nullopt;
  }
  line.remove_prefix(thread.is_current ? kCurrent.size() : kThread.size());
  thread.ident = utf8_prefix(line.substr(0, line.find(' ')), kMaxFrameBytes);
  const std::size_t open = line.find('[');
  const std::size_t close = line.rfind(']');
  if (close != line.npos && open < close) {
    thread.name = utf8_prefix(line.substr(open + 1, close - open - 1), kMaxFrameBytes);
  }
  return thread;
}

// Returns "/app/train.py:12 in forward" for 'File "/app/train.py", line 12 in forward', and any
// other line unchanged.
std::string parse_frame_line(std::string_view line) {
  constexpr std::string_view kLine = "\", line ";
  constexpr std::string_view kFile = "File \"";
  const std::size_t at = line.rfind(kLine);
  std::string text(line);
  if (line.starts_with(kFile) && at != line.npos) {
    text = fmt::format("{}:{}", line.substr(kFile.size(), at - kFile.size()),
                       line.substr(at + kLine.size()));
  }
  return std::string(utf8_prefix(text, kMaxFrameBytes));
}

}  // namespace

std::vector<PythonThread> parse_python_dump(std::string_view text) {
  std::vector<PythonThread> threads;
  while (!text.empty()) {
    const std::string_view whole = take_until(text, '\n');
    const std::string_view line = trimmed(whole);
    if (line.empty()) {
      continue;
    }
    if (auto thread = parse_thread_line(line)) {
      threads.push_back(std::move(*thread));
    } else if (whole == kMoreThreads) {
      // Otherwise a newer thread would be first, and stand for the main one.
      threads.emplace_back().frames = {"... older threads, which faulthandler leaves out"};
    } else if (!threads.empty() && threads.back().frames.size() < kMaxStackFrames) {
      threads.back().frames.push_back(parse_frame_line(line));
    }
  }
  std::ranges::reverse(threads);  // faulthandler writes the newest thread first
  return threads;
}

void take_python_dump(const Process& process, const PythonDump& dump, Instant until,
                      Evidence& evidence) {
  const auto miss = [&](std::string_view why) {
    evidence.add_missing(fmt::format("no Python stacks: {}", why));
  };
  const Result<int> signal = check_signal(process, dump);
  if (!signal) {
    return miss(signal.error().message);
  }
  auto file = open_own_file(dump.path, O_RDWR);
  if (!file) {
    return miss(file.error().message);
  }
  // The worker appends each dump. EvidenceDesk has one made at a time; a late one may be on its
  // way.
  if (file->status.st_size > static_cast<off_t>(kMaxPythonDumpBytes) &&
      !is_pending(process.pid, *signal) && ::ftruncate(file->fd.get(), 0) == 0) {
    file->status.st_size = 0;
  }
  const auto before = read_stat(fmt::format("/proc/{}", process.pid));
  const std::set<pid_t> blocked = threads_that_block(process.pid, *signal);
  // Again, because all of this takes milliseconds in a worker with many threads.
  if (const auto again = check_signal(process, dump, before ? before->threads : 0); !again) {
    return miss(again.error().message);
  }
  if (!process.send_signal(*signal)) {
    return miss(system_error("cannot send the signal").value().message);
  }
  const Instant limit = std::min(until, Instant::now() + kPythonDumpLimit);
  const bool is_whole = wait_for_dump(process, *file, *signal, blocked, limit);
  evidence.python_threads = parse_python_dump(read_dump(*file));
  if (!process.is_alive()) {
    return miss("the process had ended");
  }
  if (evidence.python_threads.empty()) {
    return miss(is_pending(process.pid, *signal)
                    ? "the signal reached no thread of the worker in time"
                    : "the worker wrote none in time");
  }
  if (!is_whole) {
    evidence.add_missing("Python stacks are incomplete: time was up");
  } else if (size_of(*file) - file->status.st_size > static_cast<off_t>(kMaxPythonDumpBytes)) {
    evidence.add_missing(
        fmt::format("only the last {} bytes of the Python stacks were read", kMaxPythonDumpBytes));
  }
}

}  // namespace filetimer
