// The kernel of the simulation: clocks, processes, threads and failing calls that are made up. The
// program defines the functions of libc by which the server reaches the kernel (kernel.cpp), so the
// linker binds the server and libstdc++ to them. Files, pipes, epoll and signals to the
// server itself are real. Threads of the server are fibers, which give way only where a thread
// would block: the same seed gives the same history.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace filetimer::sim {

using Nanos = std::int64_t;
inline constexpr Nanos kMs = 1'000'000;
inline constexpr Nanos kSecond = 1'000 * kMs;
inline constexpr Nanos kNever = std::numeric_limits<Nanos>::max();

// The descriptors of the simulation and its workers are above this one, those of the server below.
inline constexpr int kFirstOfWorld = 600;

inline constexpr const char* kServersChild = "hook";  // the name of its process

// What a process does when a signal arrives that can be caught. kUnkillable: it survives SIGKILL.
enum class Reaction { kDies, kReleases, kIgnores, kUnkillable };

struct Process {
  pid_t pid = 0;
  std::uint64_t start = 0;  // clock ticks
  Process* parent = nullptr;
  std::string name;
  std::uint64_t stack = 0;  // where the stack of its program starts
  Reaction reaction = Reaction::kDies;
  bool is_alive = true;
  bool is_halted[3] = {};    // stopped, frozen, traced
  bool is_stuck = false;     // it was to be killed and is unkillable
  int ended_by = 0;          // minus the signal, or an exit status
  std::vector<int> pending;  // signals that wait for the end of a halt
  int end_fd = -1;           // an eventfd that is readable after the end
  [[nodiscard]] bool can_run() const {
    return is_alive && !is_halted[0] && !is_halted[1] && !is_halted[2] && !is_stuck;
  }
};

// The calls that can fail once.
enum class Call {
  kOpen,
  kWrite,
  kPwrite,
  kSync,
  kAllocate,
  kTruncate,
  kUnlink,
  kLink,
  kMake,
  kOpenProcess,
  kSignal,
  kProc,
  kEpoll,
  kFork,
  kRead,
  kLock,
  kOther,
  kSleep,  // the last two cannot fail
};
inline constexpr int kCalls = static_cast<int>(Call::kOther);
inline constexpr int kShort = -1;  // in place of an errno: the call transfers a part

struct Fiber;

class Kernel {
 public:
  // `root`: an empty folder for the folders of /proc.
  explicit Kernel(std::string root);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // --- time ---
  Nanos now = 100'000 * kSecond;
  Nanos wall_offset = 1'795'000'000 * kSecond;
  Nanos suspended = 0;
  Nanos worked = 0;  // CPU time of the server
  // Runs what is due until `time`: events, and the server with its threads.
  void run_until(Nanos time);
  // Calls `event` at `time`.
  void at(Nanos time, std::function<void()> event) { events_.emplace(time, std::move(event)); }

  // --- processes ---
  const std::string root;
  std::vector<std::unique_ptr<Process>> processes;
  Process* self = nullptr;  // the worker that makes the present calls; null: the server or the test
  Process& start(pid_t pid, Process* parent, std::string name);
  Process* find(pid_t pid);  // null: no process has the pid
  void end(Process& process, int status);
  void send(Process& process, int signal);
  void resumed(Process& process);  // acts on the signals that came in a halt
  // Is called for each signal that the server sends, and when a process acts on one it catches.
  std::function<void(Process&, int)> on_signal;
  std::function<void(Process&)> on_caught;
  std::function<void(Process&)> on_end;

  // --- the server ---
  // Starts the server's main thread. `body` returns its exit status.
  void start_server(pid_t pid, std::function<int()> body);
  [[nodiscard]] pid_t server_pid() const { return server_pid_; }
  // Ends the server as kill -9 does: nothing of it runs any more, its descriptors are closed.
  void drop_server();
  bool is_server_halted = false;
  std::function<void()> on_ready;          // it has written its line on standard output
  std::function<void(int)> on_server_end;  // it has returned this exit status
  // When the server last waited, with nothing to read.
  [[nodiscard]] Nanos all_read_at() const { return all_read_at_; }
  bool has_spun = false;  // the server has used the processor for a whole second

  // --- adversities ---
  // Calls `action` at the n-th call of the server from now on.
  void at_call(int n, std::function<void()> action);
  void forget_actions() { at_calls_.clear(); }
  Call present = Call::kSleep;  // the call at which an action is called
  int failing[kCalls] = {};     // errno of the next call of the kind, or kShort; 0: it succeeds
  std::function<void()> on_failure;  // a call has failed
  bool shows_messages = false;
  std::string log_path;
  int log_errno = 0;  // writes to the log fail with it
  Nanos log_hangs_until = 0;
  Nanos proc_hangs_until = 0;                 // reads in /proc by side threads
  std::function<pid_t(ino_t)> owner_of_page;  // the answer of F_GETLK; 0: nobody

  // --- for the functions of libc ---
  [[nodiscard]] bool is_inside() const { return running_ != nullptr; }
  [[nodiscard]] bool is_main_thread() const;
  void tell_of_signal(Process& process, int signal);  // calls on_signal as the test does
  void tick();
  int point(Call call);  // returns the errno with which the call fails, or 0
  // Returns whether wake() ended the wait, and not the time or a descriptor.
  bool wait(const void* on, Nanos until, int epoll = -1);
  void wake(const void* on, bool all);
  void start_fiber(void* (*start)(void*), void* argument);
  void set_timer(int fd, Nanos when) { timers_[fd] = when; }

 private:
  friend void run_fiber();
  bool run_ready();
  [[nodiscard]] bool is_ready(const Fiber& fiber) const;
  void raise_timers();

  std::multimap<Nanos, std::function<void()>> events_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::unique_ptr<Fiber>> dropped_;
  std::map<int, Nanos> timers_;
  std::multimap<int, std::function<void()>> at_calls_;
  int calls_ = 0;
  Fiber* running_ = nullptr;
  pid_t server_pid_ = 0;
  std::function<int()> body_;
  Nanos idle_at_ = 0;
  Nanos all_read_at_ = 0;
};

// The one kernel; null outside of a simulation.
extern Kernel* kernel;

}  // namespace filetimer::sim
