// How many warnings about one worker are recorded: a loop whose every step takes long enough to be
// warned about must not fill the log.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/clock.hpp"
#include "common/limits.hpp"

namespace filetimer {

class WarningLimit {
 public:
  struct Share {
    std::size_t count = 0;    // of those wanted, how many may be recorded
    std::size_t omitted = 0;  // before them; told with the first of them, once
  };
  Share take(std::size_t wanted, Instant now) {
    if (now - since_ >= kWarningPeriod) {
      since_ = now;
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
  Instant since_;
  std::size_t recorded_ = 0;  // since then
  std::size_t omitted_ = 0;
};

}  // namespace filetimer
