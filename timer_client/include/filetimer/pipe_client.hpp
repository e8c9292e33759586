// Timers on a bare request pipe: for a program that has only the pipe, such as that of PyTorch's
// FileTimerServer, and for timers of other processes.
//
//   filetimer::PipeClient pipe(std::getenv("TORCHELASTIC_TIMER_FILE"));
//   if (pipe.acquire(30s, "copy") == filetimer::PipeClient::Sent::kYes) {
//     copy();
//     pipe.release("copy");
//   }
//
// Each call opens the pipe, writes one line, and closes the pipe: about 17 us. A PipeClient starts
// no thread and has no state, sends no line again, and its end releases no timer. The scopes of a
// TimerClient cost 45 ns, have statistics, and are watched although the pipe is full or the server
// starts later.
//
// No member blocks, throws or raises SIGPIPE. All members may be called from several threads and
// from forked children; none may be called from a signal handler.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace filetimer {

// The options of a timer, besides its timeout and name.
struct PipeTimerOptions {
  // The process that the server kills; 0: this one. The server takes the pid for one of its own pid
  // namespace, so client and server must share that.
  pid_t pid = 0;
  // The first signal: 1 to 64; 0: the expiry is recorded and no process is signalled.
  int signal = 9;
  // From that signal to SIGKILL; nanoseconds::max(): never. Not set: the server's --grace.
  std::optional<std::chrono::nanoseconds> grace{};
  // From the acquire to a warning, which the server records if the timer is still open. Not set:
  // the server's --warn-at.
  std::optional<std::chrono::nanoseconds> warn_after{};
};

// Writes requests to one named pipe; see the head of this file.
class PipeClient {
 public:
  enum class Sent {
    kYes,       // the whole line is in the pipe
    kBusy,      // the pipe is full, or this process has no descriptor to spare: try again
    kNoServer,  // no process reads the pipe, or the pipe cannot be opened
  };

  // Opens nothing yet. `path`: the named pipe.
  explicit PipeClient(std::string path) : path_(std::move(path)) {}

  // Acquires the timer `name` of the process, or renews it if it is open: pid and name are its
  // identity. `after`: its timeout from now on; nanoseconds::max(): none. A name over 255 bytes is
  // cut and marked.
  Sent acquire(std::chrono::nanoseconds after, std::string_view name,
               const PipeTimerOptions& options = {}) const noexcept;
  // Releases the timer `name` of the process `pid`; 0: of this one. A release of a timer that is
  // not open has no effect.
  Sent release(std::string_view name, pid_t pid = 0) const noexcept;

  // Returns why requests cannot be sent now, as one clear line; empty: a process reads the pipe.
  [[nodiscard]] std::string why_no_server() const;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace filetimer
