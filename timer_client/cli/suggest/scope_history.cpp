// SPDX-License-Identifier: MIT
#include "timer_client/cli/suggest/scope_history.hpp"

#include <algorithm>

#include "common/duration_text.hpp"

namespace filetimer::cli {
namespace {

// Returns what distinguishes the job of the worker from others; empty: the worker is of no job.
// Ranks without a job id are taken for those of one job on their host.
std::string job_key(const Record& record) {
  constexpr std::string_view kNoJobId = "none";  // torchrun's, where none is given
  if (!record.job_id.empty() && record.job_id != kNoJobId) {
    return std::string(record.job_id);
  }
  return record.rank ? std::string("host ").append(record.host) : std::string();
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

void ScopeHistories::take(const Record& record) {
  const std::string_view event = record.event;
  if (event == "worker_ended") {
    take_ended_worker(record);
    return;
  }
  if (event != "expired" && event != "killed" && event != "released_late" && event != "warned") {
    return;
  }
  ScopeHistory* const history = history_of(record.scope);
  if (history == nullptr) {
    return;
  }
  MissedDeadlines& missed = history->missed;
  const std::string job = job_key(record);
  if (event == "expired") {
    ++missed.expired;
    if (last_expiry_us_.size() >= kMaxJobs) {
      last_expiry_us_.clear();
    }
    if (!job.empty() && record.time_us) {
      last_expiry_us_[job] = *record.time_us;
    }
  } else if (event == "killed") {
    const std::string verdict = record.text("verdict");
    missed.killed += verdict == "dead" || verdict == "unkillable" ? 1U : 0U;
    missed.spared += verdict == "spared" ? 1U : 0U;
  } else if (event == "released_late") {
    ++missed.released_late;
    missed.latest =
        std::max(missed.latest, duration_from_seconds(record.number("late_ms").value_or(0) / 1e3));
    last_expiry_us_.erase(job);  // that worker was slow, and ended no wait of others
  } else {
    ++missed.warned;
  }
}

void ScopeHistories::take_ended_worker(const Record& ended) {
  ++ended_workers_;
  const auto expiry = last_expiry_us_.find(job_key(ended));
  const bool has_waited = expiry != last_expiry_us_.end() && ended.time_us &&
                          *ended.time_us - expiry->second <= kWaitsEndUs;
  waiting_workers_ += has_waited ? 1U : 0U;
  for (const simdjson::dom::object scope : objects_at(ended.fields, "scopes")) {
    ScopeStatistics statistics = read_statistics(scope);
    if (has_waited) {
      leave_out_longest(statistics);
    }
    add(text_at(scope, "scope"), statistics);
  }
}

void ScopeHistories::add(const StatisticsByName& statistics) {
  for (const auto& [name, part] : statistics) {
    add(name, part);
  }
}

// The timeout of today is the latest one: the log has an order, and pages come last.
void ScopeHistories::add(const std::string& name, const ScopeStatistics& part) {
  if (ScopeHistory* const history = history_of(name)) {
    history->statistics.add(part);
    history->statistics.timeout = part.timeout;
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
