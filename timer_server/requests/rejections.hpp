// Requests that were refused, told at most once a second with a count, so that a client gone wrong
// can neither fill the log nor slow the loop.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.hpp"

namespace filetimer {

class Rejections {
 public:
  static constexpr Duration kInterval = std::chrono::seconds{1};

  struct Report {
    std::uint64_t count = 0;  // since the last report
    std::string reason;       // of the last of them
    std::string line;         // its first kMaxRejectedBytesShown bytes
    pid_t pid = 0;            // 0: not known
  };

  void add(std::string_view reason, std::string_view line, pid_t pid);
  // What is to be told now; nothing when there is nothing, or the last report is too fresh and
  // `force` is not set.
  std::optional<Report> take(Instant now, bool force = false);
  // When take() will have something to tell; Instant::never(): nothing waits.
  [[nodiscard]] Instant next_report() const;
  [[nodiscard]] std::uint64_t total() const { return total_; }

 private:
  Report waiting_;
  Instant not_before_;
  std::uint64_t total_ = 0;
};

}  // namespace filetimer
