// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "timer_client/cli/log/evidence_page.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/report/stack_tree.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

constexpr std::size_t kFactCharacters = 2000;
constexpr std::size_t kNameCharacters = 200;
constexpr std::size_t kEventsCharacters = 600;  // of one worker in the table
constexpr std::size_t kWorkersListed = 4;       // whose events have a table of their own
constexpr std::size_t kEventsTold = 40;         // of one worker there
constexpr std::size_t kTableOpen = 16;          // a table of more workers is closed at first
constexpr std::size_t kGroupsShown = 64;

// Nothing may be loaded, whatever a record would have the browser do.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang=en>
<meta charset=utf-8>
<meta http-equiv=Content-Security-Policy content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name=viewport content="width=device-width, initial-scale=1">
<link rel=icon href="data:,">
)";

// In a narrow window the picture scrolls and the names stay in sight. `direction: rtl` on <figure>
// makes the browser show the right end first, with the verdict and the deaths. The text inside is
// left to right again.
constexpr std::string_view kStyle = R"(<style>
:root { color-scheme: light dark; --back: #fff; --text: #1c1e21; --soft: #676d76; --line: #d9dce1;
  --ground: #f3f4f6; --hung: #fbe7e5; --ended: #b9c7da; --open: #7da7d9; --expired: #e05252;
  --calm: #f1b3b0; --bar: #10131a; --warning: #b7791f; --odd: #b42323; }
@media (prefers-color-scheme: dark) { :root { --back: #15181d; --text: #e6e8eb; --soft: #9aa2ad;
  --line: #343a43; --ground: #1e2229; --hung: #3b2326; --ended: #44536a; --open: #39689c; --expired: #b93a3a;
  --calm: #6d3537; --bar: #f4f6f8; --warning: #e0ab4f; --odd: #ff8b84; } }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; line-height: 1.35; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
h3 { font-size: .95rem; margin: 1.2rem 0 .3rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dt, small, .soft { color: var(--soft); }
dd { margin: 0; }
code { font-family: ui-monospace, monospace; font-size: .88em; }
pre { margin: 0; padding: .6rem .8rem; max-height: 30rem; overflow: auto; background: var(--ground);
  border: 1px solid var(--line); font: .88em/1.45 ui-monospace, monospace; }
figure { margin: 0; overflow-x: auto; direction: rtl; }
.picture { display: flex; align-items: flex-start; min-width: 52rem; direction: ltr; }
.narrow { display: none; }
@media screen and (max-width: 54rem) { .narrow { display: block; } }
svg { flex: 1010 0 0; min-width: 0; font: 11px ui-monospace, monospace; }
svg.names { flex-grow: 190; position: sticky; left: 0; overflow: visible; background: var(--back); }
svg text { fill: var(--text); }
svg .axis { fill: var(--soft); text-anchor: middle; }
svg .leftmost { text-anchor: start; }
svg .rightmost { text-anchor: end; }
svg .after { fill: var(--text); opacity: .06; }
svg .under { fill: var(--soft); }
svg .host { font-weight: bold; }
svg .doubt, svg .deeper { fill: var(--warning); font-weight: normal; }
svg .deeper { text-anchor: end; }
svg .odd text { fill: var(--odd); font-weight: bold; }
svg .tick { stroke: var(--line); }
svg .zero { stroke: var(--odd); stroke-dasharray: 3 3; }
svg .ground { fill: var(--ground); }
svg .hung { fill: var(--hung); }
svg .other { stroke: var(--warning); stroke-dasharray: 2 4; }
svg .ended rect { fill: var(--ended); }
svg .open rect { fill: var(--open); }
svg .expired rect { fill: var(--expired); stroke: var(--odd); }
svg .calm .expired rect { fill: var(--calm); }
svg rect.unknown { opacity: .35; }
svg g text { fill: var(--bar); }
svg .lane { fill: var(--text); }
svg .hatch { stroke: var(--bar); stroke-width: 1.5; }
svg rect.paused { fill: url(#paused); opacity: .5; }
svg .mark { fill: none; stroke: var(--text); stroke-width: 1.5; }
svg .warning { fill: var(--warning); stroke: var(--back); }
svg .verdict { stroke: var(--odd); stroke-width: 2; }
svg .signal { stroke-dasharray: 2 2; }
svg .death { stroke-width: 2; }
svg .note { fill: var(--text); stroke: var(--back); }
.key { display: inline-block; white-space: nowrap; margin-right: .9em; }
.key i { display: inline-block; width: 1em; height: .8em; border-radius: 2px; }
.tree { overflow-x: auto; }
.tree ul { margin: 0; padding: 0; list-style: none; }
.tree li { min-width: 12rem; }
.tree li + li { margin-top: .6rem; }
.tree li li { margin: .4rem 0 0 .2rem; padding-left: .9rem; border-left: 3px solid var(--ended); }
.tree code { display: inline-block; padding-left: 1.5em; text-indent: -1.5em; }
.tree small { white-space: nowrap; }
.tree .odd { color: var(--odd); }
table { border-collapse: collapse; }
td, th { padding: .1rem .8rem .1rem 0; text-align: left; vertical-align: top; overflow-wrap: normal; }
td { overflow-wrap: break-word; max-width: 40rem; }
.workers td:last-child { min-width: 14rem; }
td.time { white-space: nowrap; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
@media print { body { max-width: none; padding: 0; font-size: 12px; } figure { overflow: visible; }
  .picture { min-width: 0; } svg.names { position: static; } h2, h3 { break-after: avoid; }
  .tree, .wide { overflow: visible; } * { print-color-adjust: exact; }
  pre { max-height: none; overflow: visible; white-space: pre-wrap; } }
</style>
)";

std::string heading(std::string_view title) {
  return fmt::format("<h2>{}</h2>\n", title);
}

const ScopeGroup& largest_of(const std::vector<ScopeGroup>& groups) {
  return *std::ranges::max_element(groups, {},
                                   [](const auto& group) { return group.workers.size(); });
}

std::string cause_text(const Incident& incident) {
  if (incident.has_odd_group()) {
    const ScopeGroup& most = largest_of(incident.groups);
    return joined({odd_sentence(incident), first_waited_sentence(incident),
                   fmt::format("{} were {}.", counted(most.workers.size(), "other worker"),
                               in_scope(most.scope))},
                  " ");
  }
  if (!incident.expired.empty()) {
    return fmt::format("The first to expire: {}.", worker_text(incident.expired[0].worker));
  }
  return {};
}

std::string facts_of(const ExpiryPage& cause) {
  std::string html = "<dl>";
  for (const auto& [label, value] : cause.facts()) {
    html += fmt::format("<dt>{}</dt><dd><bdi>{}</bdi></dd>\n", html_text(label),
                        html_text(value, kFactCharacters));
  }
  return html + "</dl>\n";
}

std::string key_of_the_picture(const Picture& picture) {
  const auto bar = [](std::string_view colour, std::string_view what) {
    return fmt::format("<span class=key><i style=\"background:var(--{})\"></i> {}</span>", colour,
                       what);
  };
  const auto mark = [](std::string_view shape, std::string_view what) {
    return fmt::format("<span class=key>{} {}</span>", shape, what);
  };
  return fmt::format(
      "<p class=soft>Seconds before and after the first {}.{} Each bar and mark has its times "
      "as a tooltip; the table below has those of the marks.<br>{}{}{}{}{}{}{}{}</p>\n",
      zero_of(*picture.incident),
      has_two_scales(picture) ? " What followed it, on the darker ground, has a scale of its own."
                              : "",
      bar("expired", "expired"), bar("open", "open, pale where no record says so"),
      bar("ended", "ended"), mark("&#9650;", "warning or deferral"), mark("|", "verdict"),
      mark("&#9679;", "evidence, hook or other outcome"), mark("&#8942;", "signal"),
      mark("&#10005;", "death"));
}

// Returns sentences about what the picture does not show.
std::string doubts_of(const Picture& picture) {
  std::string html;
  const auto add = [&](const std::string& text) {
    html += fmt::format("<p class=soft>{}</p>\n", html_text(text));
  };
  if (picture.incident->machines > 1) {
    add("Each host has its own clock. Their difference is not known: compare times of two hosts "
        "with how well their clocks agree.");
  }
  if (!picture.incident->missing.empty() && !picture.incident->expired.empty()) {
    add("No incident record of " + listed(picture.incident->missing, 8) +
        ": of workers there only those that expired are shown.");
  }
  if (picture.incident->omitted_scopes > 0) {
    add(counted(picture.incident->omitted_scopes, "more open scope") +
        " did not fit into the records.");
  }
  if (picture.incident->ended_omitted > 0) {
    add(counted(picture.incident->ended_omitted, "more ended scope") +
        " did not fit into the records.");
  }
  if (drawn_lanes(picture).size() > kMostLanes) {
    add(fmt::format("The first {} lanes are drawn. All workers are in the table.", kMostLanes));
  }
  return html;
}

std::string groups_of(const Incident& incident) {
  const std::vector<ScopeGroup>& groups = incident.groups;
  if (groups.empty()) {
    return {};
  }
  std::string html = heading("Ranks at time of expiry") + "<ul>\n";
  const auto add = [&](const ScopeGroup& group) {
    const bool is_odd = &group == groups.data() && incident.has_odd_group();
    html += fmt::format(
        "<li>{} <bdi>{}</bdi>{}{}</li>\n", html_text(workers_text(group.workers), kFactCharacters),
        html_text(in_scope(group.scope), kNameCharacters), html_text(time_in_scope(group)),
        is_odd ? ", <strong>" + odd_text(group.workers.size()) + "</strong>" : "");
  };
  const std::size_t shown = groups.size() <= kGroupsShown ? groups.size() : kGroupsShown - 1;
  std::ranges::for_each(std::span(groups).first(shown), add);
  if (shown < groups.size()) {
    html +=
        fmt::format("<li>and in {} other places, the most of them:</li>\n", groups.size() - shown);
    add(largest_of(groups));
  }
  return html + "</ul>\n";
}

// "+0.063 s"
std::string time_of(const Moment& moment) {
  return fmt::format("{:+.3f} s", moment.at_s);
}

std::vector<WorkerName> workers_to_look_at(const Incident& incident) {
  std::vector<WorkerName> workers;
  for (const Worker& worker : incident.workers) {
    if (incident.has_odd_group() ? worker.is_odd : worker.is_first) {
      workers.push_back(worker.name);
    }
  }
  return workers;
}

// Returns the events of the workers to look at as tables: paper and phones show no tooltips.
std::string events_of(const Picture& picture) {
  std::string html;
  std::size_t tables = 0;
  for (const Lane& lane : picture.lanes) {
    if (!(lane.worker->is_odd || lane.worker->is_first || picture.lanes.size() == 1) ||
        lane.moments.empty() || tables == kWorkersListed) {
      continue;
    }
    ++tables;
    html += fmt::format(
        "<h3>Events of {}</h3>\n<div class=wide><table><tr><th>After the {}"
        "</th><th>UTC</th><th>Event</th></tr>\n",
        html_text(worker_text(lane.worker->name), kNameCharacters), zero_of(*picture.incident));
    const std::size_t omitted = lane.moments.size() - std::min(lane.moments.size(), kEventsTold);
    for (std::size_t i = omitted; i < lane.moments.size(); ++i) {
      constexpr std::size_t kClock = 11;  // of "2026-11-21 03:15:53.123456 UTC"
      constexpr std::size_t kClockEnd = 23;
      const Moment& moment = *lane.moments[i];
      html += fmt::format("<tr><td class=time>{}</td><td class=time>{}</td><td>{}</td></tr>\n",
                          time_of(moment),
                          time_text(picture.incident->zero_us +
                                    static_cast<std::int64_t>(std::llround(moment.at_s * 1e6)))
                              .substr(kClock, kClockEnd - kClock),
                          html_text(moment.text, kNameCharacters));
    }
    html += "</table></div>\n";
    if (omitted > 0) {
      html += fmt::format("<p class=soft>Before them: {}.</p>\n", counted(omitted, "more event"));
    }
  }
  return html;
}

std::string html_of(const CommandOutput& output) {
  std::string html =
      heading(html_text(fmt::format("{} on {}: {}", output.name, output.host, output.end)));
  if (!output.text.empty()) {
    html += "<pre>";
    for (std::size_t begin = 0; begin < output.text.size();) {
      const std::size_t end = std::min(output.text.find('\n', begin), output.text.size());
      html += html_text(output.text.substr(begin, end - begin)) + "\n";
      begin = end + 1;
    }
    html += "</pre>\n";
  }
  if (!output.size.empty()) {
    html += fmt::format("<p class=soft>{}</p>\n", html_text(output.size));
  }
  return html;
}

std::vector<std::string> outermost_first(std::vector<std::string> frames) {
  std::ranges::reverse(frames);
  return frames;
}

// Returns the stacks of the workers' main threads, and of their children's.
std::string stacks_of(const Incident& incident) {
  StackTree python;
  StackTree native;
  std::string children;
  for (const Worker& worker : incident.workers) {
    dom::parser parser;
    const auto evidence =
        worker.evidence.empty() ? std::nullopt : parse_record(parser, worker.evidence);
    if (!evidence) {
      continue;
    }
    python.add(worker.name, outermost_first(python_frames_of_main_thread(evidence->fields)));
    native.add(worker.name, outermost_first(native_frames_of_main_thread(evidence->fields)));
    StackTree of_children;
    for (const dom::object child : objects_at(evidence->fields, "children")) {
      std::vector<std::string> calls = texts_at(child, "native_stack");
      std::ranges::transform(calls, calls.begin(), without_offset);
      if (const std::string doing = text_at(child, "doing"); calls.empty() && !doing.empty()) {
        calls.push_back(doing);
      }
      if (!calls.empty()) {
        of_children.add({{}, integer_at(child, "pid"), {}, text_at(child, "comm")},
                        outermost_first(std::move(calls)));
      }
    }
    if (!of_children.is_empty()) {
      children += fmt::format("<h3>Children of {}</h3>\n", html_text(worker_text(worker.name))) +
                  html_of(of_children, {}, "stack");
    }
  }
  const std::vector<WorkerName> odd = workers_to_look_at(incident);
  std::string html;
  if (!python.is_empty()) {
    html += heading("Python stacks, the outermost call first") + html_of(python, odd);
  }
  if (!native.is_empty()) {
    html +=
        heading("Native stacks of main threads, the outermost call first") + html_of(native, odd);
  }
  if (!children.empty()) {
    html += heading("Children of workers, the outermost call first") + children;
  }
  return html;
}

std::string workers_table(const Picture& picture) {
  std::string html = fmt::format(
      "<details{}><summary>{}</summary>\n<div class=\"wide "
      "workers\"><table><tr><th>Host</th><th>Rank</th>"
      "<th>Pid</th><th>Program</th><th>Scope</th><th>What happened, and when after the "
      "{}</th></tr>\n",
      picture.lanes.size() <= kTableOpen ? " open" : "", counted(picture.lanes.size(), "worker"),
      zero_of(*picture.incident));
  for (const Lane& lane : picture.lanes) {
    std::vector<std::string> events;
    for (const Moment* const moment : lane.moments) {
      events.push_back(fmt::format("{} {}", time_of(*moment), moment->text));
    }
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        html_text(lane.worker->name.host, kNameCharacters),
        lane.worker->name.rank ? fmt::format("{}", *lane.worker->name.rank) : "",
        lane.worker->name.pid ? fmt::format("{}", *lane.worker->name.pid) : "",
        html_text(lane.worker->name.comm, kNameCharacters),
        lane.worker->group
            ? html_text(picture.incident->groups[*lane.worker->group].scope, kNameCharacters)
            : "",
        html_text(joined(events, "; "), kEventsCharacters));
  }
  return html + "</table></div></details>\n";
}

}  // namespace

std::string html_page(const Picture& picture, const ExpiryPage& cause, const std::string& logs) {
  const Incident& incident = *picture.incident;
  const std::string headline = cause.headline();
  std::string html(kHead);
  html += fmt::format("<title>{}</title>\n", html_text(headline, kNameCharacters));
  html += kStyle;
  html += fmt::format("<h1>{}</h1>\n", html_text(headline, kFactCharacters));
  if (const std::string text = cause_text(incident); !text.empty()) {
    html += fmt::format("<p><strong>{}</strong></p>\n", html_text(text, kFactCharacters));
  }
  html += facts_of(cause);
  html += heading("Timeline");
  html += key_of_the_picture(picture);
  html +=
      "<p class=\"soft narrow\">The picture is wider than this window and starts at its end: "
      "scroll it to the left for what was before.</p>\n";
  html += "<figure>" + svg_of(picture) + "</figure>\n";
  html += doubts_of(picture);
  html += events_of(picture);
  html += groups_of(incident);
  html += stacks_of(incident);
  for (const CommandOutput& output : incident.outputs) {
    html += html_of(output);
  }
  html += heading("Workers");
  html += workers_table(picture);
  html += fmt::format("<p class=soft>Made by timer_client report from {}.</p>\n</html>\n",
                      html_text(logs, kFactCharacters));
  return html;
}

}  // namespace filetimer::cli
