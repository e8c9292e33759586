// SPDX-License-Identifier: MIT
#include "timer_server/system/event_loop.hpp"

#include <algorithm>

#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

int call(void* handler) {
  guarded(*static_cast<std::function<void()>*>(handler));
  return 0;
}

// Makes the source own its handler, so that a handler may end its own source.
EventSource with_handler(sd_event_source* source, std::unique_ptr<std::function<void()>> handler,
                         std::int64_t priority) {
  ::sd_event_source_set_destroy_callback(
      source, [](void* owned) { delete static_cast<std::function<void()>*>(owned); });
  (void)handler.release();
  ::sd_event_source_set_priority(source, priority);
  return EventSource(source);
}

}  // namespace

EventLoop make_event_loop() {
  sd_event* loop = nullptr;
  check_event(::sd_event_new(&loop), "cannot make an event loop");
  return EventLoop(loop);
}

EventSource watch_io(sd_event* loop, int fd, std::uint32_t events, std::int64_t priority,
                     std::function<void()> handler) {
  sd_event_source* source = nullptr;
  auto owned = std::make_unique<std::function<void()>>(std::move(handler));
  check_event(
      ::sd_event_add_io(
          loop, &source, fd, events,
          [](sd_event_source*, int, uint32_t, void* owner) { return call(owner); }, owned.get()),
      "cannot watch a descriptor");
  return with_handler(source, std::move(owned), priority);
}

namespace {

using SignalHandler = std::function<void(const signalfd_siginfo&)>;

int call_with_signal(sd_event_source*, const signalfd_siginfo* info, void* handler) {
  guarded([&] { (*static_cast<SignalHandler*>(handler))(*info); });
  return 0;
}

}  // namespace

EventSource watch_signal(sd_event* loop, int signal, SignalHandler handler) {
  sd_event_source* source = nullptr;
  auto owned = std::make_unique<SignalHandler>(std::move(handler));
  check_event(::sd_event_add_signal(loop, &source, signal, call_with_signal, owned.get()),
              "cannot take signals");
  ::sd_event_source_set_destroy_callback(
      source, [](void* owner) { delete static_cast<SignalHandler*>(owner); });
  (void)owned.release();
  return EventSource(source);
}

EventSource after_events(sd_event* loop, std::int64_t priority, std::function<void()> handler) {
  sd_event_source* source = nullptr;
  auto owned = std::make_unique<std::function<void()>>(std::move(handler));
  check_event(
      ::sd_event_add_post(
          loop, &source, [](sd_event_source*, void* owner) { return call(owner); }, owned.get()),
      "cannot make the event source of an iteration");
  return with_handler(source, std::move(owned), priority);
}

EventSource make_timer(sd_event* loop, std::int64_t priority) {
  sd_event_source* source = nullptr;
  // Accuracy 1 us: the default would move a deadline by up to 250 ms to save wake-ups.
  check_event(::sd_event_add_time(
                  loop, &source, CLOCK_MONOTONIC, 0, 1,
                  [](sd_event_source*, uint64_t, void*) { return 0; }, nullptr),
              "cannot make a timer");
  ::sd_event_source_set_priority(source, priority);
  return EventSource(source);
}

void arm(const EventSource& timer, Instant when) {
  if (when.is_never()) {
    ::sd_event_source_set_enabled(timer.get(), SD_EVENT_OFF);
    return;
  }
  // Up to the next microsecond: never early.
  const std::int64_t us = (std::max<std::int64_t>(when.ns, 0) + 999) / 1000;
  ::sd_event_source_set_time(timer.get(), static_cast<uint64_t>(us));
  ::sd_event_source_set_enabled(timer.get(), SD_EVENT_ONESHOT);
}

void guarded(const std::function<void()>& handler) {
  try {
    handler();
  } catch (const std::exception& error) {
    messages::error("{}; the server continues", error.what());
  }
}

}  // namespace filetimer
