// The harness of the process tests: child processes and running servers, and with records.hpp,
// requests.hpp and the others below what nearly every one of these tests uses. Every wait has a
// bound. Every process is held by its pidfd and killed with its owner. Parallel tests share
// nothing.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "common/posix.hpp"
#include "tests/process/records.hpp"
#include "tests/process/requests.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/files.hpp"
#include "tests/support/skip.hpp"

namespace filetimer::testing {

// A verdict later than this after its deadline waited for something. A busy machine and a sanitizer
// together stay below a quarter of it.
inline constexpr std::chrono::milliseconds kPrompt{10'000};

inline constexpr const char* kCannotBecome = "no process of another user can be started here";
// Returns whether a child of the test can become `user`. This takes root and an existing id.
bool can_become(uid_t user);

// Only for tests about the passing of time.
void let_pass(std::chrono::milliseconds time);
void let_pass_until(Instant time);

// A process that is not a child, held by its pidfd so that its pid cannot be reused unnoticed.
// Killed in the destructor.
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

// Waits for the pid that a shell writes to the file, and holds its process.
HeldPid pid_in(const std::string& file);

// Returns the CPU time that all threads of the process have used.
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

// Variables to set, or to unset without a value. Variables that could lead a server to another
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
  std::optional<gid_t> group{};      // of `user`; none: the one with its number
  std::function<void()> in_child{};  // between fork and exec; async-signal-safe
};

// Returns for `in_child` what sets a limit of the process.
std::function<void()> limit(auto resource, const rlimit& limits) {
  return [=] { ::setrlimit(resource, &limits); };
}

// A child of the test. It is killed with the test and with this object.
class Child : public HeldPid {
 public:
  explicit Child(const Launch& launch);
  explicit Child(pid_t forked) : HeldPid(forked) {}

  // Waits for the end of the child and reaps it. Fails the test after the bound.
  ExitStatus status();
  // Kills the child and waits for its end.
  void kill();
  // Waits until /proc/PID/stat shows this state of the child's first thread.
  void wait_for_state(char state) const;
  void wait_until_stopped() const { wait_for_state('T'); }
  // Sends SIGSTOP and waits until the child has stopped.
  void halt() const;

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

 private:
  std::optional<ExitStatus> status_;
};

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};
Pipe make_pipe();

// Returns the path of a program of this build, which needs no quoting in a shell command.
std::string program_path(const std::string& name);
std::string server_path();  // timer_server
std::string client_path();  // timer_client
std::string worker_path();  // test_worker

struct Finished {
  ExitStatus status;
  std::string out;
  std::string err;
};

// Runs a program that ends by itself within `bound`, with these arguments.
Finished run(const std::string& program, std::vector<std::string> args,
             const Environment& environment = {}, int in = -1,
             std::chrono::milliseconds bound = kBound);
inline Finished run_server(std::vector<std::string> args, const Environment& environment = {}) {
  return run(server_path(), std::move(args), environment);
}
// Checks that a program has failed with this status, and that its standard error has this part.
void check_failure(const Finished& finished, int status, std::string_view says);

// A timer_server that is ready, in the directory `run` of `temp`, or of a folder of its own. The
// destructor kills it and judges its log by docs/promises.md: a violation fails the test.
class Server {
 public:
  struct Setup {
    std::vector<std::string> args{};  // after --dir
    Environment environment{};
    bool with_dir = true;
    std::string folder = "run";
    std::vector<std::string> command{};
    int in = -1;
    int err_fd = -1;        // err() stays empty then
    std::string program{};  // empty: server_path()
    // In place of its helper for stacks, a script of sh; empty: there is no helper.
    std::optional<std::string> helper{};
    std::optional<uid_t> user{};
    std::optional<gid_t> group{};
    std::function<void()> in_child{};
  };

  explicit Server(std::vector<std::string> args = {});
  Server(std::initializer_list<std::string> args) : Server(std::vector<std::string>(args)) {}
  explicit Server(const Setup& setup);
  explicit Server(const TempFolder& temp, std::vector<std::string> args = {});
  Server(const TempFolder& temp, const Setup& setup);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  [[nodiscard]] pid_t pid() const { return child_->pid(); }
  // For the next server in its place.
  [[nodiscard]] const TempFolder& temp() const { return *temp_; }
  [[nodiscard]] const std::string& dir() const { return dir_; }
  [[nodiscard]] const std::string& fifo() const { return fifo_; }
  [[nodiscard]] const std::string& log() const { return log_; }
  [[nodiscard]] std::string out() const { return read_file(out_); }
  [[nodiscard]] std::string err() const { return read_file(err_); }
  [[nodiscard]] const std::string& ready_line() const { return ready_line_; }
  Child& process() { return *child_; }

  void send(std::string_view bytes) const;
  // Returns when all earlier requests were read, judged if due, and carried out.
  void barrier();

  [[nodiscard]] Records records() const { return read_log(log()); }
  Record wait_for(const std::function<bool(const Record&)>& wanted) const;
  // Of an event, or of a pid or a scope.
  Record wait_for(std::string_view event, const auto&... of) const {
    return wait_for([&](const Record& record) { return record.is(event, of...); });
  }
  // Returns the first rejection whose reason has this part.
  Record wait_for_rejection(std::string_view reason) const;
  void wait_for_message(std::string_view text) const;  // on standard error

  // For a log that says what the test itself made up.
  void leave_log_unjudged(std::string_view reason) { unjudged_ = reason; }

  // Sends SIGTERM. Returns when no new scope is granted any more, and a second signal counts.
  void begin_stop();
  // Sends SIGTERM and waits for the end.
  ExitStatus stop();
  // The same of a server that ends with 0. Returns its last record, `server_stopped`.
  Record stop_record();
  // Has the effect of a crash.
  void kill() { child_->kill(); }

 private:
  Server(std::shared_ptr<const TempFolder> temp, const Setup& setup);
  void wait_until_ready();
  [[noreturn]] void give_up(const std::string& what) const;

  std::shared_ptr<const TempFolder> temp_;
  std::string out_;
  std::string err_;
  std::unique_ptr<Child> child_;
  std::string ready_line_;
  std::string dir_;
  std::string fifo_;
  std::string log_;
  int barriers_ = 0;
  std::string unjudged_;  // why the log is not judged; empty: it is
};

// Returns how many open scopes it has adopted from an earlier server.
std::int64_t adopted_by(const Server& server);

// Maps the status page of a runtime directory.
std::shared_ptr<const Board> status_page(const std::string& dir);

// Checks that the only expired scope of the worker was judged at most kPrompt after its deadline.
void check_prompt(const Server& server, pid_t pid);

// Stops a server, so that it finds everything that happens meanwhile in one iteration. Resumes it
// in the destructor.
class Stopped {
 public:
  explicit Stopped(Server& server);
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  ~Stopped();

 private:
  Server& server_;
};

// Runs timer_client for this server, which $FILETIMER_DIR names.
Finished run_client(const Server& server, std::vector<std::string> words);
// Returns what `timer_client status` says.
JsonLine status_of(const Server& server);
// Returns the value of a series in the file of --metrics that has no labels but `dir` and these;
// empty: there is none.
std::string metric_of(const Server& server, const std::string& file, const std::string& name,
                      const std::string& labels = {});

// Writes a script or another text that can be executed.
void write_program(const std::string& path, const std::string& text);

// Options with which the first signal waits for evidence that takes longer than any test.
inline const std::vector<std::string> kNeverSignals{"--evidence-command", "sleep 300",
                                                    "--evidence-timeout", "300"};
// A script that makes the file "begun" in the folder and ends when there is a file "go", too.
std::string waits_for_go(const TempFolder& temp);
// Options with which every kill waits so before its signal.
std::vector<std::string> kills_wait_for_go(const TempFolder& temp);

// A server with bad_disk.cpp loaded. It has this fault while the folder has a file "fault".
Server::Setup on_bad_disk(const TempFolder& temp, const std::string& fault,
                          std::vector<std::string> args = {});

// A server with clock_step.cpp loaded, whose clocks set_clocks() may set ahead of all others.
Server::Setup with_own_clocks(const TempFolder& temp, std::vector<std::string> args = {});
// From now on these clocks go on from `time`. The server notices at its next request.
void set_clocks(const TempFolder& temp, Instant time);
// The same, and wakes this server.
void set_clocks(const TempFolder& temp, const Server& server, Instant time);

}  // namespace filetimer::testing
