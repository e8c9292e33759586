// SPDX-License-Identifier: MIT
#include "timer_client/cli/suggest/scope_history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "timer_client/cli/log/ended_workers.hpp"

namespace filetimer::cli {
namespace {

// Returns the time in a field of a record; never negative.
Duration time_in(const Record& record, std::string_view key, double unit_ns) {
  constexpr double kMostNs = 9e18;  // 2^63 does not fit
  const double ns = record.number(key).value_or(0) * unit_ns;
  return Duration{std::llround(std::clamp(ns, 0.0, kMostNs))};
}

std::string expiry_of(const Record& record) {
  return fmt::format("{} {}", record.host, record.id);
}

}  // namespace

void Delays::add(Duration delay) {
  ++count;
  least = std::min(least, delay);
  longest = std::max(longest, delay);
}

void ScopeHistories::take(const Record& record) {
  if (record.event == "worker_ended") {
    ++ended_workers_;
    for (const simdjson::dom::object scope : objects_at(record.fields, "scopes")) {
      if (ScopeHistory* const history = history_of(text_at(scope, "scope"))) {
        history->statistics.add(read_statistics(scope));
      }
    }
    return;
  }
  if (record.event == "killed") {
    take_outcome(record);
    return;
  }
  const bool is_warning = record.event == "warned" && !record.id.empty();
  if (!is_warning && record.event != "expired" && record.event != "released_late" &&
      record.event != "warning_ended") {
    return;
  }
  ScopeHistory* const history = history_of(record.scope);
  if (history == nullptr) {
    return;
  }
  MissedDeadlines& missed = history->missed;
  if (is_warning) {
    ++missed.warned;
  } else if (record.event == "expired") {
    ++missed.expired;
    without_outcome_[expiry_of(record)] = history;
  } else if (record.event == "released_late") {
    missed.released_late.add(time_in(record, "late_ms", 1e6));
  } else {
    missed.released_after_warning.add(time_in(record, "after_s", 1e9));
  }
}

void ScopeHistories::take_outcome(const Record& killed) {
  const auto found = without_outcome_.find(expiry_of(killed));
  if (found == without_outcome_.end()) {
    return;
  }
  const std::string verdict = killed.text("verdict");
  MissedDeadlines& missed = found->second->missed;
  if (verdict == "spared") {
    ++missed.spared;
  } else if (verdict != "already_gone") {
    ++missed.killed;
  }
  without_outcome_.erase(found);
}

void ScopeHistories::add(const StatisticsByName& statistics) {
  for (const auto& [name, part] : statistics) {
    if (ScopeHistory* const history = history_of(name)) {
      history->statistics.add(part);
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
