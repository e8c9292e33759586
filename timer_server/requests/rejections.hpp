// Collects rejected requests for one record a second, so that a broken client can neither fill the
// log nor slow the loop. Used on the loop thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.hpp"
#include "common/limits.hpp"

namespace filetimer {

class Rejections {
 public:
  static constexpr Duration kInterval = std::chrono::seconds{1};

  struct Report {
    std::uint64_t count = 0;  // rejections since the last report
    std::string reason;       // of the last rejection
    std::string line;         // the first kMaxRejectedBytesShown bytes of that request
    pid_t pid = 0;            // of that request; 0: unknown
  };

  void add(std::string_view reason, std::string_view line, pid_t pid) {
    ++total_;
    waiting_ = {waiting_.count + 1, std::string(reason),
                std::string(line.substr(0, kMaxRejectedBytesShown)), pid};
  }
  // Returns the report on the rejections since the last one. Returns nothing if there were none, or
  // if the last report is less than kInterval old and `force` is not set.
  std::optional<Report> take(Instant now, bool force = false) {
    if (waiting_.count == 0 || (now < not_before_ && !force)) {
      return std::nullopt;
    }
    not_before_ = now + kInterval;
    return std::exchange(waiting_, {});
  }
  // Returns when take() will return a report; never() if no rejection waits.
  [[nodiscard]] Instant next_report() const {
    return waiting_.count == 0 ? Instant::never() : not_before_;
  }
  [[nodiscard]] std::uint64_t total() const { return total_; }

 private:
  Report waiting_;
  Instant not_before_;
  std::uint64_t total_ = 0;
};

}  // namespace filetimer
