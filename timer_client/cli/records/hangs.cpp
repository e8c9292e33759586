// SPDX-License-Identifier: MIT
#include "timer_client/cli/records/hangs.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace filetimer::cli {
namespace {

// What fits on a screen or two.
constexpr std::size_t kHangsKept = 4;

}  // namespace

void HangFinder::take(const Record& record) {
  clock_steps_.take(record);
  if (!record.host.empty()) {
    hosts_.insert(record.host);
  }
  if (!record.time_us) {
    return;
  }
  close_those_before(*record.time_us);
  if (record.event == "incident" && !record.incident.empty()) {
    waiting_.insert_or_assign({record.host, record.incident}, record);
  } else if (record.event == "expired") {
    take_expired(record);
  }
}

void HangFinder::take_expired(const Record& record) {
  Open& open = open_.try_emplace(record.job_id, Open{*record.time_us, {}}).first->second;
  const auto incident = waiting_.find({record.host, record.incident});
  if (incident != waiting_.end()) {
    open.records.push_back(std::move(incident->second));
    waiting_.erase(incident);
  }
  open.records.push_back(record);
  open.records.back().raw = {};  // a thousand ranks may expire
}

void HangFinder::close_those_before(std::int64_t now_us) {
  // Either way: a clock may have been set back.
  const auto is_over = [&](std::int64_t time_us) {
    return std::abs(now_us - time_us) > kSameHangUs + clocks_us_;
  };
  for (auto open = open_.begin(); open != open_.end();) {
    if (is_over(open->second.first_us)) {
      close(open->second);
      open = open_.erase(open);
    } else {
      ++open;
    }
  }
  std::erase_if(waiting_, [&](const auto& one) { return is_over(*one.second.time_us); });
}

void HangFinder::close(const Open& open) {
  if (hangs_.size() == kHangsKept) {
    hangs_.pop_front();
    ++omitted_;
  }
  hangs_.push_back(gather_whole_hang(open.records, clocks_us_));
}

void HangFinder::finish() {
  // In the order in which they began, not that of the names of their jobs.
  std::vector<const Open*> left;
  for (const auto& [job, open] : open_) {
    left.push_back(&open);
  }
  std::sort(left.begin(), left.end(),
            [](const Open* a, const Open* b) { return a->first_us < b->first_us; });
  for (const Open* open : left) {
    close(*open);
  }
  open_.clear();
}

}  // namespace filetimer::cli
