// SPDX-License-Identifier: MIT
#include "common/slot_times.hpp"

#include "common/soft_deadline.hpp"

namespace filetimer {

Instant due_time(Instant deadline, std::int64_t word, Instant started, Duration max_timeout) {
  if (max_timeout == kForever) {
    return deadline;
  }
  const Instant since = slot_word::is_paused(word) ? Instant{word - slot_word::kPaused} : started;
  return std::min(deadline, since + max_timeout);
}

Instant due_time(const Slot& slot, std::int64_t word, Duration max_timeout) {
  return due_time(deadline_of_word(word), word, start_in(slot.started), max_timeout);
}

Instant soft_time_of(const Slot& slot, std::int64_t word, Instant due, std::uint32_t warn_at) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  if (slot_word::is_paused(word)) {
    return Instant::never();
  }
  const Instant soft = soft_time(start_in(slot.started), due, slot.soft_ms.load(kRelaxed), warn_at);
  const bool is_resumed = (slot.flags.load(kRelaxed) & slot_flag::kResumed) != 0;
  if (is_resumed && slot_word::is_open(word) && word < slot_word::kNoDeadline) {
    const std::int64_t left = std::clamp<std::int64_t>(slot.left.load(kRelaxed), 0, word);
    return soft > Instant{word - left} ? soft : Instant::never();
  }
  return soft;
}

}  // namespace filetimer
