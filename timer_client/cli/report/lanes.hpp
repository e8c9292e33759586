// The lanes of a hang as SVG images, which need no script, font or file.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "timer_client/cli/report/hang.hpp"

namespace filetimer::cli {

// A lane that is drawn: that of one worker, or of all of a group in one scope. Then it has the bars
// of the first one and the marks of all.
using DrawnLane = std::vector<const Lane*>;

// Returns the lanes to draw: each worker has one where there are few. Where there are more than
// kMostLanes, workers in one scope that entered it together share one.
std::vector<DrawnLane> drawn_lanes(const Hang& hang);
inline constexpr std::size_t kMostLanes = 72;
// Of those lanes, how many svg_of() draws.
inline constexpr std::size_t kMostLanesDrawn = 256;

// Returns pieces of the picture, one below the other, between which a page may end. Each is a <div>
// with two <svg> elements of the same height: the names, and the scopes over time. They take their
// colours from the classes of the page's style.
std::string svg_of(const Hang& hang);

// Whether the time after the first verdict has a scale of its own, because it is much shorter than
// the time before.
bool has_two_scales(const Hang& hang);

}  // namespace filetimer::cli
