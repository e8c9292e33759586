// Those who have asked the server something, each with the pipe on which it wants its answers.
// Nothing here blocks, and nobody who does not read holds anybody else up. Loop thread only.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "timer_server/event_loop.hpp"

namespace filetimer {

class Askers {
 public:
  using Id = std::uint64_t;
  // Those who wait; each costs a descriptor.
  static constexpr std::size_t kMost = 1024;
  // How long a last answer that did not fit its pipe waits to be read.
  static constexpr Duration kUnreadLimit = std::chrono::seconds{5};

  // `on_withdrawn`: who waited has closed its pipe, and is no asker any more.
  Askers(sd_event* loop, std::function<void(Id)> on_withdrawn);

  // Nothing when there are kMost.
  std::optional<Id> add(UniqueFd pipe);
  // From now on it is noticed when this one withdraws. May throw std::system_error.
  void watch(Id id);
  // An answer that is not the last, at most kMaxAtomicWrite bytes with its newline: lost when the
  // pipe has no room for it.
  void tell(Id id, const std::string& answer);
  // The last one.
  void finish(Id id, std::string answer);
  // The last one, of which the end of file is to say that this process has ended.
  void finish_at_exit(Id id, const std::string& answer);
  // Gives up on those who do not read their last answer. When to come back; Instant::never(): not.
  Instant advance(Instant now);

  [[nodiscard]] std::size_t count() const { return askers_.size(); }

 private:
  struct Asker {
    UniqueFd pipe;
    EventSource source;
    std::string unread;                // of the last answer
    Instant until = Instant::never();  // while there is something unread
  };
  void watch(Id id, Asker& asker, std::uint32_t events);
  void on_event(Id id);

  sd_event* const loop_;
  const std::function<void(Id)> on_withdrawn_;
  std::unordered_map<Id, Asker> askers_;
  Id last_id_ = 0;
};

}  // namespace filetimer
