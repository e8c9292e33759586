// The client of filetimer: wrap a piece of work in a scope with a deadline, and the timer_server on
// this host kills the process if the scope is still open at its deadline.
//
//   auto client = filetimer::TimerClient::connect();
//   {
//     auto scope = client.expires(1.5s, "forward");
//     forward(batch);
//   }  // left in time: nothing happens
//
// Every function takes the timeout first, then the name. A timeout is any std::chrono duration; the
// max() of any duration means no deadline (timeout.hpp).
//
// Errors: connect() throws, and other functions throw for wrong arguments. After connect() no call
// waits for a server or raises SIGPIPE, whatever happens to the server: a worker never fails
// because of its watchdog. Once the threads have all 1,024 slots of the process, further scopes are
// not watched, and one line on standard error says so. A thread keeps its slots until it ends.
//
// All members of TimerClient may be called from several threads, and none from a signal handler. A
// forked child is a worker of its own: it starts with no open scope and may use the client that it
// inherited. Moved-from clients do nothing, like a client that connected under $FILETIMER=off.
//
// Cost: a scope costs about as much as three readings of the clock. docs/cpp.md says more, and what
// the library does to a process: descriptors, signals, tracing, messages. Control requests, such as
// status and shutdown, are in admin.hpp.
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

// The timeout of a scope without a deadline.
inline constexpr std::chrono::nanoseconds kNoDeadline = std::chrono::nanoseconds::max();

struct ConnectOptions {
  // The runtime directory; empty: $FILETIMER_DIR, then the default directory.
  std::string dir{};
  enum class Missing {
    kIgnore,  // returns at once; a server that starts later watches the scopes
    kWait,    // waits up to `timeout`, then throws ServerUnavailable
    kRaise,   // throws ServerUnavailable at once
  };
  // What connect() does if no server runs. $FILETIMER_MISSING, which is ignore, wait or raise,
  // takes precedence.
  Missing missing = Missing::kIgnore;
  // How long kWait waits: zero or more.
  Timeout timeout = std::chrono::seconds{10};
  // Called at least every half a second while connect() waits. An exception that it throws ends the
  // wait and leaves connect().
  std::function<void()> while_waiting{};
  // The longest time that this process may be in no scope at all, 100 ms to about 31 years; zero:
  // no limit. It counts from the first time that the process leaves a scope after connect(). A
  // process that exceeds it expires; the scope in its record is "(idle)". The idle timeout ends
  // with this client, and a forked child has none. The server's --max-timeout does not cut it.
  Timeout idle_timeout = std::chrono::seconds{0};
  // A TOML file with timeouts by scope name, as `timer_client suggest --format toml` writes them;
  // empty: none. $FILETIMER_TIMEOUTS takes precedence. See docs/cpp.md.
  std::string timeouts{};
  // Whether the server may trace this process, so that evidence has its native stacks where Yama
  // restricts tracing. False does not withdraw what an earlier client has allowed.
  bool stacks = true;
};

struct ScopeOptions {
  // The first signal of a kill: 1 to 64; 0: the expiry is recorded and no signal is sent.
  int signal = 9;
  // From that signal to SIGKILL. Not set: the server's --grace. kNoDeadline: never SIGKILL.
  std::optional<Timeout> grace{};
  // From the opening or renewal of the scope to a warning: if the scope is still open then, the
  // server records what the process does and sends no signal. Over zero, below the timeout and at
  // most 49 days; rounded up to whole milliseconds. Not set: the server's --warn-at.
  std::optional<Timeout> warn_after{};
  // The timeout of the first scope of this name that the client opens, and of every heartbeat until
  // its first beat: start-up and compilation take longer. Limits as a timeout's.
  std::optional<Timeout> first_timeout{};
  // Whether `signal` comes when the timeout has passed, to this process alone, and the scope
  // expires after the grace period: the process catches the signal and leaves the scope by itself.
  // If it does not, SIGKILL follows, to its descendants as well. Useless with SIGKILL.
  bool signal_first = false;
};

// The default options of a scope; made once, not for each scope.
inline constexpr ScopeOptions kDefaultScopeOptions{};

struct SlotHandle;  // internal to the library, as the next three types
struct ScopeKey;
enum class Opening : unsigned char;
class OwnPage;

// What a release found.
//
//   if (scope.release() == ReleaseResult::kExpired) {
//     save_checkpoint();  // the server kills this process, unless it had sent no signal yet
//   }
//
// Converts to true only for kReleased.
class ReleaseResult {
 public:
  enum Value {
    kReleased,  // released before a verdict: this process is not killed for the scope
    kNotOpen,   // the scope was released before, never watched, or is one of a parent process
    kExpired,   // released after the server's verdict
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

// How long a scope has been open, and how much time it has left.
struct TimerTimes {
  std::chrono::nanoseconds elapsed{};  // since it was opened
  // Until the deadline: negative after it, and kNoDeadline without one. Of a paused scope: the time
  // that it will have when it is resumed, or once the pause has lasted for --max-timeout of the
  // server, the negative time since then.
  std::chrono::nanoseconds remaining{};
  bool paused = false;
  bool expired = false;  // the server has given its verdict
  // Of the opening or the last renewal, as a file of timeouts has it if it has the name;
  // kNoDeadline without a deadline. --max-timeout of the server may cut it.
  std::chrono::nanoseconds timeout{};
};

// Opens scopes on the page of this process; see the head of this file.
class TimerClient {
 public:
  // Makes this process's page in the runtime directory, and the directory if it is missing. By
  // default it returns at once, whether a server runs or not; `options` and $FILETIMER_MISSING can
  // make it wait or throw. Throws InvalidArgument. With kWait and kRaise it also throws
  // ServerUnavailable, and TimerError if the page cannot be made; with kIgnore scopes are not
  // watched until the page can be made.
  static TimerClient connect(ConnectOptions options = {});

  TimerClient(TimerClient&&) noexcept;
  TimerClient& operator=(TimerClient&&) noexcept;
  // Ends the scope of start() and the idle timeout. An open TimerScope stays watched.
  ~TimerClient() = default;

  // Stops, while the returned object lives, the time of all scopes that this thread has open or
  // opens on this client's page (clients of one runtime directory share a page). The region itself
  // is a scope without a deadline under `name` (empty: the caller's file and line), which shows
  // where the thread is. The server's --max-timeout applies to it, too. The object must be
  // destroyed in the thread that made it. Regions may be nested. Throws as expires().
  [[nodiscard]] PausedRegion paused(std::string_view name = {}, const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE());

  // Opens a scope for as long as the returned object lives. Several scopes may be open under one
  // name; each is enforced. `timeout`: over zero, at most about 31 years, or kNoDeadline. `name`:
  // any bytes; a name over 255 bytes is shown cut and marked; empty: the caller's file and line, as
  // "train.cpp:123". While the server drains or shuts down, and without a free slot (see above),
  // the returned scope is not watched and not open. Throws InvalidArgument. It takes no lock and
  // allocates nothing once the thread has used the name; a name that is new each time costs some
  // microseconds. If a thread ends inside a scope, the scope stays watched.
  [[nodiscard]] TimerScope expires(Timeout timeout, std::string_view name = {},
                                   const ScopeOptions& options = kDefaultScopeOptions,
                                   const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE());

  // Opens a scope that expires if beat() is not called for `timeout`: for a loop that has no
  // natural end to wrap a scope around. A beat costs as much as a scope. Throws as expires().
  [[nodiscard]] TimerHeartbeat heartbeat(Timeout timeout, std::string_view name = {},
                                         const ScopeOptions& options = kDefaultScopeOptions,
                                         const char* file = __builtin_FILE(),
                                         int line = __builtin_LINE());

  // Opens one scope for the whole job, named "job". A second start() renews it, or opens it again
  // if it is not open any more. start() and stop() take a lock of the process for a moment. A
  // stop() during the start() of another thread may find no scope to end. Throws as expires().
  void start(Timeout timeout);
  // Opens it with the server's --default-timeout. Throws InvalidArgument if the server has none, or
  // if no server has ever run.
  void start();
  // Ends the scope of start().
  ReleaseResult stop() noexcept;

  // Returns whether a server reads the pipe of the runtime directory now.
  [[nodiscard]] bool is_watched() const noexcept;
  // Returns the path of the server's request pipe, for messages.
  [[nodiscard]] std::string target() const;

  // Returns the file from which the server reads stacks that this process writes on a signal, as an
  // interpreter can (Python's faulthandler); empty: this process has no page. The process makes the
  // file, 0600, and keeps it open. A forked child has no page until it opens its first scope, and
  // then a file of its own.
  [[nodiscard]] std::string stacks_file() const;
  // Has the server send `signal` when it asks for the stacks of this process (its own expiry or a
  // peer's, a scope that is signalled first, `timer_client dump`), and read the stacks that the
  // process then writes. `signal`: 1 to 64, which the process must catch already; 0: no longer.
  // `file`: the descriptor of stacks_file() that the process writes to. If the runtime directory is
  // removed and made again, the client makes the stacks file of its new page and lets the
  // descriptor refer to that file; with -1, or a descriptor that was closed in the meantime, the
  // new page offers no stacks. If another handler of the signal is installed later, the client
  // withdraws the offer within a second, while scopes are opened. Returns false if this process has
  // no page. Throws InvalidArgument.
  bool offer_stacks(int signal, int file = -1);

 private:
  friend class TimerHeartbeat;
  struct State;
  explicit TimerClient(std::shared_ptr<State> state);
  static const std::shared_ptr<State>& inactive_state();
  static const bool has_inactive_state;  // makes it when the library is loaded
  TimerScope expires_otherwise(std::chrono::nanoseconds after, const ScopeKey& key,
                               const ScopeOptions& options, Opening opening);
  std::shared_ptr<State> state_;
};

// An open scope. The end of the object releases it.
//
//   {
//     auto scope = client.expires(30s, "forward");
//     forward(batch);
//   }
//
// Opening and releasing a scope costs about three readings of the clock; the first use of a name by
// a thread costs some microseconds. A TimerScope can be moved, to another thread, too, and not
// copied. Threads that share one need a lock. A TimerScope may outlive its client. After a move the
// source is not open. In a forked child the scopes of the parent are not open.
class [[nodiscard]] TimerScope {
 public:
  // Makes a scope that is not open.
  TimerScope() = default;
  TimerScope(TimerScope&& other) noexcept;
  TimerScope& operator=(TimerScope&& other) noexcept;
  ~TimerScope() {
    if (number_ != 0) {
      release();
    }
  }

  // Moves the deadline to `timeout` from now. Returns false if the scope is not open, or if the
  // server's verdict came first; the scope is released then. Throws InvalidArgument.
  bool renew(Timeout timeout);
  // Releases the scope before the object ends, and returns whether it was in time.
  ReleaseResult release() noexcept;
  // Stops the time of the scope until resume(): for a checkpoint, or a debugger. The server's
  // --max-timeout applies to the pause, too. A scope that is renewed while it is paused stays
  // paused and will have the new timeout. Both return false if the scope is not open; a second
  // pause() or resume() has no effect. They take a lock of the process for a moment.
  bool pause() { return set_paused(true); }
  // Gives the scope the time that was left at its pause().
  bool resume() { return set_paused(false); }
  // Returns nothing if the scope is not open. The deadline is the one that the server granted:
  // --max-timeout may have cut it.
  [[nodiscard]] std::optional<TimerTimes> times() const;

 private:
  friend class TimerClient;
  friend class TimerHeartbeat;
  explicit TimerScope(SlotHandle& slot) noexcept;
  [[nodiscard]] bool is_open() const noexcept;
  bool set_paused(bool is_paused);
  bool follow_page(std::chrono::nanoseconds after, Opening opening);
  SlotHandle* slot_ = nullptr;
  unsigned long long number_ = 0;  // of the scope among those of the slot; 0: released or moved
  unsigned fork_count_ = 0;        // a child must not release what its parent opened
};

// A scope that each beat() renews, for a loop without a natural end.
//
//   auto heart = client.heartbeat(5s, "pump", {.first_timeout = 10min});
//   while (pump()) {
//     heart.beat();
//   }
//
// A beat costs as much as opening a scope. renew() gives one beat another timeout. Threads, forks
// and moves: as TimerScope. Moved into a TimerScope it stays open, without beat().
class [[nodiscard]] TimerHeartbeat : public TimerScope {
 public:
  // Moves the deadline to the timeout from now. Returns false if the scope is not open: it was
  // released, was never watched, or expired. One that expired is opened anew, because its loop goes
  // on; its client must live. Throws as expires().
  bool beat() { return renew(timeout_) || begin_again(); }
  // Returns the scope alone, for a caller that keeps it as a TimerScope.
  TimerScope scope() && { return std::move(*this); }

 private:
  friend class TimerClient;
  TimerHeartbeat(TimerScope scope, Timeout timeout, std::string name, const ScopeOptions& options,
                 std::weak_ptr<TimerClient::State> state)
      : TimerScope(std::move(scope)),
        timeout_(timeout),
        name_(std::move(name)),
        options_(options),
        state_(std::move(state)) {}
  bool begin_again();  // returns false

  Timeout timeout_;
  std::string name_;
  ScopeOptions options_;
  std::weak_ptr<TimerClient::State> state_;
};

// A region of one thread in which the time of its scopes stands still; see TimerClient::paused().
//
//   {
//     const auto region = client.paused("checkpoint");
//     save(model);
//   }
//
// A region costs some microseconds and takes a lock of the process. It must end in the thread that
// made it. In a forked child the regions of the parent have no effect.
class [[nodiscard]] PausedRegion {
 public:
  PausedRegion(const PausedRegion&) = delete;
  PausedRegion& operator=(const PausedRegion&) = delete;
  ~PausedRegion();

 private:
  friend class TimerClient;
  PausedRegion(TimerScope marker, OwnPage& page);
  void change(bool begins);
  TimerScope marker_;
  OwnPage* page_;
  pid_t tid_;
  unsigned fork_count_;
};

}  // namespace filetimer
