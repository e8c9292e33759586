// SPDX-License-Identifier: MIT
#include "timer_server/event_loop.hpp"

#include "timer_server/messages.hpp"

namespace filetimer {

EventSource watch_io(sd_event* loop, int fd, std::uint32_t events, std::int64_t priority,
                     std::function<void()> handler) {
  sd_event_source* source = nullptr;
  auto owned = std::make_unique<std::function<void()>>(std::move(handler));
  check_event(::sd_event_add_io(
                  loop, &source, fd, events,
                  [](sd_event_source*, int, uint32_t, void* call) {
                    guarded(*static_cast<std::function<void()>*>(call));
                    return 0;
                  },
                  owned.get()),
              "cannot watch a descriptor");
  // The source owns its handler.
  ::sd_event_source_set_destroy_callback(
      source, [](void* call) { delete static_cast<std::function<void()>*>(call); });
  (void)owned.release();
  ::sd_event_source_set_priority(source, priority);
  return EventSource(source);
}

void guarded(const std::function<void()>& handler) {
  try {
    handler();
  } catch (const std::exception& error) {
    messages::error("{}; the server continues", error.what());
  }
}

}  // namespace filetimer
