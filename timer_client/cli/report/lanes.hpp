// An incident as a picture has it: one lane for each worker of the job, with its scopes as bars, on
// one time axis over all hosts.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "timer_client/cli/log/incident.hpp"

namespace filetimer::cli {

// A scope as far as it is on the axis.
struct Bar : Scope {
  std::size_t row = 0;  // bars that overlap are in different rows, the outermost scope first
};

struct Lane {
  const Worker* worker = nullptr;
  std::vector<Bar> bars;
  std::vector<const Moment*> moments;  // those on the axis
};

// It has views of the incident.
struct Picture {
  const Incident* incident = nullptr;
  std::vector<Lane> lanes;  // in the order of its workers
  double begin_s = 0;       // of the time axis
  double end_s = 0;
};

Picture picture_of(const Incident& incident);

// --- the lanes as SVG images ---

// A lane that is drawn: that of one worker, or of all of a group in one scope. Then it has the bars
// and moments of the first one.
using DrawnLane = std::vector<const Lane*>;

// Returns the lanes: each worker has one where there are few. Where there are more than kMostLanes,
// the worker at the top and the first to expire have one each, and each group of ScopeGroup has one
// for its others.
std::vector<DrawnLane> drawn_lanes(const Picture& picture);
// How many of those lanes svg_of() draws.
inline constexpr std::size_t kMostLanes = 72;

// Returns a <div> with two <svg> elements of the same height: the names, and the scopes over time.
// They take their colours from the classes of the page's style.
std::string svg_of(const Picture& picture);

// Whether the time after the first verdict has a scale of its own, because it is much shorter than
// the time before.
bool has_two_scales(const Picture& picture);

}  // namespace filetimer::cli
