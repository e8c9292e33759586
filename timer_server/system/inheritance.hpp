// Starts children of the server. The server changes its signal mask, its limits and its
// oom_score_adj; COMMAND and hooks get these as they were when the server was started.
// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/system/own_children.hpp"

namespace filetimer {

// The settings with which the server was started. They exclude scheduling, because a fork does not
// inherit --realtime.
struct Inheritance {
  sigset_t mask{};
  rlimit files{};
  std::string oom_score_adj;  // a number; empty: the server has not changed it

  // Reads the mask and the limits. Must be called before the server changes them.
  static Inheritance of_this_process();
};

struct ChildStart {
  std::vector<std::string> words;  // the first one is searched in PATH
  std::vector<std::string> environment;
  // Both standard outputs of a child that has an empty standard input and a process group of its
  // own. -1: the child shares all of them with the server.
  int output = -1;
};

// Forks a child and does not wait for its execve(). A child whose execve() fails exits with 127.
// With `failure` the errno of a failed execve() can be read from there as an int; after a
// successful one the descriptor is at its end.
Result<OwnChild> start_child(const ChildStart& start, const Inheritance& inheritance,
                             UniqueFd* failure = nullptr);

// Returns the server's environment with FILETIMER_DIR set to `dir` and TORCHELASTIC_TIMER_FILE to
// `pipe`, and without the variables that are for the server alone: TORCHELASTIC_ENABLE_FILE_TIMER,
// NOTIFY_SOCKET, LISTEN_*, WATCHDOG_*.
std::vector<std::string> environment_for_children(const std::string& dir, const std::string& pipe);
// Sets the variable, which then stands in `environment` once.
void set_variable(std::vector<std::string>& environment, std::string_view name,
                  std::string_view value);
void unset_variable(std::vector<std::string>& environment, std::string_view name);

}  // namespace filetimer
