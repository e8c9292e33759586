// The lanes of a hang as an SVG image, which needs no script, font or file.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "timer_client/cli/report/hang.hpp"

namespace filetimer::cli {

// A lane that is drawn, and the workers that it stands for.
struct DrawnLane {
  const Lane* lane = nullptr;
  std::vector<WorkerName> workers;  // one, or all of a group in one scope
};

// Returns the lanes to draw: each worker has one where there are few. Where there are more than
// kMostLanes, workers in one scope that entered it together share one.
std::vector<DrawnLane> drawn_lanes(const Hang& hang);
inline constexpr std::size_t kMostLanes = 72;
// Of those lanes, how many svg_of() draws.
inline constexpr std::size_t kMostLanesDrawn = 256;

// Returns two <svg> elements of the same height, to stand side by side: the names, and the scopes
// over time. They take their colours from the classes of the page's style.
std::string svg_of(const Hang& hang);

}  // namespace filetimer::cli
