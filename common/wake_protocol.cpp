// SPDX-License-Identifier: MIT
#include "common/wake_protocol.hpp"

#include "common/due.hpp"

namespace filetimer {

// Not inline, because without soft deadlines it would only displace other instructions.
bool must_wake_to_warn(const Slot& slot, std::int64_t due, std::uint32_t warn_at,
                       std::int64_t next_wake) {
  return (due < next_wake && due < slot_word::kNoDeadline) ||
         soft_time_of(slot, slot.deadline.load(std::memory_order_relaxed), {due}, warn_at).ns <
             next_wake;
}

}  // namespace filetimer
