// SPDX-License-Identifier: MIT
#include "timer_server/requests/rejections.hpp"

#include <utility>

#include "common/limits.hpp"

namespace filetimer {

void Rejections::add(std::string_view reason, std::string_view line, pid_t pid) {
  ++total_;
  ++waiting_.count;
  waiting_.reason = reason;
  waiting_.line = line.substr(0, kMaxRejectedBytesShown);
  waiting_.pid = pid;
}

std::optional<Rejections::Report> Rejections::take(Instant now, bool force) {
  if (waiting_.count == 0 || (now < not_before_ && !force)) {
    return std::nullopt;
  }
  not_before_ = now + kInterval;
  return std::exchange(waiting_, {});
}

Instant Rejections::next_report() const {
  return waiting_.count == 0 ? Instant::never() : not_before_;
}

}  // namespace filetimer
