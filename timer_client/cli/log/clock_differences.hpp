// What the logs tell of the wall clocks of their hosts. No event is recorded on two hosts, so of a
// difference there are only signs: workers of one job enter their outer scopes (`epoch`, `step`)
// together, and a host whose workers all seem to have done so at another time was late, or has
// another time. A clock that is set while a log is written shows in it, as a suspended host does.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "timer_client/cli/log/hang.hpp"

namespace filetimer::cli {

// The hosts whose workers entered a scope this much before or after most others; of two hosts, the
// later one. A scope counts that its worker had another one open in: being late for it says nothing
// about the hang.
std::vector<EntryApart> entries_apart(const std::vector<const Incident*>& incidents,
                                      std::int64_t difference_us);

// Clocks that were set while a log was written: `time` and `mono_ns` of its records then go apart.
class ClockSteps {
 public:
  struct Step {
    std::string host;
    std::int64_t time_us = 0;  // of the first record after it
    std::int64_t by_us = 0;    // forward if that is positive
  };

  // A record that was made before another one of its host, though it comes later, says nothing: it
  // is of another log, and they were merged by times of which some are from before the step.
  void take(const Record& record);

  // The latest ones, and how many there were before them.
  [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }
  [[nodiscard]] std::size_t omitted() const { return omitted_; }

 private:
  struct Clock {
    std::int64_t offset_us = 0;  // of `time` to `mono_ns`
    std::int64_t mono_us = 0;
  };
  std::map<std::pair<std::string, std::string>, Clock> clocks_;  // by host and boot
  std::vector<Step> steps_;
  std::size_t omitted_ = 0;
};

}  // namespace filetimer::cli
