// Stragglers: ranks of a job that are slow, found by comparing the scopes of one name over the
// ranks. A pure computation: the caller brings the times, from scope pages.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "common/page_reader.hpp"

namespace filetimer {

// The least number of ranks that must have scopes of a name before these scopes are compared. With
// two ranks it cannot be known which of them is unusual.
inline constexpr std::size_t kLeastRanksCompared = 3;
// The scopes of a name that must have ended in a rank before the rank is compared.
inline constexpr std::size_t kLeastScopesCompared = 8;
// The scopes of a rank and a name that are compared: those that ended last, of all its threads.
inline constexpr std::size_t kMostScopesCompared = kEndedScopes;
// The pairs of rank and name that one search takes. Further pairs are left out.
inline constexpr std::size_t kMaxPairsCompared = 16'384;
// How many of the slowest ranks of one name can be named, and how many of those that wait least.
inline constexpr std::size_t kMostCandidates = 16;
// A difference that is smaller makes no straggler: it is that of the caches and the scheduler.
inline constexpr Duration kLeastDifference = std::chrono::microseconds{100};
// Where ranks wait for each other, the least part of the time from one such scope to the next that
// the others must wait longer. One of the ranks is always the last to come; a hundredth is no
// fault.
inline constexpr double kLeastLostPart = 0.05;
// How many times as long a rank takes at least that is named.
inline constexpr double kSlowFactor = 1.2;

enum class StragglerKind {
  kSlower,      // the rank takes longer than the others
  kWaitsLeast,  // the ranks wait for each other, and this one waits least: it is the last to come
};
// Returns "slower" or "waits_least", as in records and in JSON.
std::string_view name_of(StragglerKind kind);

// One rank that is slow in the scopes of one name.
struct Straggler {
  std::size_t rank = 0;  // as RankScopes numbers it
  std::string scope;
  StragglerKind kind = StragglerKind::kSlower;
  Duration median{};  // of the rank's scopes
  Duration others{};  // the median of the other ranks' medians
  // How many times as long: the rank as the others, or for kWaitsLeast the others as the rank.
  double factor = 1;
  std::size_t ranks = 0;   // that were compared, this one included
  std::size_t scopes = 0;  // of the rank that were compared
};

// The scopes of one rank, which must outlive this.
struct RankScopes {
  std::size_t rank = 0;  // any number; two ranks have two
  std::string job;
  const EndedScopesByName& ended;
};

struct StragglerSearch {
  // In the order of jobs and of names, the largest factor of a name first.
  std::vector<Straggler> stragglers;
  // The ranks that were compared with others in at least one name.
  std::set<std::size_t> compared;
};

// Compares the last scopes of each name over the ranks of a job. Takes no more than
// kMaxPairsCompared pairs of rank and name.
//
// The time of a rank is the median of its last scopes (kMostScopesCompared), and not of the
// histogram since its start: a processor that is throttled after hours changes such a median of
// thousands of scopes too late. A rank is compared with the median of the other ranks, and named if
// all of this holds:
// - the two differ by kSlowFactor, and by kLeastDifference;
// - the two differ by five times the spread, which is the largest of: the deviation of the other
//   ranks from their median (MAD, as a standard deviation), and the standard error of one rank's
//   median. So ranks that differ among themselves, and scopes whose times vary, name no rank by
//   accident;
// - three quarters of the rank's scopes are on the same side of the others' median. So no rank is
//   named for scopes that take a short time and a long one by turns.
//
// Where ranks wait for each other (a collective), all leave together, and the last to come waits
// least. Such scopes show in their times: the ends of two ranks are closer than half of what their
// begins are. In them the rank with the short time is named, if the others lose kLeastLostPart of a
// step by it, and in other scopes the one with the long time. The times are those of one host's
// CLOCK_MONOTONIC.
StragglerSearch search_stragglers(const std::vector<RankScopes>& ranks);

}  // namespace filetimer
