// The children that somebody in this process waits for. Whoever else becomes our child (an orphan
// of COMMAND's, or of a container in which we are pid 1) is reaped by reap_strangers(); of the
// children in here nobody but their owner takes the exit status. Any thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace filetimer {

// How a child ended: with an exit status, or by a signal. With neither: its status was lost.
struct ChildEnd {
  std::optional<int> exit_status;
  int signal = 0;
};

class OwnChild {
 public:
  // Calls `fork`, which gives the pid of a new child, or a number below 1 when there is none. No
  // other thread can reap the child in between. `fork` must not wait for the child: the registry is
  // locked meanwhile.
  static OwnChild start(const std::function<pid_t()>& fork);

  OwnChild() = default;
  OwnChild(OwnChild&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  OwnChild& operator=(OwnChild&& other) noexcept;
  OwnChild(const OwnChild&) = delete;
  OwnChild& operator=(const OwnChild&) = delete;
  // Nobody waits for it any more: it is reaped as a stranger.
  ~OwnChild() { disown(); }

  // 0: there is none, or it is reaped.
  [[nodiscard]] pid_t pid() const { return pid_; }
  explicit operator bool() const { return pid_ > 0; }

  // Its end, once: from then on its pid may be another process's. Nothing while it lives, and while
  // a tracer has not let go of it.
  std::optional<ChildEnd> reap();
  // The same, but waits for as long as it takes: on a side thread, behind a SIGKILL.
  ChildEnd wait();

 private:
  void disown();
  pid_t pid_ = 0;
};

// Those that live or wait to be reaped by their owner.
std::vector<pid_t> own_children();

// Reaps the children that have ended and that nobody owns. False when it is to be called again
// soon, without a SIGCHLD: it could not look past a child that its owner has yet to reap.
bool reap_strangers();

}  // namespace filetimer
