// sd-event's handles, owned. Errors of these calls mean that the process is out of memory or
// descriptors, so they are thrown to main() and end the start.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/epoll.h>
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

inline void check_event(int result, const char* what) {
  if (result < 0) {
    throw std::system_error(-result, std::generic_category(), what);
  }
}

// Which source is dispatched first when several are ready.
enum Priority : int64_t {
  kDeathsFirst = -100,  // a recycled pid must not meet the worker that had it before
  // Server::run_once(). It runs after all pending deaths were noted and before any other source.
  kIteration = -75,
  kRequests = -50,
  kOrdinary = 0,
  kDeadlines = 50,
};

// sd-event is C: nothing may be thrown through it. Memory or descriptors ran out in the middle of
// something; the rest of the workers must stay watched.
void guarded(const std::function<void()>& handler);

// Calls `handler` when `fd` is ready. `events`: of epoll; EPOLLERR and EPOLLHUP always come. With
// EPOLLET the handler need not read what has come, if an iteration of the server does. The handler
// may end its own source.
EventSource watch_io(sd_event* loop, int fd, std::uint32_t events, std::int64_t priority,
                     std::function<void()> handler);

// Calls `handler` after each batch of events that has woken the loop.
EventSource after_events(sd_event* loop, std::int64_t priority, std::function<void()> handler);

// Returns a timer that is off and whose only effect is to wake the loop.
EventSource make_timer(sd_event* loop, std::int64_t priority);
// Sets the timer to `when`, not before, or switches it off at never().
void arm(const EventSource& timer, Instant when);

EventLoop make_event_loop();

}  // namespace filetimer
