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

// Returns the time in a field of a record; never negative.
Duration time_in(const Record& record, std::string_view key, double unit_ns) {
  constexpr double kMostNs = 9e18;  // 2^63 does not fit
  const double ns = record.number(key).value_or(0) * unit_ns;
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
    take_release(record, false);
  } else if (event == "warning_ended") {
    take_release(record, true);
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
  if (without_end_.size() >= kMaxWithoutEnd) {
    forget(without_end_.begin());
  }
  without_end_.push_back({.key = std::move(key),
                          .history = history,
                          .is_warning = is_warning,
                          .together = is_warning ? nullptr : peer_waits_.take_expired(missed)});
  by_key_.emplace(without_end_.back().key, std::prev(without_end_.end()));
}

void ScopeHistories::take_outcome(const Record& killed) {
  const auto found = by_key_.find(missed_key(killed));
  if (found == by_key_.end() || found->second->is_warning || found->second->is_decided) {
    return;
  }
  Missed& expired = *found->second;
  const std::string verdict = killed.text("verdict");
  if (verdict == "spared") {
    ++expired.history->missed.spared;
    expired.history->missed.in_dry_run += killed.text("reason") == "dry run" ? 1U : 0U;
  } else if (verdict != "already_gone") {
    ++expired.history->missed.killed;
  }
  expired.is_decided = true;
  if (verdict != "spared" || expired.was_released) {
    forget(found->second);
  }
}

void ScopeHistories::take_release(const Record& released, bool is_warning) {
  const auto found = by_key_.find(missed_key(released));
  if (found == by_key_.end() || found->second->is_warning != is_warning ||
      found->second->was_released) {
    return;
  }
  Missed& missed = *found->second;
  if (is_warning) {
    // A scope that was renewed goes on.
    if (released.text("result") != "renewed") {
      missed.history->missed.released_after_warning.add(time_in(released, "after_s", 1e9));
    }
    forget(found->second);
    return;
  }
  missed.history->missed.released_late.add(time_in(released, "late_ms", 1e6));
  missed.was_released = true;
  if (missed.together) {
    missed.together->was_released = true;
  }
  if (missed.is_decided) {
    forget(found->second);
  }
}

// The timeout of today is the latest one: the log has an order, and pages come last.
void ScopeHistories::add(ScopeHistory& history, const ScopeStatistics& part) {
  history.statistics.add(part);
  history.statistics.timeout = part.timeout;
}

void ScopeHistories::forget(MissedList::iterator missed) {
  by_key_.erase(missed->key);
  without_end_.erase(missed);
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
