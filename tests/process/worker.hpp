// A worker of the tests: test_worker in one of its modes (see test_worker.cpp). It writes lines to
// its standard output, and in some modes ends at the end of its standard input.
// SPDX-License-Identifier: MIT
#pragma once

#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/harness.hpp"

namespace filetimer::testing {

class Worker : public Child {
 public:
  struct Setup {
    std::vector<std::string> args{};  // after the mode
    Environment environment{};
    std::optional<uid_t> user{};
    std::vector<std::string> program{};  // instead of test_worker and its mode
  };

  // Returns when the worker has printed that it is ready. Keeps the words after "ready".
  explicit Worker(const char* mode) : Worker(mode, Setup{}) {}
  explicit Worker(const Setup& setup) : Worker("", setup) {}
  Worker(const std::string& mode, const Setup& setup)
      : Worker(mode, setup, make_pipe(), make_pipe()) {}

  // Returns its next line.
  std::string line();
  // Sends a command and returns the answer; see page_worker.cpp. "error" fails the test.
  std::string ask(const std::string& command);
  // Sends a command that has no answer.
  void tell(const std::string& command) const;
  // Pids that came with "ready", by what they are: "child", "session", ...
  HeldPid& descendant(const std::string& name) { return descendants_.at(name); }
  // Closes its standard input.
  void let_go() { input_.reset(); }
  // Has page_worker or client_worker end by itself.
  ExitStatus exit() {
    tell("exit");
    return status();
  }

 private:
  Worker(const std::string& mode, const Setup& setup, Pipe input, Pipe output);

  UniqueFd input_;
  UniqueFd output_;
  std::string read_;
  std::map<std::string, HeldPid> descendants_;
};

// page_worker with a locked page NAME in the runtime directory `dir`. No wake-up message was
// written.
std::unique_ptr<Worker> page_worker(const std::string& dir, const std::string& name,
                                    const std::string& claims = {}, std::optional<uid_t> user = {});

// A worker whose scopes are on a page of its own, or lines in the request pipe.
struct WatchedWorker {
  WatchedWorker(const Server& on, bool with_page, const std::string& page = "w-1");
  // Opens a scope; the slot is one of the page. Returns when the line or the wake-up message is
  // written.
  void open(int slot, const std::string& scope, std::chrono::milliseconds timeout,
            int signal = SIGKILL) const;

  const Server& server;
  const bool has_page;
  std::unique_ptr<Worker> worker;
};

// A worker of this rank, in a scope with a far deadline. The server has read the rank.
std::unique_ptr<Worker> ranked_worker(const Server& server, int rank, Environment environment = {},
                                      std::vector<std::string> program = {});
// Waits until the server has read the rank of a worker in a scope.
void wait_for_rank(const Server& server, const Worker& worker, int rank);

// A worker in a scope of the pipe. Without a timeout the deadline comes after every test.
class WorkerInScope : public Worker {
 public:
  WorkerInScope(const Server& server, const std::string& scope,
                std::chrono::milliseconds timeout = std::chrono::hours{1}, int signal = SIGKILL,
                const char* mode = "block")
      : Worker(mode) {
    server.send(acquire(pid(), scope, timeout, signal));
  }
};

// A worker in a scope whose deadline has passed.
struct HungWorker : WorkerInScope {
  explicit HungWorker(const Server& server, const std::string& scope = "s", int signal = SIGKILL,
                      const char* mode = "block")
      : WorkerInScope(server, scope, std::chrono::milliseconds{0}, signal, mode) {}
};

// Waits until this signal has ended the worker. Returns the record of the kill, whose verdict is
// "dead".
Record kill_of(const Server& server, Child& worker, int signal = SIGKILL);

// Has a worker killed for that scope, without reading the log.
void expect_kill(const Server& server, const std::string& scope = "s");

// So many workers, each in a scope "s" with a far deadline.
std::vector<std::unique_ptr<Worker>> workers_in_scopes(const Server& server, int count);

// Lets a scope of the worker expire, which this signal ends. Returns the record of the kill.
Record expire(const Server& server, Worker& worker, const std::string& scope = "s",
              int signal = SIGKILL);
// The same with a worker of its own.
Record expire(const Server& server, const std::string& scope = "s");

// A program in namespaces of its own, which unshare(1) makes as its options say; what comes of it,
// and whether they can be made here.
std::vector<std::string> unshared(std::vector<std::string> options, const std::string& program);
Finished run_unshared(std::vector<std::string> options, const std::string& program,
                      const std::vector<std::string>& args = {});
bool can_unshare(std::vector<std::string> options);
// Options for a pid namespace with a /proc of its own, and the reason where there can be none.
inline const std::vector<std::string> kOwnPidNamespace{"--pid", "--fork", "--kill-child",
                                                       "--mount-proc"};
inline constexpr const char* kNoPidNamespace =
    "unshare(1) makes no pid namespace with a /proc of its own here";

// client_worker, connected to the server of the runtime directory `dir`. See client_worker.cpp.
std::unique_ptr<Worker> client_worker(const std::string& dir,
                                      std::chrono::milliseconds idle_timeout = {},
                                      const Environment& environment = {});
// Has client_worker open a scope and leave it. Returns whether it left it in time.
bool visit_scope(Worker& worker, const std::string& scope = "visit",
                 std::chrono::milliseconds timeout = std::chrono::minutes{1});

}  // namespace filetimer::testing
