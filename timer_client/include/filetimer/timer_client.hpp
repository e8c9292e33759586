// The client of filetimer: wrap a piece of work in a scope with a deadline, and the timer_server on
// this host kills the process if the scope is still open at its deadline.
//
//   auto client = filetimer::TimerClient::connect();
//   {
//     auto scope = client.expires(1.5s, "forward");
//     forward(batch);
//   }  // left in time: nothing happens
//
// Every function takes the timeout first, then the name. Any std::chrono duration is a timeout, and
// the max() of any duration is none (timeout.hpp).
//
// Errors: only connect(), wrong arguments and more than 1,024 open scopes throw. Once connected, no
// call waits for a server, and none raises SIGPIPE, whatever happens to the server: a worker never
// fails for its watchdog.
//
// Environment: $FILETIMER=off makes connect() return a client that does nothing, and
// $FILETIMER_MISSING says what connect() does if no server runs.
//
// The page: this process writes its open scopes into a small file in the runtime directory, which
// the server maps, too. It is made whether a server runs or not. So scopes are watched from the
// moment a server starts, those included that are open then, and again after a restart of the
// server. If the runtime directory is removed and made again, scopes that are opened or renewed a
// second later are on a new page; a scope that stays open without a renewal stays on the old one.
//
// Cost: a scope costs about as much as two readings of the clock, three with statistics. It makes
// no system call, but for a look at the runtime directory once a second, and for a message if the
// server has to be woken for an earlier deadline. Each thread writes to memory of its own. The
// first use of a name by a thread, acquire(), and the first scope of a forked child may make a file
// larger, which takes some microseconds.
//
// Threads: all members of TimerClient may be called from several threads. Signal handlers: no
// function may be called in one. Moved-from clients do nothing, as one under $FILETIMER=off.
//
// fork(): the child is a worker of its own. It starts with no open scope and may use the client
// that it inherited; scopes and timers of its parent do nothing in it.
//
// Descriptors: the kernel names the page's owner by a file lock. A process that closes all its
// descriptors loses it, so it must do that before connect().
//
// Signals: the first connect() installs a handler of SIGBUS, for the case that another process cuts
// a file of the runtime directory short. Other faults go to the handler that was there before.
//
// Tracing: so that the server can record where a hung process was, connect() lets processes of the
// same user trace this one (PR_SET_PTRACER_ANY, which counts where Yama's ptrace_scope is 1),
// unless ConnectOptions::allow_tracing is false.
//
// Messages: the library writes one line on standard error if it finds no server, and nothing else,
// unless $FILETIMER_LOG_LEVEL is error, warning, info or debug at connect(): then one line a
// message, "filetimer[PID] debug: ...", none for a scope. A line that cannot be written at once is
// dropped.
//
// A program that has only a request pipe, such as that of PyTorch's server, uses PipeClient
// (pipe_client.hpp). Control requests, such as status and shutdown, are in admin.hpp.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filetimer/errors.hpp>
#include <filetimer/timeout.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace filetimer {

// A timeout for a scope that is open without a deadline.
inline constexpr std::chrono::nanoseconds kNoDeadline = std::chrono::nanoseconds::max();

struct ConnectOptions {
  // The runtime directory; empty: $FILETIMER_DIR, then the default directory.
  std::string dir;
  enum class Missing {
    kIgnore,  // go on at once; scopes are watched from the moment a server starts
    kWait,    // wait up to `timeout`, then throw ServerUnavailable
    kRaise,   // throw ServerUnavailable at once
  };
  // What connect() does if no server runs. $FILETIMER_MISSING, which is ignore, wait or raise,
  // takes precedence.
  Missing when_missing = Missing::kIgnore;
  // How long kWait waits: zero or more.
  Timeout timeout = std::chrono::seconds{10};
  // Called at least every half a second while connect() waits; what it throws ends the wait and
  // comes out of connect().
  std::function<void()> while_waiting;
  // Keep count and times of this client's scopes in the page, by thread and name: at most 1,024
  // names, then no more are counted. Costs a second look at the clock with each scope.
  bool statistics = true;
  // Once this process has left the first scope from now on it expires, too, when it has been in no
  // scope at all for this long: then it hangs where no scope is. The record's scope is "(idle)".
  // 100 ms to about 31 years; zero: none. It ends with this client; a forked child has none. The
  // server's --max-timeout does not cut it.
  Timeout idle_timeout = std::chrono::seconds{0};
  // Let processes of this user trace this one, so that evidence has its native stacks where Yama
  // restricts tracing. A process that was opened to them stays so.
  bool allow_tracing = true;
};

struct ScopeOptions {
  int signal = 9;  // what the server kills with: 1 to 64; 0: record the expiry, kill nobody
  // From the signal to SIGKILL. Not set: the server's --grace. kNoDeadline: never SIGKILL.
  std::optional<Timeout> grace{};
  // The server records a warning when the scope is still open this long after it was opened or
  // renewed, with what its process does then; nobody is signalled. Over zero, below the timeout and
  // at most 49 days; kept in whole milliseconds, rounded up. Not set: the server's --warn-at.
  std::optional<Timeout> warn_after{};
  // In place of the timeout the first time, which start-up and compilation make longer: for the
  // first scope of this name that the client opens, and for every heartbeat until its first beat.
  // Limits as a timeout's.
  std::optional<Timeout> first_timeout{};
  // For a `signal` that the process catches, to leave the scope by itself: the signal goes to the
  // process alone, not to its descendants, and when the scope is left (released) before the grace
  // is over nobody is killed for it. With SIGKILL there is nothing to leave.
  bool spare_if_left = false;
};

// What a scope is opened with where nothing else is said; made once, not for each scope.
inline constexpr ScopeOptions kDefaultScopeOptions{};

struct SlotHandle;  // these are the library's own
struct ScopeKey;
class OwnPage;
class ThreadSlots;

// Names one open timer of a client. A default-made one names none: releasing it does nothing.
class TimerId {
 public:
  TimerId() = default;
  [[nodiscard]] explicit operator bool() const { return number_ != 0; }

 private:
  friend class TimerClient;
  friend class TimerScope;
  TimerId(SlotHandle* slot, unsigned long long number, unsigned fork_count)
      : slot_(slot), number_(number), fork_count_(fork_count) {}
  SlotHandle* slot_ = nullptr;
  unsigned long long number_ = 0;
  unsigned fork_count_ = 0;  // a child must not release what its parent acquired
};

// What a release found.
//
//   if (scope.release() == ReleaseResult::kExpired) {
//     save_checkpoint();  // the server is about to kill this process
//   }
//
// Converts to true only for kReleased.
class ReleaseResult {
 public:
  enum Value {
    kReleased,  // before any verdict: this process is not killed for the scope
    kNotOpen,   // nothing was open: released before, not watched, or of a parent process
    kExpired,   // the verdict came first
  };
  constexpr ReleaseResult(Value value) : value_(value) {}  // NOLINT: `== kExpired` is meant to work
  [[nodiscard]] explicit constexpr operator bool() const { return value_ == kReleased; }
  [[nodiscard]] constexpr Value value() const { return value_; }
  friend constexpr bool operator==(ReleaseResult, ReleaseResult) = default;

 private:
  Value value_;
};

class TimerScope;
class TimerHeartbeat;
class PausedRegion;

// How long a timer has been open, and what is left of it.
struct TimerTimes {
  std::chrono::nanoseconds elapsed{};  // since it was acquired
  // Until the deadline: kNoDeadline where it has none, negative when it has passed. Of one that is
  // paused: what it will have when it goes on.
  std::chrono::nanoseconds remaining{};
  bool is_paused = false;
  // It came too late: the server's verdict came first.
  bool is_expired = false;
};

class TimerClient {
 public:
  // Makes this process's page in the runtime directory, and the directory if it is missing, and
  // returns whether a server runs or not, unless `options` or $FILETIMER_MISSING ask otherwise.
  // Throws InvalidArgument, and with kWait and kRaise ServerUnavailable, and TimerError if the page
  // cannot be made; with kIgnore scopes are not watched until it can.
  static TimerClient connect(ConnectOptions options = {});

  TimerClient(TimerClient&&) noexcept;
  TimerClient& operator=(TimerClient&&) noexcept;
  // Releases what acquire() and start() opened and is still open. An open TimerScope stays watched.
  ~TimerClient();

  // Starts a timer. Several may be open under one name; each is enforced. While the server drains
  // or shuts down, it gives a timer that nobody watches, as expires() does: to renew and to release
  // it gives false. `name`: any bytes, not empty; over 255 bytes it is shown cut, and marked.
  // `after`: over zero, at most about 31 years, or kNoDeadline.
  // Throws InvalidArgument, and TimerError when 1,024 scopes are open in this process. Takes a lock
  // of the process for a moment, as renew(), release(), start() and stop() do.
  TimerId acquire(Timeout after, std::string_view name,
                  const ScopeOptions& options = kDefaultScopeOptions);
  // Pushes the deadline to `after` from now. False when the timer is not open, or when the server's
  // verdict came first; it is released then. Throws InvalidArgument.
  bool renew(TimerId timer, Timeout after);
  // Ends a timer, from any thread.
  ReleaseResult release(TimerId timer) noexcept;
  // From pause() to resume() the timer's time stands still: for a checkpoint, or a debugger. The
  // server's --max-timeout holds on, from the pause. Renewed while it is paused it stays so, with
  // the new timeout left. False when it is not open; pausing what is paused, or resuming what is
  // not, changes nothing.
  bool pause(TimerId timer);
  bool resume(TimerId timer);
  // As long as the returned object lives, the time of all scopes stands still that this thread has
  // open or opens on this client's page (its clients of that runtime directory share it); and a
  // scope without a deadline under `name` (empty: the caller's file and line) tells where the
  // thread is. --max-timeout holds for that one, too. The object has to end in the thread that made
  // it. Regions may be nested. Throws as acquire().
  [[nodiscard]] PausedRegion paused(std::string_view name = {}, const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE());

  // A timer for as long as the returned object lives. Without a name: the caller's file and line,
  // as "train.cpp:123". Throws as acquire(). It takes no lock and allocates nothing once the thread
  // has used the name; names that are new each time cost some microseconds.
  // A thread that ends leaves open scopes watched, and the server notes it.
  [[nodiscard]] TimerScope expires(Timeout after, std::string_view name = {},
                                   const ScopeOptions& options = kDefaultScopeOptions,
                                   const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE());

  // A timer that expires when its beat() does not come for `timeout`: for a loop that has no
  // natural end to wrap a scope around. A beat costs what a scope costs. Throws as acquire().
  [[nodiscard]] TimerHeartbeat heartbeat(Timeout timeout, std::string_view name = {},
                                         const ScopeOptions& options = kDefaultScopeOptions,
                                         const char* file = __builtin_FILE(),
                                         int line = __builtin_LINE());

  // Of an open timer; nothing when it is not open. The deadline is the one that the server granted:
  // --max-timeout may have cut it.
  [[nodiscard]] std::optional<TimerTimes> times(TimerId timer) const;

  // One timer for the whole job, named "job". A second start() renews it. Throws as acquire().
  void start(Timeout after);
  // With the server's --default-timeout. Throws InvalidArgument when it has none, or none has run.
  void start();
  ReleaseResult stop() noexcept;

  // Whether a server reads the pipe of the runtime directory now.
  [[nodiscard]] bool is_watched() const noexcept;
  // Where requests go, for messages: the server's pipe.
  [[nodiscard]] std::string target() const;

  // For a process that can write stacks of its own when it is signalled, as an interpreter can
  // (Python's faulthandler). The file that the server looks for them in, which the process makes,
  // 0600, and keeps open; empty: there is no page. A forked child has no page until it opens its
  // first scope, and then a file of its own.
  [[nodiscard]] std::string stacks_file() const;
  // From now on the server asks for them, once a scope of this process has expired, by `signal`,
  // which must be caught already: 1 to 64; 0: no longer. `file`: the descriptor of stacks_file()
  // that the process writes to. If the runtime directory is removed and made again, the client
  // makes the stacks file of its new page and lets the descriptor refer to that file; -1, or a
  // descriptor that was closed in the meantime: the new page offers no stacks. Returns false if
  // there is no page. Throws InvalidArgument.
  bool offer_stacks(int signal, int file = -1);

 private:
  struct State;
  explicit TimerClient(std::shared_ptr<State> state);
  static const std::shared_ptr<State>& state_of_nobody();
  TimerScope expires_otherwise(std::chrono::nanoseconds after, const ScopeKey& key,
                               const ScopeOptions& options);
  void set_idle_timeout(std::chrono::nanoseconds timeout, bool must_be_there);
  static bool set_paused(TimerId timer, bool is_paused);
  std::shared_ptr<State> state_;
  friend class TimerScope;
  friend class PausedRegion;
};

// An open scope, which its end in the program releases.
//
//   {
//     auto scope = client.expires(30s, "forward");
//     forward(batch);
//   }
//
// Entering and leaving one costs about two readings of the clock, three with statistics; the first
// use of a name by a thread costs some microseconds. Movable, also to another thread, not copyable;
// not to be shared between threads without a lock. It may outlive its client. One that was moved
// from is not open. In a forked child the scopes of the parent are not open.
class [[nodiscard]] TimerScope {
 public:
  TimerScope(TimerScope&& other) noexcept;
  TimerScope& operator=(TimerScope&& other) noexcept;
  ~TimerScope() {
    if (timer_) {
      release();
    }
  }

  // Moves the deadline to `after` from now. Returns false if the scope is not open, or if the
  // server's verdict came first; the scope is released then. Throws InvalidArgument.
  bool renew(Timeout after);
  // Leaves the scope before the object ends.
  ReleaseResult release() noexcept;
  // Stops the time of the scope, and starts it again; see TimerClient::pause().
  bool pause();
  bool resume();
  // Returns nothing if the scope is not open; see TimerClient::times().
  [[nodiscard]] std::optional<TimerTimes> times() const;

 private:
  friend class TimerClient;
  explicit TimerScope(TimerId timer) noexcept : timer_(timer) {}
  void follow_page(std::chrono::nanoseconds after);
  TimerId timer_;
};

// A scope that each beat() renews, for a loop without a natural end.
//
//   auto heart = client.heartbeat(5s, "pump", {.first_timeout = 10min});
//   while (pump()) {
//     heart.beat();
//   }
//
// A beat costs what entering a scope costs. Threads, forks and moves: as TimerScope.
class [[nodiscard]] TimerHeartbeat {
 public:
  // Gives the loop its timeout again. Returns false if the scope is not open any more: it expired,
  // or was released.
  bool beat() { return scope_.renew(timeout_); }
  ReleaseResult release() noexcept { return scope_.release(); }
  bool pause() { return scope_.pause(); }
  bool resume() { return scope_.resume(); }
  [[nodiscard]] std::optional<TimerTimes> times() const { return scope_.times(); }

 private:
  friend class TimerClient;
  TimerHeartbeat(TimerScope scope, Timeout timeout) : scope_(std::move(scope)), timeout_(timeout) {}
  TimerScope scope_;
  Timeout timeout_;
};

// A region of one thread in which the time of its scopes stands still; see TimerClient::paused().
//
//   {
//     const auto region = client.paused("checkpoint");
//     save(model);
//   }
//
// Costs some microseconds and takes a lock of the process. Must end in the thread that made it. In
// a forked child the regions of the parent have no effect.
class [[nodiscard]] PausedRegion {
 public:
  PausedRegion(const PausedRegion&) = delete;
  PausedRegion& operator=(const PausedRegion&) = delete;
  ~PausedRegion();

 private:
  friend class TimerClient;
  PausedRegion(TimerScope marker, OwnPage& page);
  TimerScope marker_;
  OwnPage* page_;
  pid_t tid_;
  unsigned fork_count_;
  ThreadSlots* slots_ = nullptr;
};

}  // namespace filetimer
