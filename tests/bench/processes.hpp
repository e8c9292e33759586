// Processes that a measurement starts, holds by pidfd and kills, and what /proc says about them.
// The bench is single-threaded, so a forked child may run any code. Errors are thrown, because a
// failed measurement has no result.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/posix.hpp"

namespace filetimer::bench {

// Longer than any one step takes on a busy machine; reaching it means that something is broken.
inline constexpr std::chrono::milliseconds kBound = std::chrono::seconds{20};

[[noreturn]] void fail(const std::string& what);        // throws
[[noreturn]] void fail_errno(const std::string& what);  // with the system's reason

// A child of the bench. Killed and reaped by the destructor; dies with the bench.
class Child {
 public:
  explicit Child(pid_t forked);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  Child(const Child&) = delete;
  ~Child();

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }
  // Waits for the end and returns the wait status. Throws after kBound.
  int wait();

 private:
  pid_t pid_;
  UniqueFd pidfd_;
};

// Runs `body` in a child, which ends when `body` returns.
Child fork_child(const std::function<void()>& body);
// Starts an idle process without resources: a worker to be watched or killed.
Child fork_idle();
// Starts a process that takes all the CPU time it can get.
Child fork_busy();
// Runs a program. A descriptor of -1 means /dev/null.
Child spawn(const std::vector<std::string>& argv, int in_fd, int out_fd, int err_fd);

// Runs a program, and returns the first line that it prints when it has ended.
std::string first_line_of(const std::vector<std::string>& argv);

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};
Pipe make_pipe();

// Returns one line from `fd` without its newline. Throws after kBound, or if the writer closes.
std::string read_line(int fd);
void write_all(int fd, const void* data, std::size_t size);
void read_all(int fd, void* data, std::size_t size);

// Returns an exact value, unlike VmRSS of /proc/PID/status, which sums counters of each CPU. With a
// folder, only the part of it that is mapped from files below.
std::uint64_t resident_bytes(pid_t pid, const std::string& folder = {});
// Returns the number of voluntary context switches of all threads of a process.
std::uint64_t voluntary_switches(pid_t pid);
// Returns when no thread of the process has run for a while.
void wait_until_quiet(pid_t pid);

using std::this_thread::sleep_for;

}  // namespace filetimer::bench
