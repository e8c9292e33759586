// The hangs that the logs of many hosts tell of, one after the other as their records come: the
// expiries of one job, on whatever host, that are close together. Only the latest ones are kept.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "timer_client/cli/log/clock_differences.hpp"
#include "timer_client/cli/log/hang.hpp"
#include "timer_client/cli/log/log_reader.hpp"

namespace filetimer::cli {

class HangFinder {
 public:
  // `clocks_us`: how far the clocks of two hosts may be apart.
  explicit HangFinder(std::int64_t clocks_us) : clocks_us_(clocks_us) {}

  // Records of all hosts as read_merged() gives them.
  void take(const Record& record);
  // No more will come.
  void finish();

  // The latest ones, and how many there were before them.
  [[nodiscard]] const std::deque<Hang>& hangs() const { return hangs_; }
  [[nodiscard]] std::size_t omitted() const { return omitted_; }
  [[nodiscard]] const ClockSteps& clock_steps() const { return clock_steps_; }
  // Machines: hosts of one name count as one where they ran one after the other, as before and
  // after a reboot.
  [[nodiscard]] std::size_t hosts() const;

 private:
  struct Kept {
    Record record;
    bool is_told = false;
  };
  struct Boot {
    std::int64_t first_us = 0;  // when it booted
    std::int64_t last_us = 0;   // its last record
  };
  using Open = std::map<std::string, std::int64_t>;

  void take_host(const Record& record);
  void close(Open::iterator job);
  void close_those_before(std::int64_t now_us);
  [[nodiscard]] bool is_over(std::int64_t time_us, std::int64_t now_us) const;

  std::int64_t clocks_us_;
  std::map<std::string, std::map<std::string, Boot>> hosts_;  // by host and boot
  ClockSteps clock_steps_;
  // Incidents and expiries of all jobs, of the time that a hang may take, and as long again.
  std::deque<Kept> window_;
  Open open_;  // by job: its first expiry that has not been told of
  std::deque<Hang> hangs_;
  std::size_t omitted_ = 0;
};

}  // namespace filetimer::cli
