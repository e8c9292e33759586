// SPDX-License-Identifier: MIT
#include "timer_client/cli/suggest/scope_history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "timer_client/cli/log/ended_workers.hpp"

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
  } else if (event == "incident") {
    peer_waits_.take_incident(record);
  } else if (event == "left_open") {
    peer_waits_.take_left_open(record);
  }
}

void ScopeHistories::take_ended_worker(const Record& ended) {
  ++ended_workers_;
  const PeerWaits::Elapsed waits = peer_waits_.waits_of(ended);
  for (const simdjson::dom::object scope : objects_at(ended.fields, "scopes")) {
    const std::string name = text_at(scope, "scope");
    ScopeHistory* const history = history_of(name);
    if (history == nullptr) {
      continue;
    }
    ScopeStatistics statistics = read_statistics(scope);
    const auto [begin, end] = waits.equal_range(name);
    for (auto wait = begin; wait != end; ++wait) {
      history->waits += leave_out_one(statistics, wait->second) ? 1U : 0U;
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
  remembered_.push_back({.key = std::move(key),
                         .history = history,
                         .is_warning = is_warning,
                         .together = is_warning ? nullptr : peer_waits_.take_expired(missed)});
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
  if (expired.together) {
    expired.together->was_released = true;
  }
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
