// How a TimerClient's requests travel. Derive from Transport to build a custom timer: record the
// requests, send them to a service of your own, or count them in a test.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace filetimer {

// What a client asks of a server: acquire (or renew) a timer, or release it.
struct TimerRequest {
  pid_t pid = 0;         // the worker
  pid_t tid = 0;         // the thread that asks; 0: not told
  std::string timer_id;  // the timer's identity within the worker
  std::string scope;     // the name that people gave it; several timers may share it
  bool release = false;
  // What the caller asked for when it acquired or renewed; nanoseconds::max(): no deadline. Not
  // used by a release.
  std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max();
  // The deadline as Unix time in seconds, +infinity for none. It counts: a request that could not
  // be sent at once is sent again with its first deadline. Not used by a release.
  double expiration_time = 0;
  int signal = 9;  // 0: record the expiry, kill nobody
  // From the signal to SIGKILL; negative: the server's default; nanoseconds::max(): never.
  std::chrono::nanoseconds grace{-1};
  // From the acquire or renewal to a warning; zero: when the server's --warn-at says.
  std::chrono::nanoseconds warn_after{0};
  bool whole_process = false;  // the worker's end ends the scope in time
  bool idle = false;           // no scope but an idle timeout: open while the worker is in none
  bool spare_if_left = false;  // released within the grace, nobody is killed for it
};

class Transport {
 public:
  enum class Sent {
    kYes,
    kTryLater,  // the way is full for the moment
    kNoServer,  // nobody reads at the other end; a server may come (back)
  };

  virtual ~Transport() = default;

  // Sends one request. Called by several threads, one at a time: the library holds its lock, which
  // all clients of the process share. Must not block, throw, raise a signal, fork, or call a
  // TimerClient. What was not sent is asked for again, from a thread of the library.
  virtual Sent send(const TimerRequest& request) noexcept = 0;

  // Whether a server is there now; must not block. `why` gets one clear line when it is not.
  virtual bool server_is_there(std::string& why) noexcept = 0;

  // Where it leads, for messages: a path or an address.
  [[nodiscard]] virtual std::string target() const = 0;
};

}  // namespace filetimer
