// SPDX-License-Identifier: MIT
#include "tests/bench/processes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace filetimer::bench {
namespace {

// A process that has not run for this long is quiet.
constexpr std::chrono::milliseconds kQuiet{100};

void close_from_3() {
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
}

// Sums the number after `key` over the status files of all threads.
std::uint64_t sum_over_threads(pid_t pid, const std::string& key) {
  std::uint64_t sum = 0;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid))) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(key)) {
        sum += std::stoull(line.substr(key.size()));
      }
    }
  }
  return sum;
}

void wait_readable(int fd, const char* what) {
  if (!is_readable_within(fd, kBound)) {
    fail(fmt::format("waited {} s for {}", kBound.count() / 1000, what));
  }
}

}  // namespace

void fail(const std::string& what) {
  throw std::runtime_error(what);
}
void fail_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

Child::Child(pid_t forked)
    : pid_(forked), pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, forked, 0U))) {
  if (!pidfd_) {
    fail_errno("cannot open a pidfd");
  }
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)) {}

Child::~Child() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);  // not reaped yet, so the pid was not reused
    ::waitpid(pid_, nullptr, 0);
  }
}

int Child::wait() {
  wait_readable(pidfd_.get(), "a process to end");
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return status;
}

Child fork_child(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid < 0) {
    fail_errno("cannot fork");
  }
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int status = 0;
    try {
      body();
    } catch (const std::exception& error) {
      fmt::print(stderr, "filetimer_bench: in a child: {}\n", error.what());
      status = 1;
    }
    ::_exit(status);
  }
  return Child(pid);
}

Child fork_idle() {
  return fork_child([] {
    close_from_3();
    for (;;) {
      ::pause();
    }
  });
}

Child fork_busy() {
  return fork_child([] {
    close_from_3();
    for (volatile unsigned long spin = 0;;) {
      spin = spin + 1;
    }
  });
}

Child spawn(const std::vector<std::string>& argv, int in_fd, int out_fd, int err_fd) {
  return fork_child([&] {
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ::dup2(in_fd >= 0 ? in_fd : null, STDIN_FILENO);
    ::dup2(out_fd >= 0 ? out_fd : null, STDOUT_FILENO);
    ::dup2(err_fd >= 0 ? err_fd : null, STDERR_FILENO);
    close_from_3();
    std::vector<char*> args;
    for (const std::string& arg : argv) {
      args.push_back(::strdup(arg.c_str()));
    }
    args.push_back(nullptr);
    ::execvp(args[0], args.data());
    ::_exit(127);
  });
}

std::string first_line_of(const std::vector<std::string>& argv) {
  Pipe out = make_pipe();
  Child program = spawn(argv, -1, out.write.get(), -1);
  out.write.reset();
  const std::string line = read_line(out.read.get());
  program.wait();
  return line;
}

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    fail_errno("cannot make a pipe");
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::string read_line(int fd) {
  std::string line;
  for (char c = 0;; line += c) {
    read_all(fd, &c, 1);
    if (c == '\n') {
      return line;
    }
  }
}

void write_all(int fd, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t put = retry_eintr([&] { return ::write(fd, at, size); });
    if (put < 0) {
      fail_errno("cannot write");
    }
    at += put;
    size -= static_cast<std::size_t>(put);
  }
}

void read_all(int fd, void* data, std::size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    wait_readable(fd, "a result");
    const ssize_t got = retry_eintr([&] { return ::read(fd, at, size); });
    if (got <= 0) {
      fail("a child ended before it gave its result");
    }
    at += got;
    size -= static_cast<std::size_t>(got);
  }
}

std::uint64_t resident_bytes(pid_t pid, const std::string& folder) {
  std::ifstream maps(fmt::format("/proc/{}/smaps", pid));
  std::uint64_t sum = 0;
  bool counts = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) {  // the header line of a mapping, with its file
      counts = folder.empty() || line.find(' ' + folder + '/') != std::string::npos;
    } else if (counts && line.starts_with("Rss:")) {
      sum += std::stoull(line.substr(4)) * 1024;
    }
  }
  return sum;
}

std::uint64_t voluntary_switches(pid_t pid) {
  return sum_over_threads(pid, "voluntary_ctxt_switches:");
}

void wait_until_quiet(pid_t pid) {
  const auto activity = [pid] {
    return voluntary_switches(pid) + sum_over_threads(pid, "nonvoluntary_ctxt_switches:");
  };
  std::uint64_t before = activity();
  for (auto waited = kQuiet; waited < kBound; waited += kQuiet) {
    sleep_for(kQuiet);
    const std::uint64_t now = activity();
    if (now == before) {
      return;
    }
    before = now;
  }
  fail("the server never came to rest");
}

}  // namespace filetimer::bench
