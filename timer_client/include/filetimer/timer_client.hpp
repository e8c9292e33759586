// filetimer's client: wrap a piece of work in a scope with a deadline, and the timer_server on this
// host kills the process when the scope is still open at its deadline.
//
//   auto client = filetimer::TimerClient::connect();
//   {
//     auto scope = client.expires(30s, "forward");
//     forward(batch);
//   }  // left in time: nothing happens
//
// Only connect(), wrong arguments and more than 1,024 open scopes throw. Once connected, no call
// blocks or raises SIGPIPE, whatever happens to the server: a worker never fails for its watchdog.
// What can't be sent at once (the server is busy, or gone) a thread of the library sends later,
// with the deadline it had; when a server that was found gone is back, all open scopes are
// announced to it. A server that restarts while this process sends nothing is not noticed until it
// does. All members of TimerClient may be called from several threads. After fork() the child is a
// worker of its own: it starts with no open scope and may use the client that it inherited.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filetimer/transport.hpp>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace filetimer {

// The base of every error that this library throws.
class TimerError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
// No server was there within ConnectOptions::timeout.
class ServerUnavailable : public TimerError {
  using TimerError::TimerError;
};
// A timeout of zero or less, a signal that does not exist, and the like.
class InvalidArgument : public TimerError {
  using TimerError::TimerError;
};

// A timeout for a scope that is open without a deadline.
inline constexpr std::chrono::nanoseconds kNoDeadline = std::chrono::nanoseconds::max();

struct ConnectOptions {
  // The run folder; empty: $FILETIMER_DIR, then the default folder.
  std::string dir;
  // The pipe itself; empty: `requests` in the run folder, or $TORCHELASTIC_TIMER_FILE where that is
  // set and neither `dir` nor $FILETIMER_DIR is.
  std::string fifo;
  // How long connect() tries, with growing pauses, to find a server. Zero: one try. With
  // kUnwatched it does not wait.
  std::chrono::nanoseconds timeout = std::chrono::seconds{10};
  enum class Missing {
    kThrow,      // connect() throws ServerUnavailable
    kUnwatched,  // carry on; scopes are watched from the time a server is there
  };
  Missing when_missing = Missing::kThrow;
  // A transport of your own; null: version-1 lines on the pipe.
  std::unique_ptr<Transport> transport;
};

struct ScopeOptions {
  int signal = 9;  // what the server kills with: 1 to 64; 0: record the expiry, kill nobody
  // From the signal to SIGKILL. Not set: the server's --grace. kNoDeadline: never SIGKILL.
  std::optional<std::chrono::nanoseconds> grace;
  // The process that is watched; 0: this one. Another one must belong to the same user.
  pid_t pid = 0;
  // The scope is the whole life of that process: its end in time is as good as a release.
  bool whole_process = false;
};

// Names one open timer of a client. A default-made one names none: releasing it does nothing.
class TimerId {
 public:
  TimerId() = default;
  [[nodiscard]] explicit operator bool() const { return number_ != 0; }

 private:
  friend class TimerClient;
  TimerId(unsigned long long number, unsigned fork_count)
      : number_(number), fork_count_(fork_count) {}
  unsigned long long number_ = 0;
  unsigned fork_count_ = 0;  // a child must not release what its parent acquired
};

class TimerScope;

class TimerClient {
 public:
  // Finds the server. Throws ServerUnavailable (see ConnectOptions) and InvalidArgument.
  static TimerClient connect(ConnectOptions options = {});

  TimerClient(TimerClient&&) noexcept;
  TimerClient& operator=(TimerClient&&) noexcept;
  // Releases what acquire() and start() opened and is still open. An open TimerScope stays watched.
  ~TimerClient();

  // Starts a timer. Several may be open under one name; each is enforced.
  // `name`: any bytes, not empty; over 255 bytes it is shown cut, and marked.
  // `after`: over zero, at most about 31 years, or kNoDeadline.
  // Throws InvalidArgument, and TimerError when 1,024 scopes are open in the watched process.
  TimerId acquire(std::string_view name, std::chrono::nanoseconds after,
                  const ScopeOptions& options = {});
  // Pushes the deadline to `after` from now. False when the timer is not open. Throws
  // InvalidArgument.
  bool renew(TimerId timer, std::chrono::nanoseconds after);
  // Ends a timer. False when it was not open, or when its deadline had passed already (the server
  // may have judged it by then).
  bool release(TimerId timer) noexcept;

  // A timer for as long as the returned object lives. Without a name: the caller's file and line,
  // as "train.cpp:123". Throws as acquire().
  [[nodiscard]] TimerScope expires(std::chrono::nanoseconds after, std::string_view name = {},
                                   const ScopeOptions& options = {},
                                   const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE());

  // One timer for the whole job, named "job". A second start() renews it. Throws as acquire().
  void start(std::chrono::nanoseconds after);
  bool stop() noexcept;  // as release()

  // Whether the last attempt to find a server or to send to it found one.
  [[nodiscard]] bool is_watched() const noexcept;
  // Where requests go, for messages.
  [[nodiscard]] std::string target() const;

 private:
  struct State;
  explicit TimerClient(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
  friend class TimerScope;
};

// An open timer that is released when the object goes out of scope. Movable, not copyable. It
// keeps what it needs of its client alive. Not to be shared between threads without a lock.
class [[nodiscard]] TimerScope {
 public:
  TimerScope(TimerScope&& other) noexcept;
  TimerScope& operator=(TimerScope&& other) noexcept;
  ~TimerScope() { release(); }

  // As TimerClient::renew and TimerClient::release.
  bool renew(std::chrono::nanoseconds after);
  bool release() noexcept;

 private:
  friend class TimerClient;
  TimerScope(std::shared_ptr<TimerClient::State> state, TimerId timer);
  std::shared_ptr<TimerClient::State> state_;
  TimerId timer_;
};

}  // namespace filetimer
