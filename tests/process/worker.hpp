// A process to be watched: test_worker in one of its modes (see test_worker.cpp), which talks to
// the test in lines on its standard output and ends when its standard input does where a mode says
// so.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/process/harness.hpp"

namespace filetimer::testing {

class Worker {
 public:
  struct Setup {
    std::vector<std::string> args{};  // behind the mode
    Environment environment{};
    std::optional<uid_t> user{};
  };

  // Returns when the worker has said that it is ready. Words behind "ready" are kept.
  explicit Worker(const std::string& mode) : Worker(mode, Setup{}) {}
  Worker(const std::string& mode, const Setup& setup);

  [[nodiscard]] pid_t pid() const { return child_->pid(); }
  [[nodiscard]] bool is_alive() const { return child_->is_alive(); }
  [[nodiscard]] bool ends_within(std::chrono::milliseconds bound) const {
    return child_->ends_within(bound);
  }
  ExitStatus status() { return child_->status(); }
  void signal(int number) const { child_->signal(number); }
  void wait_until_stopped() const { child_->wait_until_stopped(); }
  // The next line it says.
  std::string line();
  // Pids that came with "ready", by what they are: "child", "session", ...
  HeldPid& descendant(const std::string& name) { return descendants_.at(name); }
  [[nodiscard]] std::map<std::string, HeldPid>& descendants() { return descendants_; }
  // Ends its standard input.
  void let_go() { input_.reset(); }

 private:
  UniqueFd input_;
  UniqueFd output_;
  std::string read_;
  std::unique_ptr<Child> child_;
  std::map<std::string, HeldPid> descendants_;
};

}  // namespace filetimer::testing
