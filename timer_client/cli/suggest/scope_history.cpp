// SPDX-License-Identifier: MIT
#include "timer_client/cli/suggest/scope_history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "timer_client/cli/log/record.hpp"

namespace filetimer::cli {
namespace {

// Returns the time from the deadline to the release; never negative.
Duration lateness_of(const Record& released_late) {
  constexpr double kMostNs = 9e18;  // 2^63 does not fit
  const double ns = released_late.number("late_ms").value_or(0) * 1e6;
  return Duration{std::llround(std::clamp(ns, 0.0, kMostNs))};
}

std::string missed_key(const Record& record) {
  return fmt::format("{} {}", record.host, record.id);
}

// Returns what distinguishes the job of the worker from others; empty: the worker is of no job.
std::string job_key(const Record& record) {
  constexpr std::string_view kNoJobId = "none";  // torchrun's, where none is given
  if (!record.job_id.empty() && record.job_id != kNoJobId) {
    return std::string(record.job_id);
  }
  return record.job_id.empty() && !record.rank
             ? std::string()
             : fmt::format("{}\n{}\n{}", record.host, record.boot_id, record.job_id);
}

// Leaves the longest scope out that was not the first of its thread, if there is one.
void leave_out_longest(ScopeStatistics& statistics) {
  for (std::size_t bucket = kHistogramBuckets; bucket-- > 0;) {
    if (statistics.histogram[bucket] > statistics.first_histogram[bucket]) {
      --statistics.histogram[bucket];
      statistics.count -= std::min<std::uint64_t>(statistics.count, 1);
      statistics.longest = statistics.longest_in_histogram();
      return;
    }
  }
}

}  // namespace

void Delays::add(Duration delay) {
  ++count;
  least = std::min(least, delay);
  longest = std::max(longest, delay);
}

void ScopeHistories::take(const Record& record) {
  const std::string_view event = record.event;
  if (event == "worker_ended") {
    take_ended_worker(record);
  } else if (event == "expired") {
    take_missed(record, false);
  } else if (event == "warned" && !record.id.empty()) {
    take_missed(record, true);
  } else if (event == "killed") {
    take_outcome(record);
  } else if (event == "released_late") {
    take_release(record);
  }
}

void ScopeHistories::take_ended_worker(const Record& ended) {
  ++ended_workers_;
  const auto expiry = last_expiry_us_.find(job_key(ended));
  const bool has_waited = expiry != last_expiry_us_.end() && ended.time_us &&
                          *ended.time_us - expiry->second <= kWaitsEndUs;
  waiting_workers_ += has_waited ? 1U : 0U;
  for (const simdjson::dom::object scope : objects_at(ended.fields, "scopes")) {
    ScopeHistory* const history = history_of(text_at(scope, "scope"));
    if (history == nullptr) {
      continue;
    }
    ScopeStatistics statistics = read_statistics(scope);
    if (has_waited) {
      leave_out_longest(statistics);
    }
    add(*history, statistics);
  }
}

void ScopeHistories::take_missed(const Record& missed, bool is_warning) {
  ScopeHistory* const history = history_of(missed.scope);
  if (history == nullptr) {
    return;
  }
  std::string key = missed_key(missed);
  if (by_key_.contains(key)) {
    return;  // a log may have a record twice
  }
  ++(is_warning ? history->missed.warned : history->missed.expired);
  if (remembered_.size() >= kMaxRemembered) {
    forget(remembered_.begin());
  }
  remembered_.push_back({.key = std::move(key), .history = history, .is_warning = is_warning});
  if (std::string job = job_key(missed); !is_warning && !job.empty() && missed.time_us) {
    if (last_expiry_us_.size() >= kMaxRemembered) {
      last_expiry_us_.clear();
    }
    last_expiry_us_[job] = *missed.time_us;
    remembered_.back().job = std::move(job);
  }
  by_key_.emplace(remembered_.back().key, std::prev(remembered_.end()));
}

void ScopeHistories::take_outcome(const Record& killed) {
  const auto found = by_key_.find(missed_key(killed));
  if (found == by_key_.end() || found->second->is_warning) {
    return;
  }
  MissedDeadlines& missed = found->second->history->missed;
  const std::string verdict = killed.text("verdict");
  if (verdict == "spared") {
    ++missed.spared;
    missed.in_dry_run += killed.text("reason") == "dry run" ? 1U : 0U;
  } else if (verdict != "already_gone") {
    ++missed.killed;
  }
  forget(found->second);
}

void ScopeHistories::take_release(const Record& released) {
  const auto found = by_key_.find(missed_key(released));
  if (found == by_key_.end() || found->second->is_warning || found->second->was_released) {
    return;
  }
  Missed& expired = *found->second;
  expired.history->missed.released_late.add(lateness_of(released));
  expired.was_released = true;
  last_expiry_us_.erase(expired.job);  // that worker was slow, and ended no wait of others
}

// The timeout of today is the latest one: the log has an order, and pages come last.
void ScopeHistories::add(ScopeHistory& history, const ScopeStatistics& part) {
  history.statistics.add(part);
  history.statistics.timeout = part.timeout;
}

void ScopeHistories::forget(MissedList::iterator missed) {
  by_key_.erase(missed->key);
  remembered_.erase(missed);
}

void ScopeHistories::add(const StatisticsByName& statistics) {
  for (const auto& [name, part] : statistics) {
    if (ScopeHistory* const history = history_of(name)) {
      add(*history, part);
    }
  }
}

ScopeHistory* ScopeHistories::history_of(std::string_view name) {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) {
    return &found->second;
  }
  if (by_name_.size() >= kMaxNames) {
    ++omitted_;
    return nullptr;
  }
  return &by_name_[std::string(name)];
}

}  // namespace filetimer::cli
