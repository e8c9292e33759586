// A worker of the tests: test_worker in one of its modes (see test_worker.cpp). It writes lines to
// its standard output, and in some modes ends at the end of its standard input.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/harness.hpp"

namespace filetimer::testing {

class Worker {
 public:
  struct Setup {
    std::vector<std::string> args{};  // after the mode
    Environment environment{};
    std::optional<uid_t> user{};
    std::vector<std::string> program{};  // instead of test_worker and its mode
  };

  // Returns when the worker has printed that it is ready. Keeps the words after "ready".
  explicit Worker(const std::string& mode) : Worker(mode, Setup{}) {}
  Worker(const std::string& mode, const Setup& setup);

  [[nodiscard]] pid_t pid() const { return child_->pid(); }
  [[nodiscard]] bool is_alive() const { return child_->is_alive(); }
  [[nodiscard]] bool ends_within(std::chrono::milliseconds bound) const {
    return child_->ends_within(bound);
  }
  ExitStatus status() { return child_->status(); }
  void signal(int number) const { child_->signal(number); }
  void wait_for_state(char state) const { child_->wait_for_state(state); }
  void wait_until_stopped() const { child_->wait_until_stopped(); }
  // Returns its next line.
  std::string line();
  // Sends a command and returns the answer; see page_worker.cpp.
  std::string ask(const std::string& command);
  // Sends a command that has no answer.
  void tell(const std::string& command) const;
  // Pids that came with "ready", by what they are: "child", "session", ...
  HeldPid& descendant(const std::string& name) { return descendants_.at(name); }
  [[nodiscard]] std::map<std::string, HeldPid>& descendants() { return descendants_; }
  // Closes its standard input.
  void let_go() { input_.reset(); }

 private:
  UniqueFd input_;
  UniqueFd output_;
  std::string read_;
  std::unique_ptr<Child> child_;
  std::map<std::string, HeldPid> descendants_;
};

// page_worker with a locked page NAME in the runtime directory `dir`. No wake-up message was
// written.
std::unique_ptr<Worker> page_worker(const std::string& dir, const std::string& name,
                                    const std::string& claims = {});

// Waits until the server has read the rank of a worker in a scope.
void wait_for_rank(const TempFolder& temp, const Server& server, const Worker& worker, int rank);

// Has a worker killed for that scope, without reading the log.
void expect_kill(const Server& server, const std::string& scope = "s");

// A program in namespaces of its own, which unshare(1) makes as its options say, and whether they
// can be made here.
std::vector<std::string> unshared(std::vector<std::string> options, const std::string& program);
bool can_unshare(const TempFolder& temp, std::vector<std::string> options);

// Returns the number of `expired` records of the worker.
std::size_t expiries_of(const Server& server, const Worker& worker);

// client_worker, connected to the server of the runtime directory `dir`. See client_worker.cpp.
std::unique_ptr<Worker> client_worker(const std::string& dir,
                                      std::chrono::milliseconds idle_timeout = {},
                                      const Environment& environment = {});

}  // namespace filetimer::testing
