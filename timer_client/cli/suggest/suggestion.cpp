// SPDX-License-Identifier: MIT
#include "timer_client/cli/suggest/suggestion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/duration_text.hpp"
#include "common/limits.hpp"

namespace filetimer::cli {
namespace {

// Returns what distinguishes the job of the worker from others; empty: the worker is of no job.
// Ranks without a job id are taken for those of one job on their host, in one runtime directory.
std::string job_key(const Record& record) {
  if (!record.job_id.empty() && record.job_id != kNoJobId) {
    return std::string(record.job_id);
  }
  return record.rank ? fmt::format("host {} {}", record.host, record.text("dir")) : std::string();
}

Histogram histogram_at(dom::object object, std::string_view key) {
  Histogram histogram{};
  for (const dom::element element : elements_at(object, key)) {
    if (const auto pair = value_as<dom::array>(element); pair && pair->size() == 2) {
      const auto begin = value_as<std::int64_t>(pair->at(0)).value_or(0);
      const auto scopes = value_as<std::int64_t>(pair->at(1)).value_or(0);
      histogram[bucket_of(begin)] += static_cast<std::uint64_t>(std::max<std::int64_t>(scopes, 0));
    }
  }
  return histogram;
}

// Returns what is needed of an object of the list `scopes` of a `worker_ended` record: no `total`,
// `last` and `smallest_margin`.
ScopeStatistics read_statistics(dom::object object) {
  ScopeStatistics statistics;
  statistics.count = static_cast<std::uint64_t>(count_at(object, "count"));
  statistics.longest = duration_from_seconds(number_at(object, "longest_s").value_or(0));
  statistics.longest_first = duration_from_seconds(number_at(object, "first_s").value_or(0));
  const Number timeout_s = number_at(object, "timeout_s");
  statistics.timeout = timeout_s ? duration_from_seconds(*timeout_s) : kForever;
  statistics.histogram = histogram_at(object, "histogram_ns");
  statistics.first_histogram = histogram_at(object, "first_histogram_ns");
  if (statistics.first_histogram == Histogram{} && statistics.count > 0) {
    statistics.first_histogram[bucket_of(statistics.longest_first.count())] = 1;
  }
  return statistics;
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

// How much longer than those that it waits for a name's timeout is.
constexpr double kOrderFactor = 1.5;

Duration times(Duration duration, double factor) {
  const double ns = static_cast<double>(duration.count()) * factor;
  return ns >= static_cast<double>(kMaxTimeout.count()) ? kMaxTimeout : Duration{std::llround(ns)};
}

// Ranks outlast the one that they wait for: raises the suggestion of a name with a longer timeout
// today than other names to kOrderFactor times the longest of theirs, but not above its own timeout
// of today. Names without a deadline, a known timeout or a suggestion take no part.
void raise_above_shorter(std::vector<SuggestedScope>& scopes) {
  std::vector<SuggestedScope*> ordered;
  for (SuggestedScope& scope : scopes) {
    if (scope.suggestion.timeout && scope.today() > Duration::zero() && scope.today() != kForever) {
      ordered.push_back(&scope);
    }
  }
  std::ranges::stable_sort(ordered, {}, &SuggestedScope::today);
  for (SuggestedScope* const scope : ordered) {
    Suggestion& suggestion = scope->suggestion;
    const auto end = std::ranges::lower_bound(ordered, scope->today(), {}, &SuggestedScope::today);
    const auto longest = std::ranges::max_element(
        ordered.begin(), end, {}, [](const auto* each) { return *each->suggestion.timeout; });
    const Duration wanted = longest == end
                                ? Duration{}
                                : rounded_up(times(*(*longest)->suggestion.timeout, kOrderFactor));
    if (const Duration raised = std::min(wanted, scope->today()); raised > *suggestion.timeout) {
      suggestion.timeout = raised;
      suggestion.why = raised == wanted ? fmt::format("{:g} x {}", kOrderFactor, (*longest)->scope)
                                        : std::string("as today");
    }
    if (suggestion.first_timeout <= suggestion.timeout) {
      suggestion.first_timeout.reset();
    }
  }
}

}  // namespace

// --- histories ---

void ScopeHistories::take(const Record& record, bool is_counted) {
  const std::string_view event = record.event;
  if (event == "worker_ended") {
    if (is_counted) {
      take_ended_worker(record);
    }
    return;
  }
  if (event != "expired" && event != "killed" && event != "released_late" && event != "warned") {
    return;
  }
  ScopeHistory uncounted;
  ScopeHistory* const history = is_counted ? history_of(record.scope) : &uncounted;
  if (history == nullptr) {
    return;
  }
  MissedDeadlines& missed = history->missed;
  if (event == "expired") {
    const std::string job = job_key(record);
    ++missed.expired;
    if (expiries_us_.size() >= kMaxJobs) {
      expiries_us_.clear();
    }
    if (!job.empty() && record.time_us) {
      auto& of_job = expiries_us_[job];
      of_job.erase(of_job.begin(), of_job.lower_bound({*record.time_us - kWaitsEndUs, ""}));
      of_job.emplace(*record.time_us, record.id);
    }
  } else if (event == "killed") {
    const std::string verdict = record.text("verdict");
    missed.killed += verdict == "dead" || verdict == "unkillable" ? 1U : 0U;
    missed.spared += verdict == "spared" ? 1U : 0U;
  } else if (event == "released_late") {
    ++missed.released_late;
    missed.latest =
        std::max(missed.latest, duration_from_seconds(record.number("late_ms").value_or(0) / 1e3));
    for (auto& [its_job, of_job] : expiries_us_) {  // the record lacks the runtime directory
      // That worker was slow, and ended no wait.
      std::erase_if(of_job, [&](const auto& each) { return each.second == record.id; });
    }
  } else {
    ++missed.warned;
  }
}

void ScopeHistories::take_ended_worker(const Record& ended) {
  ++ended_workers_;
  const auto of_job = expiries_us_.find(job_key(ended));
  bool has_waited = false;
  if (of_job != expiries_us_.end() && ended.time_us) {
    const auto found = of_job->second.lower_bound({*ended.time_us - kWaitsEndUs, ""});
    // One that is later was recorded before the clock was set back.
    has_waited = found != of_job->second.end() && found->first <= *ended.time_us;
  }
  waiting_workers_ += has_waited ? 1U : 0U;
  unrecorded_ += static_cast<std::uint64_t>(count_at(ended.fields, "omitted"));
  for (const dom::object scope : objects_at(ended.fields, "scopes")) {
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

// --- suggestions ---

Durations durations_of(const ScopeStatistics& statistics) {
  Durations durations;
  ScopeStatistics rest;
  rest.longest = statistics.longest;
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    const std::uint64_t first = std::min(statistics.first_histogram[i], statistics.histogram[i]);
    rest.histogram[i] = statistics.histogram[i] - first;
    durations.count += rest.histogram[i];
    durations.firsts += first;
  }
  durations.median = rest.quantile(0.5);
  durations.p999 = rest.quantile(0.999);
  durations.longest = rest.longest_in_histogram();
  durations.longest_first = statistics.longest_first;
  return durations;
}

Suggestion suggestion_for(const Durations& durations, const SuggestionRules& rules) {
  Suggestion suggestion;
  if (durations.count < kMinSamples) {
    suggestion.why = fmt::format("too few samples ({} of {})", durations.count, kMinSamples);
    return suggestion;
  }
  const auto [timeout, why] = std::max(
      {std::pair(rules.floor, std::string("the floor")),
       {times(durations.p999, rules.factor), fmt::format("{:g} x P99.9", rules.factor)},
       {times(durations.longest, kLongestFactor), fmt::format("{:g} x LONGEST", kLongestFactor)}},
      [](const auto& a, const auto& b) { return a.first < b.first; });
  suggestion.timeout = rounded_up(timeout);
  suggestion.why = why;
  const Duration first = rounded_up(times(durations.longest_first, rules.factor));
  if (first > *suggestion.timeout) {
    suggestion.first_timeout = first;
  }
  return suggestion;
}

std::vector<SuggestedScope> suggestions_for(const ScopeHistories& histories,
                                            const SuggestionRules& rules) {
  std::vector<SuggestedScope> scopes;
  for (const auto& [name, history] : histories.by_name()) {
    const Durations durations = durations_of(history.statistics);
    scopes.push_back({name, &history, durations, suggestion_for(durations, rules)});
  }
  raise_above_shorter(scopes);
  return scopes;
}

Duration rounded_up(Duration duration) {
  Duration unit = std::chrono::microseconds{1};
  while (duration / unit >= 100) {
    unit *= 10;
  }
  const std::int64_t units = (duration + unit - Duration{1}) / unit;
  return std::min(units * unit, kMaxTimeout);
}

}  // namespace filetimer::cli
