// SPDX-License-Identifier: MIT
#include "timer_client/cli/suggest/peer_waits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "common/duration_buckets.hpp"
#include "timer_client/cli/suggest/suggestion.hpp"

namespace filetimer::cli {
namespace {

// Records have microseconds of a time that clients measure in nanoseconds.
constexpr Duration kRounding = std::chrono::microseconds{1};
// Two records of one scope differ by less in when it was opened.
constexpr std::int64_t kSameOpeningNs = 1'000'000;
constexpr std::int64_t kFarOpeningNs = std::int64_t{1} << 61;  // a record may hold any number

std::string machine_key(const Record& record) {
  return fmt::format("{}\n{}", record.host, record.boot_id);
}

std::string worker_key(const Record& record, std::int64_t pid) {
  return fmt::format("{}\n{}\n{}", record.host, record.boot_id, pid);
}

bool is_same_opening(std::int64_t a_ns, std::int64_t b_ns) {
  return std::abs(std::clamp(a_ns, -kFarOpeningNs, kFarOpeningNs) -
                  std::clamp(b_ns, -kFarOpeningNs, kFarOpeningNs)) < kSameOpeningNs;
}

}  // namespace

template <class Predicate>
void PeerWaits::forget_if(const Record& of_worker, const Predicate& predicate) {
  const auto found = waits_.find(worker_key(of_worker, of_worker.pid.value_or(0)));
  if (found == waits_.end()) {
    return;
  }
  wait_count_ -= std::erase_if(found->second, predicate);
  if (found->second.empty()) {
    waits_.erase(found);
  }
}

std::shared_ptr<ExpiredTogether> PeerWaits::take_expired(const Record& expired) {
  if (expired.incident.empty() || !expired.pid) {
    return nullptr;
  }
  if (latest_.size() >= kMaxMachines) {
    latest_.clear();
  }
  std::shared_ptr<ExpiredTogether>& together = latest_[machine_key(expired)];
  if (!together || together->incident != expired.incident) {
    together = std::make_shared<ExpiredTogether>();
    together->incident = expired.incident;
  }
  if (together->pids.size() < kMaxExpired) {
    together->pids.insert(*expired.pid);
    if (!expired.job_id.empty() || expired.rank) {  // else it is of no job
      together->jobs.emplace(expired.job_id);
    }
  }
  // This worker expired itself: its scope is a hang or has too short a timeout, even if it had
  // waited for another worker before.
  const std::int64_t opened_ns = expired.integer("acquired_mono_ns").value_or(-kFarOpeningNs);
  forget_if(expired, [&](const Wait& wait) {
    return wait.expired == together ||
           (wait.scope == expired.scope && is_same_opening(wait.opened_ns, opened_ns));
  });
  return together;
}

void PeerWaits::take_incident(const Record& incident) {
  const auto found = latest_.find(machine_key(incident));
  if (found == latest_.end() || found->second->incident != incident.incident || !incident.mono_ns) {
    return;
  }
  const std::shared_ptr<ExpiredTogether>& together = found->second;
  for (const simdjson::dom::object open : objects_at(incident.fields, "open_scopes")) {
    const Integer pid = integer_at(open, "pid");
    const double elapsed_s = number_at(open, "elapsed_s").value_or(0);
    constexpr double kFarS = 1e9;
    const std::string job = text_at(open, "job_id");
    const bool is_of_a_job = !job.empty() || integer_at(open, "rank");
    if (wait_count_ >= kMaxWaits || !pid || elapsed_s <= 0 || elapsed_s > kFarS ||
        together->pids.contains(*pid) || !is_of_a_job || !together->jobs.contains(job)) {
      continue;
    }
    const Duration elapsed{std::llround(elapsed_s * 1e9)};
    Wait wait{
        .scope = text_at(open, "scope"),
        .opened_ns = std::clamp(*incident.mono_ns, -kFarOpeningNs, kFarOpeningNs) - elapsed.count(),
        .elapsed = elapsed,
        .expired = together};
    std::vector<Wait>& waits = waits_[worker_key(incident, *pid)];
    wait_count_ -= std::erase_if(waits, [](const Wait& one) { return one.expired->was_released; });
    if (waits.size() >= kMaxWaitsOfWorker) {
      continue;
    }
    const bool is_known = std::any_of(waits.begin(), waits.end(), [&](const Wait& one) {
      return is_same_opening(one.opened_ns, wait.opened_ns) && one.scope == wait.scope;
    });
    if (!is_known) {
      waits.push_back(std::move(wait));
      ++wait_count_;
    }
  }
}

void PeerWaits::take_left_open(const Record& left_open) {
  const std::int64_t opened_ns = left_open.integer("acquired_mono_ns").value_or(-kFarOpeningNs);
  forget_if(left_open, [&](const Wait& wait) {
    return wait.scope == left_open.scope && is_same_opening(wait.opened_ns, opened_ns);
  });
}

PeerWaits::Elapsed PeerWaits::waits_of(const Record& worker_ended) {
  Elapsed elapsed;
  const auto found = waits_.find(worker_key(worker_ended, worker_ended.pid.value_or(0)));
  if (found == waits_.end()) {
    return elapsed;
  }
  for (Wait& wait : found->second) {
    if (!wait.expired->was_released) {
      elapsed.emplace(std::move(wait.scope), wait.elapsed);
    }
  }
  wait_count_ -= found->second.size();
  waits_.erase(found);
  return elapsed;
}

bool leave_out_one(ScopeStatistics& statistics, Duration at_least) {
  std::size_t bucket = bucket_of((at_least - kRounding).count());
  while (bucket < kHistogramBuckets && statistics.histogram[bucket] == 0) {
    ++bucket;
  }
  if (bucket == kHistogramBuckets) {
    return false;
  }
  --statistics.histogram[bucket];
  statistics.count -= std::min<std::uint64_t>(statistics.count, 1);
  if (statistics.first_histogram[bucket] > statistics.histogram[bucket]) {
    // It was the first of its thread.
    statistics.first_histogram[bucket] = statistics.histogram[bucket];
    if (bucket == bucket_of(statistics.longest_first.count()) &&
        statistics.histogram[bucket] == 0) {
      statistics.longest_first = Duration::zero();  // of the first scopes before, nothing is known
    }
  }
  if (bucket == bucket_of(statistics.longest.count()) && statistics.histogram[bucket] == 0) {
    statistics.longest = statistics.longest_in_histogram();
  }
  return true;
}

}  // namespace filetimer::cli
