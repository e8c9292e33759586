// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/stragglers.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "common/text.hpp"

namespace filetimer {
namespace {

// A rank must differ from the others by this many times the spread.
constexpr double kSpreads = 5;
// How many ranks in the middle of the order are compared with a rank there; with a rank at either
// end, one more.
constexpr std::size_t kMostPeers = 8;
// In a normal distribution: the standard deviation in median absolute deviations and in
// interquartile ranges, and the standard error of a median in that of a mean.
constexpr double kDeviationOfMad = 1.4826;
constexpr double kDeviationOfQuartiles = 1 / 1.349;
constexpr double kErrorOfMedian = 1.2533;

double nanoseconds(Duration duration) {
  return static_cast<double>(duration.count());
}

Duration duration_of(double ns) {
  return Duration{static_cast<std::int64_t>(std::min(ns, 9e18))};  // 2^63 does not fit
}

// Returns a quantile of sorted values, of which there is at least one.
double quantile_of(std::span<const double> sorted, double part) {
  const double at = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

// Returns the median of at least one value; they need no order.
double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return quantile_of(values, 0.5);
}

std::int64_t begin_of(const EndedReading& scope) {
  return scope.ended.ns - scope.took.count();
}

// Returns the distance from `at` to the nearest of the scopes' times.
template <class TimeOf>
double nearest(std::int64_t at, const std::vector<EndedReading>& scopes, TimeOf time_of) {
  double least = std::numeric_limits<double>::infinity();
  for (const EndedReading& scope : scopes) {
    least =
        std::min(least, std::abs(static_cast<double>(time_of(scope)) - static_cast<double>(at)));
  }
  return least;
}

// The scopes of one name in one rank.
struct Times {
  std::size_t rank = 0;
  std::vector<EndedReading> ended;  // the last ones, in the order of their ends
  // Nanoseconds.
  double median = 0;
  double lower_quartile = 0;
  double upper_quartile = 0;
  double error = 0;   // of the median: its standard deviation
  double period = 0;  // from the end of a scope to the next: the median
};

Times times_of(std::size_t rank, std::vector<EndedReading> ended) {
  // A worker may write anything to its page.
  for (EndedReading& scope : ended) {
    scope.ended = std::max(scope.ended, Instant{});
    scope.took = std::clamp(scope.took, Duration::zero(), Duration{scope.ended.ns});
  }
  const std::size_t extra = ended.size() - std::min(ended.size(), kMostScopesCompared);
  ended.erase(ended.begin(), ended.begin() + static_cast<std::ptrdiff_t>(extra));
  std::vector<double> took =
      mapped(ended, [](const EndedReading& scope) { return nanoseconds(scope.took); });
  std::ranges::sort(took);
  Times times;
  times.rank = rank;
  times.median = quantile_of(took, 0.5);
  times.lower_quartile = quantile_of(took, 0.25);
  times.upper_quartile = quantile_of(took, 0.75);
  times.error = (times.upper_quartile - times.lower_quartile) * kDeviationOfQuartiles *
                kErrorOfMedian / std::sqrt(static_cast<double>(took.size()));
  std::vector<double> periods;
  for (std::size_t i = 1; i < ended.size(); ++i) {
    periods.push_back(nanoseconds(ended[i].ended - ended[i - 1].ended));
  }
  times.period = median_of(std::move(periods));
  times.ended = std::move(ended);
  return times;
}

// Returns whether the candidate and the ranks in the middle end these scopes together and do not
// begin them together.
bool wait_for_each_other(const std::vector<Times>& sorted, std::size_t candidate) {
  const std::size_t first = (sorted.size() - std::min(sorted.size(), kMostPeers + 1)) / 2;
  std::vector<double> begins;
  std::vector<double> ends;
  for (std::size_t i = first; i < std::min(sorted.size(), first + kMostPeers + 1); ++i) {
    if (i == candidate) {
      continue;
    }
    for (const EndedReading& scope : sorted[candidate].ended) {
      begins.push_back(nearest(begin_of(scope), sorted[i].ended, begin_of));
      ends.push_back(nearest(scope.ended.ns, sorted[i].ended,
                             [](const EndedReading& other) { return other.ended.ns; }));
    }
  }
  return median_of(std::move(ends)) < median_of(std::move(begins)) / 2;
}

// Compares the scopes of one name.
void compare_scope(const std::string& scope, std::vector<Times>& times, StragglerSearch& search) {
  if (times.size() < kLeastRanksCompared) {
    return;
  }
  std::ranges::sort(times, {}, &Times::median);
  std::vector<double> errors;
  for (const Times& each : times) {
    search.compared.insert(each.rank);
    errors.push_back(each.error);
  }
  const double usual_error = median_of(std::move(errors));
  const std::size_t others = times.size() - 1;
  const std::size_t before = search.stragglers.size();
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (i >= kMostCandidates && i + kMostCandidates < times.size()) {
      continue;
    }
    const Times& rank = times[i];
    // The k-th of the others, in order.
    const auto other = [&](std::size_t k) { return times[k < i ? k : k + 1].median; };
    const double middle = (other((others - 1) / 2) + other(others / 2)) / 2;
    const bool is_slower = rank.median > middle;
    const double longer = std::max(rank.median, middle);
    const double shorter = std::max(std::min(rank.median, middle), 1.0);
    const double difference = longer - shorter;
    const bool is_on_one_side =
        is_slower ? rank.lower_quartile > middle : rank.upper_quartile < middle;
    const double least_difference =
        std::max(nanoseconds(kLeastDifference), is_slower ? 0 : kLeastLostPart * rank.period);
    if (longer < kSlowFactor * shorter || difference < least_difference || !is_on_one_side) {
      continue;
    }
    std::vector<double> deviations;
    for (std::size_t k = 0; k < others; ++k) {
      deviations.push_back(std::abs(other(k) - middle));
    }
    const double spread =
        std::max({kDeviationOfMad * median_of(std::move(deviations)), usual_error, rank.error});
    // A rank that comes early where ranks wait, or is quick where they do not, is no straggler.
    if (difference < kSpreads * spread || wait_for_each_other(times, i) == is_slower) {
      continue;
    }
    search.stragglers.push_back(
        {.rank = rank.rank,
         .scope = scope,
         .kind = is_slower ? StragglerKind::kSlower : StragglerKind::kWaitsLeast,
         .median = duration_of(rank.median),
         .others = duration_of(middle),
         .factor = longer / shorter,
         .ranks = times.size(),
         .scopes = rank.ended.size()});
  }
  std::sort(search.stragglers.begin() + static_cast<std::ptrdiff_t>(before),
            search.stragglers.end(),
            [](const Straggler& a, const Straggler& b) { return a.factor > b.factor; });
}

}  // namespace

std::string_view name_of(StragglerKind kind) {
  return kind == StragglerKind::kSlower ? "slower" : "waits_least";
}

StragglerSearch search_stragglers(const std::vector<RankScopes>& ranks) {
  std::map<std::pair<std::string, std::string>, std::vector<Times>> times;  // by job and scope
  std::size_t pairs = 0;
  for (const RankScopes& one : ranks) {
    for (const auto& [scope, ended] : one.ended) {
      if (ended.size() >= kLeastScopesCompared && pairs < kMaxPairsCompared) {
        ++pairs;
        times[{one.job, scope}].push_back(times_of(one.rank, ended));
      }
    }
  }
  StragglerSearch search;
  for (auto& [key, of_scope] : times) {
    compare_scope(key.second, of_scope, search);
  }
  return search;
}

}  // namespace filetimer
