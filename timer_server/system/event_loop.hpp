// The event loop: epoll, with priorities. Used on the loop thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/epoll.h>
#include <sys/signalfd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "common/posix.hpp"

namespace filetimer {

// The order in which sources are dispatched that are ready together.
enum Priority : int {
  kDeathsFirst = -100,  // a recycled pid must not be taken for the worker that had it before
  kRequests = -50,
  kOrdinary = 0,
  kDeadlines = 50,
};

class EventLoop;

// A descriptor that the loop watches, and the handler of its events. Its end ends the watch: an
// event that waits for its turn is dropped. A handler may end any source, its own as well.
class Source {
 public:
  using Handler = std::function<void()>;
  Source(EventLoop& loop, int fd, std::uint32_t events, Priority priority, Handler handler,
         UniqueFd owned = {});
  ~Source();

  // Lets the descriptor have these events from now on.
  void change_events(std::uint32_t events);
  // Sets a timer to `when`, not before, or switches it off at never().
  void arm(Instant when);

 private:
  friend EventLoop;
  EventLoop& loop_;
  const int fd_;
  const Priority priority_;
  const std::shared_ptr<const Handler> handler_;  // shared by the loop while it runs
  const UniqueFd owned_;                          // the descriptor, if this source closes it
  bool is_pending_ = false;
  std::int64_t armed_ns_ = 0;  // what a timer is set to; 0: it is off
};
using EventSource = std::unique_ptr<Source>;

// Must outlive its sources. Calls throw std::system_error when the process is out of memory or
// descriptors.
class EventLoop {
 public:
  EventLoop();

  // Dispatches events until stop() is called, and calls `iterate` after each: when all deaths that
  // are known were noted, and before less urgent events. An exception of a handler is reported as a
  // message, and the loop continues.
  void run(const Source::Handler& iterate) {
    while (!is_stopped_) {
      dispatch(-1, iterate);
    }
  }
  // Does so for one event. Waits for it at most so many milliseconds, -1 means without a limit.
  // Returns false if none came.
  bool dispatch(int timeout_ms, const Source::Handler& iterate);
  void stop() { is_stopped_ = true; }
  // Calls the handler of one event: of those with the first priority the one that came first.
  // Returns false if none came, or if that priority is behind `last`.
  bool dispatch_one(int timeout_ms, Priority last = kDeadlines);

 private:
  friend Source;
  void collect(int timeout_ms);
  void add_pending(Source& source);
  void drop_pending(Source& source);

  const UniqueFd epoll_;
  std::size_t sources_ = 0;
  std::vector<epoll_event> events_;  // has room for one of each source
  std::vector<Source*> pending_;     // in the order of their turns; likewise
  bool is_stopped_ = false;
};

// Calls `handler` when `fd` is ready. `events` are those of epoll; EPOLLERR and EPOLLHUP are always
// reported. With EPOLLET the handler need not read from `fd`.
inline EventSource watch_io(EventLoop& loop, int fd, std::uint32_t events, Priority priority,
                            Source::Handler handler) {
  return std::make_unique<Source>(loop, fd, events, priority, std::move(handler));
}

// Calls `handler` with each of these signals, which must be blocked.
EventSource watch_signals(EventLoop& loop, std::span<const int> signals,
                          std::function<void(const signalfd_siginfo&)> handler);

// Returns a timer that is off. When it expires, it wakes the loop and is off again.
EventSource make_timer(EventLoop& loop, Priority priority, Source::Handler handler);

}  // namespace filetimer
