// What a child of the server gets in place of what the server has made of itself: COMMAND, hooks
// and helpers run as if their parent were the one who started the server.
// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/own_children.hpp"

namespace filetimer {

// As the server found itself. Its scheduling is not here: --realtime ends at a fork by itself.
struct Inheritance {
  sigset_t mask{};
  rlimit files{};
  std::string oom_score_adj;  // the number's text; empty: the server leaves it alone

  // Before the server changes any of it.
  static Inheritance of_this_process();
};

struct ChildStart {
  std::vector<std::string> words;  // the first one is looked for in PATH
  std::vector<std::string> environment;
  // Its standard input, and where both of its outputs go; -1: as the server's.
  int input = -1;
  int output = -1;
  bool own_group = false;
};

// Forks and does not wait for the execution. `failure`: from there the errno can be read for which
// it failed, nothing when it did not. A child that can't be executed exits with 127.
Result<OwnChild> start_child(const ChildStart& start, const Inheritance& inheritance,
                             UniqueFd* failure = nullptr);

// The server's environment with FILETIMER_DIR and TORCHELASTIC_TIMER_FILE set, and without what
// belongs to the server alone (TORCHELASTIC_ENABLE_FILE_TIMER, NOTIFY_SOCKET, LISTEN_*,
// WATCHDOG_*).
std::vector<std::string> environment_for_children(const std::string& dir, const std::string& pipe);
// Sets NAME to `value`, in place of what it was.
void set_variable(std::vector<std::string>& environment, std::string_view name,
                  std::string_view value);
void unset_variable(std::vector<std::string>& environment, std::string_view name);

}  // namespace filetimer
