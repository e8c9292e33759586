// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/report_page.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace filetimer::cli {
namespace {

// The axis begins this many times the longest expired scope before the verdict.
constexpr double kPastShare = 1.5;
constexpr double kLeastPastS = 1;
constexpr double kMostPastS = 600;
constexpr double kMarginShare = 0.04;  // before the first event
constexpr double kAfterShare = 1.15;   // of the last event
constexpr double kLeastAxisS = 1e-3;
constexpr double kRoundingS = 2e-6;  // of two times in records

// The axis has what is known, and no empty time before it.
void set_axis(Picture& picture) {
  double longest_s = 0;
  double first_s = 0;
  for (const Worker& worker : picture.incident->workers) {
    for (const Scope& scope : worker.scopes) {
      first_s = std::min(first_s, scope.begin_s);
      if (scope.kind == Scope::Kind::kExpired) {
        longest_s = std::max(longest_s, -scope.begin_s);
      }
    }
    for (const Moment& moment : worker.moments) {
      first_s = std::min(first_s, moment.at_s);
      picture.end_s = std::max(picture.end_s, moment.at_s);
    }
  }
  picture.begin_s = std::max(-std::clamp(kPastShare * longest_s, kLeastPastS, kMostPastS),
                             std::min((1 + kMarginShare) * first_s, -kLeastAxisS));
  picture.end_s =
      picture.end_s > kLeastAxisS ? kAfterShare * picture.end_s : -kMarginShare * picture.begin_s;
}

// Returns the scopes on the axis.
std::vector<Bar> bars_of(const Worker& worker, const Picture& picture) {
  std::vector<Bar> bars;
  for (const Scope& scope : worker.scopes) {
    Bar bar{scope};
    bar.end_s = std::max(std::min(bar.end_s, picture.end_s), bar.begin_s);
    if (bar.end_s >= picture.begin_s && bar.begin_s <= picture.end_s) {
      bars.push_back(std::move(bar));
    }
  }
  std::ranges::stable_sort(bars, [](const Bar& a, const Bar& b) {
    return std::tuple(a.begin_s, -a.end_s) < std::tuple(b.begin_s, -b.end_s);
  });
  std::vector<double> ends;  // of each row's last bar
  for (Bar& bar : bars) {
    const auto row =
        std::ranges::find_if(ends, [&](double end) { return end <= bar.begin_s + kRoundingS; });
    bar.row = static_cast<std::size_t>(row - ends.begin());
    if (row == ends.end()) {
      ends.push_back(bar.end_s);
    } else {
      *row = bar.end_s;
    }
  }
  return bars;
}

}  // namespace

Picture picture_of(const Incident& incident) {
  Picture picture{.incident = &incident, .lanes = {}};
  set_axis(picture);
  for (const Worker& worker : incident.workers) {
    Lane& lane = picture.lanes.emplace_back(Lane{&worker, bars_of(worker, picture), {}});
    for (const Moment& moment : worker.moments) {
      if (moment.at_s >= picture.begin_s) {
        lane.moments.push_back(&moment);
      }
    }
  }
  return picture;
}

std::string_view name_of(Moment::Kind kind) {
  constexpr std::array<std::string_view, 9> kNames{"warning",       "deferred", "verdict",
                                                   "evidence",      "signal",   "death",
                                                   "released late", "hook",     "other"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace filetimer::cli
