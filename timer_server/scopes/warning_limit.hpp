// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/clock.hpp"
#include "common/limits.hpp"

namespace filetimer {

// Limits the recorded warnings of one worker to kMaxWarningsPerWorker in a kWarningPeriod, so that
// a loop whose every step passes its soft deadline does not fill the log.
class WarningLimit {
 public:
  struct Share {
    std::size_t count = 0;  // how many of the wanted warnings may be recorded
    std::size_t omitted =
        0;  // how many were not recorded before them; for the first of their records
  };
  // Takes `wanted` warnings from what is left of the limit. Reports omitted warnings once.
  Share take(std::size_t wanted, Instant now) {
    if (now - period_begin_ >= kWarningPeriod) {
      period_begin_ = now;
      recorded_ = 0;
    }
    Share share;
    share.count = std::min(wanted, kMaxWarningsPerWorker - recorded_);
    recorded_ += share.count;
    if (share.count > 0) {
      share.omitted = std::exchange(omitted_, 0);
    }
    omitted_ += wanted - share.count;
    return share;
  }

 private:
  Instant period_begin_;
  std::size_t recorded_ = 0;  // in this period
  std::size_t omitted_ = 0;
};

}  // namespace filetimer
