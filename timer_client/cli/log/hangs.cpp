// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/hangs.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

namespace filetimer::cli {
namespace {

// What fits on a screen or two.
constexpr std::size_t kHangsKept = 4;

}  // namespace

void HangFinder::take(const Record& record) {
  clock_steps_.take(record);
  if (!record.time_us) {
    return;
  }
  take_host(record);
  close_those_before(*record.time_us);
  if (record.event == "incident" && !record.incident.empty()) {
    window_.push_back({record});
  } else if (record.event == "expired") {
    open_.try_emplace(record.job_id, *record.time_us);
    window_.push_back({record});
    window_.back().record.raw = {};  // a thousand ranks may expire
  }
}

void HangFinder::take_host(const Record& record) {
  if (record.host.empty()) {
    return;
  }
  const std::int64_t since_boot_us = std::max<std::int64_t>(record.mono_ns.value_or(0), 0) / 1000;
  Boot& boot =
      hosts_[record.host]
          .try_emplace(record.boot_id, Boot{*record.time_us - since_boot_us, *record.time_us})
          .first->second;
  boot.last_us = std::max(boot.last_us, *record.time_us);
}

std::size_t HangFinder::hosts() const {
  std::size_t count = 0;
  for (const auto& [host, boots] : hosts_) {
    // Who booted before another one of that name had written its last is another machine.
    std::vector<Boot> machines;
    for (const auto& [id, boot] : boots) {
      machines.push_back(boot);
    }
    std::sort(machines.begin(), machines.end(),
              [](const Boot& a, const Boot& b) { return a.first_us < b.first_us; });
    std::int64_t last_us = std::numeric_limits<std::int64_t>::max();
    for (const Boot& boot : machines) {
      count += boot.first_us < last_us ? 1 : 0;
      last_us = boot.last_us;
    }
  }
  return count;
}

bool HangFinder::is_over(std::int64_t time_us, std::int64_t now_us) const {
  // Either way: a clock may have been set back.
  return std::abs(now_us - time_us) > kSameHangUs + clocks_us_;
}

void HangFinder::close_those_before(std::int64_t now_us) {
  for (;;) {
    auto first = open_.end();
    for (auto job = open_.begin(); job != open_.end(); ++job) {
      if (is_over(job->second, now_us) && (first == open_.end() || job->second < first->second)) {
        first = job;
      }
    }
    if (first == open_.end()) {
      break;
    }
    close(first);
  }
  // What a job has not been told of is younger.
  while (!window_.empty() &&
         std::abs(now_us - *window_.front().record.time_us) > 2 * (kSameHangUs + clocks_us_)) {
    window_.pop_front();
  }
}

void HangFinder::close(Open::iterator job) {
  std::vector<const Record*> records;
  for (const Kept& kept : window_) {
    if (!kept.is_told || kept.record.job_id != job->first) {
      records.push_back(&kept.record);
    }
  }
  WholeHang whole = gather_whole_hang(records, job->first, clocks_us_);
  Integer next_us;
  for (Kept& kept : window_) {
    const Record& record = kept.record;
    kept.is_told = kept.is_told || whole.expired.contains(&record);
    if (record.event == "expired" && record.job_id == job->first && !kept.is_told &&
        (!next_us || *record.time_us < *next_us)) {
      next_us = record.time_us;
    }
  }
  if (next_us && !whole.expired.empty()) {
    job->second = *next_us;
  } else {
    open_.erase(job);
  }
  if (whole.expired.empty()) {
    return;
  }
  if (hangs_.size() == kHangsKept) {
    hangs_.pop_front();
    ++omitted_;
  }
  hangs_.push_back(std::move(whole.hang));
}

void HangFinder::finish() {
  // As if nothing had come for long: in the order in which they began.
  while (!open_.empty()) {
    close(std::min_element(open_.begin(), open_.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; }));
  }
}

}  // namespace filetimer::cli
