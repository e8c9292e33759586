// How far the wall clocks of hosts are from each other, as far as their logs tell. No event is
// recorded on two hosts, so nothing tells it for certain; workers of one job enter their outer
// scopes (`epoch`, `step`) together, though, and a host whose workers all seem to have done so at
// another time is likelier to have another time.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "timer_client/cli/records/incident_record.hpp"

namespace filetimer::cli {

// The clocks that are this far or further from most others, each with how far it is ahead. A scope
// counts that its worker had another one open in: being late for it says nothing about the hang.
std::vector<ClockApart> clocks_apart(const std::vector<const Incident*>& incidents,
                                     std::int64_t difference_us);

// Clocks that were set while a log was written: `time` and `mono_ns` of its records then go apart.
class ClockSteps {
 public:
  struct Step {
    std::string host;
    std::int64_t time_us = 0;  // of the first record after it
    std::int64_t by_us = 0;    // forward if that is positive
  };

  // Records of each host in their order.
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
