// The pages of a hang: an HTML file that needs nothing else, no network, no script and no font, and
// Chrome trace events.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "timer_client/cli/report/hang.hpp"

namespace filetimer::cli {

// Returns the file. `logs`: where the records come from, for the last line.
std::string html_page(const Hang& hang, const std::string& logs);

// Returns the lanes as the JSON object that Perfetto opens: a process for each host, a thread for
// each row of a worker, and the scopes and marks in the order of their times. Times are
// microseconds from the first verdict plus an hour, or plus more if a scope was open for longer:
// they are not negative there.
std::string trace_events(const Hang& hang);

// --- the lanes as SVG images ---

// A lane that is drawn: that of one worker, or of all of a group in one scope. Then it has the bars
// of the first one and the marks of all.
using DrawnLane = std::vector<const Lane*>;

// Returns the lanes: each worker has one where there are few. Where there are more than kMostLanes,
// the worker at the top and the first to expire have one each, and each group of ScopeGroup has one
// for its others.
std::vector<DrawnLane> drawn_lanes(const Hang& hang);
// How many of those lanes svg_of() draws.
inline constexpr std::size_t kMostLanes = 72;

// Returns the picture, a <div> with two <svg> elements of the same height: the names, and the
// scopes over time. They take their colours from the classes of the page's style.
std::string svg_of(const Hang& hang);

// Whether the time after the first verdict has a scale of its own, because it is much shorter than
// the time before.
bool has_two_scales(const Hang& hang);

}  // namespace filetimer::cli
