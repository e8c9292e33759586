// Those who have asked the server something, each with the pipe on which it wants its answers.
// Nothing here blocks, and nobody who does not read holds anybody else up. Loop thread only.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "timer_server/event_loop.hpp"

namespace filetimer {

class Askers {
 public:
  using Id = std::uint64_t;
  // Each costs a descriptor; these many in any case, fewer where descriptors are few.
  static constexpr std::size_t kMost = 1024;
  // Of these, for who does not wait long: not for the ranks of a rendezvous.
  static constexpr std::size_t kReserved = 16;
  // How long a last answer that did not fit its pipe waits to be read.
  static constexpr Duration kUnreadLimit = std::chrono::seconds{5};

  // `most`: at a time. `on_withdrawn`: who waited has closed its pipe, and is no asker any more.
  Askers(sd_event* loop, std::size_t most, std::function<void(Id)> on_withdrawn);

  // Nothing, and the pipe has got `refusal`, when there are too many.
  std::optional<Id> add(UniqueFd pipe, std::string_view refusal);
  // Whether it has closed its pipe, though its withdrawal is still on the way.
  [[nodiscard]] bool has_left(Id id) const;
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

  // Whether who has been added may wait long.
  [[nodiscard]] bool has_room_to_wait() const { return count() + kReserved <= most_; }
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
  const std::size_t most_;
  const std::function<void(Id)> on_withdrawn_;
  std::unordered_map<Id, Asker> askers_;
  Id last_id_ = 0;
};

}  // namespace filetimer
