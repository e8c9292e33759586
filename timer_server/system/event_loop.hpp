// Owning handles of sd-event.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <systemd/sd-event.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <system_error>

#include "common/clock.hpp"

namespace filetimer {

struct UnrefEvent {
  void operator()(sd_event* event) const { ::sd_event_unref(event); }
};
struct DisableSource {
  void operator()(sd_event_source* source) const { ::sd_event_source_disable_unref(source); }
};
using EventLoop = std::unique_ptr<sd_event, UnrefEvent>;
using EventSource = std::unique_ptr<sd_event_source, DisableSource>;

// Throws if a call of sd-event failed, which means that the process is out of memory or
// descriptors. The exception ends the start of the server.
inline void check_event(int result, const char* what) {
  if (result < 0) {
    throw std::system_error(-result, std::generic_category(), what);
  }
}

// The order in which sources are dispatched that are ready together.
enum Priority : int64_t {
  kDeathsFirst = -100,  // a recycled pid must not be taken for the worker that had it before
  // Server::run_once(), which runs after all pending deaths were noted and before any other source.
  kIteration = -75,
  kRequests = -50,
  kOrdinary = 0,
  kDeadlines = 50,
};

// Calls `handler` and reports an exception as a message, because nothing may be thrown through
// sd-event. The loop continues: other workers must stay watched when memory or descriptors run out.
void guarded(const std::function<void()>& handler);

// Calls `handler` when `fd` is ready. `events` are those of epoll; EPOLLERR and EPOLLHUP are always
// reported. With EPOLLET the handler need not read from `fd`. The handler may end its own source.
EventSource watch_io(sd_event* loop, int fd, std::uint32_t events, std::int64_t priority,
                     std::function<void()> handler);

// Calls `handler` with a signal, which must be blocked.
EventSource watch_signal(sd_event* loop, int signal,
                         std::function<void(const signalfd_siginfo&)> handler);

// Calls `handler` after each batch of events that has woken the loop.
EventSource after_events(sd_event* loop, std::int64_t priority, std::function<void()> handler);

// Returns a timer that is off and whose only effect is to wake the loop.
EventSource make_timer(sd_event* loop, std::int64_t priority);
// Sets the timer to `when`, not before, or switches it off at never().
void arm(const EventSource& timer, Instant when);

EventLoop make_event_loop();

}  // namespace filetimer
