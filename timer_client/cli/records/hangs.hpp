// The hangs that the logs of many hosts tell of, one after the other as their records come: the
// expiries of one job, on whatever host, that are close together. Only the latest ones are kept.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "timer_client/cli/records/clock_differences.hpp"
#include "timer_client/cli/records/incident_record.hpp"
#include "timer_client/cli/records/log_reader.hpp"

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
  [[nodiscard]] std::size_t hosts() const { return hosts_.size(); }

 private:
  struct Open {
    std::int64_t first_us = 0;
    std::vector<Record> records;
  };

  void take_expired(const Record& record);
  void close(const Open& open);
  void close_those_before(std::int64_t now_us);

  std::int64_t clocks_us_;
  std::set<std::string> hosts_;
  ClockSteps clock_steps_;
  std::map<std::string, Open> open_;  // by job
  // Records of incidents, by host and id, whose job is not known yet: no expiry of theirs has come.
  std::map<std::pair<std::string, std::string>, Record> waiting_;
  std::deque<Hang> hangs_;
  std::size_t omitted_ = 0;
};

}  // namespace filetimer::cli
