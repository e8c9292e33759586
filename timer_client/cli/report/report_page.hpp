// An incident as a picture: one lane for each worker of the job, with its scopes as bars, on one
// time axis over all hosts. report writes it as an HTML file that needs nothing else, no network,
// no script and no font.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
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

// Returns the name of the kind: "verdict".
std::string_view name_of(Moment::Kind kind);

// --- the HTML file ---

// The lanes as the contents of two <svg> elements of report.html, which takes the colours from its
// style.
struct Drawing {
  std::string names;
  std::string scopes;  // over time
  double height = 0;   // of both
  // The time after the first verdict has a scale of its own if it is much shorter than the time
  // before.
  bool has_two_scales = false;
  bool has_all_lanes = true;
};

// So many lanes are drawn.
inline constexpr std::size_t kMostLanes = 72;

// Draws the lanes: each worker has one where there are few. Where there are more than kMostLanes,
// the worker at the top and the first to expire have one each, and each group of ScopeGroup has one
// for its others.
Drawing drawing_of(const Picture& picture);

// report.html, which the build embeds. It has "{{name}}" where html_page() puts a text.
extern const std::string_view kReportHtml;

// Returns the file. `cause` has what it says first. `logs`: where the records come from, for the
// last line.
std::string html_page(const Picture& picture, const ExpirySummary& cause, const std::string& logs);

}  // namespace filetimer::cli
