// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/clock_differences.hpp"

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

namespace filetimer::cli {
namespace {

// What is less may be a record that was made a little before it was stamped, or a clock that is
// being slewed (by 500 ppm, ntpd's most).
constexpr std::int64_t kStepUs = 100'000;
constexpr std::int64_t kSlewDivisor = 2000;
constexpr std::size_t kStepsKept = 4;

using Times = std::vector<std::int64_t>;

std::int64_t median(Times times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// When the workers of one host opened their outermost scopes, by the scope.
std::map<std::string, Times> outer_entries(const Incident& incident) {
  std::map<std::tuple<Integer, Integer>, std::vector<const OpenScope*>> threads;
  for (const OpenScope& open : incident.open_scopes) {
    if (open.elapsed_s) {
      threads[{open.pid, open.tid}].push_back(&open);
    }
  }
  std::map<std::string, Times> entries;
  for (const auto& [thread, scopes] : threads) {
    const OpenScope& outer = **std::max_element(
        scopes.begin(), scopes.end(),
        [](const OpenScope* a, const OpenScope* b) { return a->elapsed_s < b->elapsed_s; });
    constexpr double kFarS = 1e9;  // a record may hold any number
    if (scopes.size() > 1 && incident.time_us && std::abs(*outer.elapsed_s) < kFarS) {
      entries[outer.scope].push_back(*incident.time_us -
                                     static_cast<std::int64_t>(*outer.elapsed_s * 1e6));
    }
  }
  return entries;
}

}  // namespace

std::vector<EntryApart> entries_apart(const std::vector<const Incident*>& incidents,
                                      std::int64_t difference_us) {
  std::map<std::string, std::map<std::string, std::int64_t>> by_scope;  // a time for each host
  for (const Incident* incident : incidents) {
    for (const auto& [scope, times] : outer_entries(*incident)) {
      const auto [least, most] = std::minmax_element(times.begin(), times.end());
      if (*most - *least < difference_us) {  // else they did not enter it together
        by_scope[scope][incident->host] = median(times);
      }
    }
  }
  const auto widest = std::max_element(
      by_scope.begin(), by_scope.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (widest == by_scope.end() || widest->second.size() < 2) {
    return {};
  }
  Times all;
  for (const auto& [host, time] : widest->second) {
    all.push_back(time);
  }
  const std::int64_t usual = median(all);
  std::vector<EntryApart> apart;
  for (const auto& [host, time] : widest->second) {
    if (std::abs(time - usual) >= difference_us) {
      apart.push_back({host, widest->first, time - usual});
    }
  }
  // Where they are not the exception nothing is known.
  return 2 * apart.size() < all.size() || all.size() == 2 ? apart : std::vector<EntryApart>{};
}

void ClockSteps::take(const Record& record) {
  if (!record.time_us || !record.mono_ns || *record.mono_ns < 0) {
    return;
  }
  const std::int64_t mono_us = *record.mono_ns / 1000;
  const Clock now{*record.time_us - mono_us, mono_us};
  const auto [at, is_new] = clocks_.try_emplace({record.host, record.boot_id}, now);
  if (mono_us < at->second.mono_us) {
    return;
  }
  const Clock before = std::exchange(at->second, now);
  const std::int64_t by = now.offset_us - before.offset_us;
  if (is_new || std::abs(by) < kStepUs + (now.mono_us - before.mono_us) / kSlewDivisor) {
    return;
  }
  if (steps_.size() == kStepsKept) {
    steps_.erase(steps_.begin());
    ++omitted_;
  }
  steps_.push_back({record.host, *record.time_us, by});
}

}  // namespace filetimer::cli
