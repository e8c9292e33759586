// What the process tests stand on: a child process, a running timer_server. Every
// wait has a bound, every process is held by its pidfd and is gone when its holder is, and nothing
// is shared with a test that runs at the same time.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "tests/process/records.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/files.hpp"
#include "tests/support/users.hpp"

namespace filetimer::testing {

// A verdict that comes longer after its deadline was kept waiting. On a busy machine it takes a
// tenth of that.
inline constexpr std::chrono::milliseconds kPrompt{700};
// The same where writers flood the pipe, and take the processors with it.
inline constexpr std::chrono::milliseconds kPromptInFlood{10'000};

// Asks again every 2 ms, for what no descriptor announces. False when the bound has passed.
bool wait_until(const std::function<bool()>& holds, std::chrono::milliseconds bound = kBound);

inline constexpr const char* kCannotBecome = "no process of another user can be started here";
// Whether a child of the test can become `user`: it takes root, and an id that exists here.
bool can_become(uid_t user);

// What is about time passing cannot be had without it.
void let_pass(std::chrono::milliseconds time);
void let_pass_until(Instant time);

// Somebody else's process, held so that its pid can't come to mean another. Killed at the end.
class HeldPid {
 public:
  explicit HeldPid(pid_t pid);
  HeldPid(HeldPid&&) noexcept = default;
  HeldPid& operator=(HeldPid&&) noexcept = default;
  HeldPid(const HeldPid&) = delete;
  HeldPid& operator=(const HeldPid&) = delete;
  ~HeldPid();

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool ends_within(std::chrono::milliseconds bound = kBound) const;
  [[nodiscard]] bool is_alive() const { return !ends_within(std::chrono::milliseconds{0}); }
  void signal(int number) const;

 private:
  pid_t pid_;
  UniqueFd pidfd_;
};

// Time on a processor that all threads of the process have used.
std::chrono::nanoseconds cpu_time_of(pid_t pid);

struct ExitStatus {
  int code = -1;   // -1 when a signal ended it
  int signal = 0;  // 0 when it exited
  friend bool operator==(const ExitStatus&, const ExitStatus&) = default;
};
std::ostream& operator<<(std::ostream& out, const ExitStatus& status);
inline ExitStatus exited(int code) {
  return {code, 0};
}
inline ExitStatus killed_by(int signal) {
  return {-1, signal};
}

// Variables to set, or to unset where there is no value. What could lead a server to another
// folder is unset in every child.
using Environment = std::map<std::string, std::optional<std::string>>;

struct Launch {
  std::vector<std::string> argv;
  Environment environment{};
  std::string out{};  // files; empty: /dev/null
  std::string err{};
  int in = -1;                       // descriptor to read from; -1: /dev/null
  int out_fd = -1;                   // descriptor to write to, instead of `out`
  int err_fd = -1;                   // and instead of `err`
  std::optional<uid_t> user{};       // where can_become() says that it is possible
  std::function<void()> in_child{};  // between fork and exec; async-signal-safe
};

// A child of the test. It dies with the test, and with this object.
class Child {
 public:
  explicit Child(const Launch& launch);
  explicit Child(pid_t forked) : held_(forked) {}

  [[nodiscard]] pid_t pid() const { return held_.pid(); }
  [[nodiscard]] bool is_alive() const { return held_.is_alive(); }
  [[nodiscard]] bool ends_within(std::chrono::milliseconds bound) const {
    return held_.ends_within(bound);
  }
  void signal(int number) const { held_.signal(number); }
  // Waits for the end and reaps. Fails the test when the bound passes.
  ExitStatus status();
  void wait_until_stopped() const;

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

 private:
  HeldPid held_;
  std::optional<ExitStatus> status_;
};

std::string server_path();  // the timer_server of this build
std::string client_path();  // and its timer_client
std::string worker_path();  // test_worker
std::string page_worker_path();
std::string client_worker_path();
std::string stacks_worker_path();
std::string stacks_helper_path();    // filetimer-stacks
std::string python_worker_path();    // a script for python3
std::string flight_recorder_path();  // likewise
std::string bad_disk_path();
std::string clock_step_path();

struct Finished {
  ExitStatus status;
  std::string out;
  std::string err;
};

// Runs a program with just these arguments, for what ends by itself.
Finished run(const TempFolder& temp, const std::string& program, std::vector<std::string> args,
             const Environment& environment = {});
inline Finished run_server(const TempFolder& temp, std::vector<std::string> args,
                           const Environment& environment = {}) {
  return run(temp, server_path(), std::move(args), environment);
}
inline Finished run_client(const TempFolder& temp, std::vector<std::string> args) {
  return run(temp, client_path(), std::move(args));
}

// A timer_server that is ready, on the folder `run` of `temp`.
class Server {
 public:
  struct Setup {
    std::vector<std::string> args{};  // behind --dir
    Environment environment{};
    bool with_dir = true;
    std::string folder = "run";
    std::vector<std::string> command{};
    int in = -1;
    int err_fd = -1;        // err() stays empty then
    std::string program{};  // empty: server_path()
    std::function<void()> in_child{};
  };

  explicit Server(const TempFolder& temp, std::vector<std::string> args = {});
  Server(const TempFolder& temp, const Setup& setup);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  [[nodiscard]] pid_t pid() const { return child_->pid(); }
  [[nodiscard]] const std::string& dir() const { return ready_["dir"]; }
  [[nodiscard]] const std::string& fifo() const { return ready_["fifo"]; }
  [[nodiscard]] const std::string& log() const { return ready_["log"]; }
  [[nodiscard]] std::string out() const { return read_file(out_); }
  [[nodiscard]] std::string err() const { return read_file(err_); }
  [[nodiscard]] const std::string& ready_line() const { return ready_line_; }
  Child& process() { return *child_; }

  void send(std::string_view bytes) const;
  // All that was sent before has been read, judged if it was due, and carried out.
  void barrier();

  [[nodiscard]] Records records() const { return read_log(log()); }
  Record wait_for(const std::function<bool(const Record&)>& wanted) const;
  Record wait_for(std::string_view event, pid_t pid) const;
  void wait_for_message(std::string_view text) const;  // on standard error

  // SIGTERM and a bounded wait.
  ExitStatus stop();
  // SIGKILL, as a crash would end it.
  void kill();

 private:
  void wait_until_ready();
  [[noreturn]] void give_up(const std::string& what) const;

  std::string out_;
  std::string err_;
  std::unique_ptr<Child> child_;
  std::string ready_line_;
  mutable std::map<std::string, std::string> ready_;
  int barriers_ = 0;
};

// How many open scopes it has taken over from a server before it.
std::int64_t adopted_by(const Server& server);

// That the one scope of the worker that has expired was judged at most `bound` after its deadline.
void check_prompt(const Server& server, pid_t pid, std::chrono::milliseconds bound = kPrompt);

// A server that is stopped, so that it sees at once what happened meanwhile. It goes on with the
// end of this object.
class Stopped {
 public:
  explicit Stopped(Server& server);
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  ~Stopped();

 private:
  Server& server_;
};

// timer_client for this server, which $FILETIMER_DIR names.
Finished run_client(const TempFolder& temp, const Server& server, std::vector<std::string> words);

// A server with bad_disk.cpp loaded: the fault of that name holds for as long as the file is there.
Server::Setup on_bad_disk(const std::string& fault, const std::string& while_exists,
                          std::vector<std::string> args = {});

}  // namespace filetimer::testing
