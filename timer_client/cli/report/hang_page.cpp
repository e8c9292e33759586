// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/hang_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "common/json_writer.hpp"
#include "timer_client/cli/log/incident_page.hpp"
#include "timer_client/cli/report/html.hpp"
#include "timer_client/cli/report/lanes.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kFactCharacters = 2000;
constexpr std::size_t kNameCharacters = 200;

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
  --ground: #f3f4f6; --ended: #b9c7da; --open: #7da7d9; --expired: #d64545; --bar: #10131a;
  --warning: #b7791f; --odd: #b42323; }
@media (prefers-color-scheme: dark) { :root { --back: #15181d; --text: #e6e8eb; --soft: #9aa2ad;
  --line: #343a43; --ground: #1e2229; --ended: #44536a; --open: #39689c; --expired: #b93a3a;
  --bar: #f4f6f8; --warning: #e0ab4f; --odd: #ff8b84; } }
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
svg .host { font-weight: bold; }
svg .doubt, svg .deeper { fill: var(--warning); font-weight: normal; }
svg .deeper { text-anchor: end; }
svg .odd text { fill: var(--odd); font-weight: bold; }
svg .tick { stroke: var(--line); }
svg .zero { stroke: var(--odd); stroke-dasharray: 3 3; }
svg .ground { fill: var(--ground); }
svg .other { stroke: var(--warning); stroke-dasharray: 2 4; }
svg .ended rect { fill: var(--ended); }
svg .open rect { fill: var(--open); }
svg .expired rect { fill: var(--expired); }
svg g text { fill: var(--bar); }
svg .lane { fill: var(--text); }
svg .hatch { stroke: var(--bar); stroke-width: 1.5; }
svg rect.paused { fill: url(#paused); opacity: .5; }
svg .mark { fill: none; stroke: var(--text); stroke-width: 1.5; }
svg .warning { fill: var(--warning); stroke: none; }
svg .verdict, svg .signal { stroke: var(--odd); }
svg .signal { stroke-dasharray: 2 2; }
svg .death { stroke-width: 2; }
svg .note { fill: var(--soft); stroke: none; }
.key { display: inline-block; width: 1em; height: .8em; border-radius: 2px; margin-left: .8em; }
.tree { overflow-x: auto; }
.tree ul { margin: 0; padding: 0; list-style: none; }
.tree li { min-width: 12rem; }
.tree li + li { margin-top: .6rem; }
.tree li li { margin: .4rem 0 0 .2rem; padding-left: .9rem; border-left: 3px solid var(--ended); }
.tree code { display: inline-block; padding-left: 1.5em; text-indent: -1.5em; }
.tree small { white-space: nowrap; }
.tree strong { color: var(--odd); }
table { border-collapse: collapse; }
td, th { padding: .1rem .8rem .1rem 0; text-align: left; vertical-align: top; }
@media print { body { max-width: none; } details { display: block; } figure { overflow: visible; }
  .picture { min-width: 0; } .tree { overflow: visible; }
  pre { max-height: none; overflow: visible; white-space: pre-wrap; } }
</style>
)";

std::string heading(std::string_view title) {
  return fmt::format("<h2>{}</h2>\n", title);
}

std::string cause_of(const Hang& hang) {
  const JobIncident& incident = hang.incident;
  if (incident.has_odd_group()) {
    return joined({odd_sentence(incident), first_waited_sentence(incident)}, " ");
  }
  if (!incident.expired.empty()) {
    return fmt::format("The first to expire: {}.", worker_text(incident.expired[0].worker));
  }
  return {};
}

std::string facts_of(const Hang& hang) {
  std::string html = "<dl>";
  for (const auto& [label, value] : hang.facts) {
    html += fmt::format("<dt>{}</dt><dd><bdi>{}</bdi></dd>\n", html_text(label),
                        html_text(value, kFactCharacters));
  }
  return html + "</dl>\n";
}

std::string key_of_the_picture() {
  return "<p class=soft>Seconds before and after the first verdict."
         "<span class=key style=\"background:var(--expired)\"></span> expired"
         "<span class=key style=\"background:var(--open)\"></span> open"
         "<span class=key style=\"background:var(--ended)\"></span> ended. "
         "&#9650; warning or deferral, &#9679; evidence or hook, a red line: a verdict, a dotted "
         "one: a signal, &#10005; a death. Each bar and mark has its times as a tooltip.</p>\n";
}

// What the picture does not show, said beside it.
std::string doubts_of(const Hang& hang) {
  std::string html;
  const auto add = [&](const std::string& text) {
    html += fmt::format("<p class=soft>{}</p>\n", html_text(text));
  };
  if (hang.incident.machines > 1) {
    add("Each host has its own clock. Their difference is not known: compare times of two hosts "
        "with how well their clocks agree.");
  }
  if (!hang.incident.missing.empty()) {
    add("No incident record of " + listed(hang.incident.missing, 8) +
        ": of workers there only those that expired are shown.");
  }
  if (hang.incident.omitted_scopes > 0) {
    add(fmt::format("{} more open scopes did not fit into the records.",
                    hang.incident.omitted_scopes));
  }
  if (hang.ended_omitted > 0) {
    add(fmt::format("{} more scopes that had ended did not fit into the records.",
                    hang.ended_omitted));
  }
  if (drawn_lanes(hang).size() > kMostLanesDrawn) {
    add(fmt::format("The first {} lanes are drawn. All workers are in the table.",
                    kMostLanesDrawn));
  }
  return html;
}

std::string groups_of(const Hang& hang) {
  if (hang.incident.groups.empty()) {
    return {};
  }
  std::string html = heading("Ranks at time of expiry") + "<ul>\n";
  for (const ScopeGroup& group : hang.incident.groups) {
    const std::string scope = group.scope.empty() ? "in no scope" : "in " + backquoted(group.scope);
    html += fmt::format("<li>{} <bdi>{}</bdi>{}</li>\n",
                        html_text(workers_text(group.workers), kFactCharacters),
                        html_text(scope, kNameCharacters),
                        group.longest_s ? html_text(" for " + seconds_text(*group.longest_s)) : "");
  }
  return html + "</ul>\n";
}

std::string html_of(const Hang::Output& output) {
  std::string html =
      heading(html_text(fmt::format("Evidence command on {}: {}", output.host, output.end)));
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

std::string workers_table(const Hang& hang) {
  std::string html = fmt::format(
      "<details><summary>{}</summary>\n<table><tr><th>Host</th><th>Rank</th><th>Pid</th>"
      "<th>Program</th><th>Innermost scope</th><th>What happened</th></tr>\n",
      counted(hang.lanes.size(), "worker"));
  for (const Lane& lane : hang.lanes) {
    const ScopeBar* innermost = nullptr;
    for (const ScopeBar& bar : lane.bars) {
      innermost = bar.kind != ScopeBar::Kind::kEnded ? &bar : innermost;
    }
    std::vector<std::string> events;
    for (const Mark& mark : lane.marks) {
      events.push_back(mark.text);
    }
    html +=
        fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                    html_text(lane.worker.host, kNameCharacters),
                    lane.worker.rank ? fmt::format("{}", *lane.worker.rank) : "",
                    lane.worker.pid ? fmt::format("{}", *lane.worker.pid) : "",
                    html_text(lane.worker.comm, kNameCharacters),
                    innermost == nullptr ? "" : html_text(innermost->scope, kNameCharacters),
                    html_text(joined(events, "; "), kNameCharacters));
  }
  return html + "</table></details>\n";
}

}  // namespace

std::string html_page(const Hang& hang, const std::string& logs) {
  std::string html(kHead);
  html += fmt::format("<title>{}</title>\n", html_text(hang.headline, kNameCharacters));
  html += kStyle;
  html += fmt::format("<h1>{}</h1>\n", html_text(hang.headline, kFactCharacters));
  if (const std::string cause = cause_of(hang); !cause.empty()) {
    html += fmt::format("<p><strong>{}</strong></p>\n", html_text(cause, kFactCharacters));
  }
  html += facts_of(hang);
  html += heading("Timeline");
  html += key_of_the_picture();
  html +=
      "<p class=\"soft narrow\">The picture is wider than this window and starts at its end: "
      "scroll it to the left for what was before.</p>\n";
  html += "<figure><div class=picture>" + svg_of(hang) + "</div></figure>\n";
  html += doubts_of(hang);
  html += groups_of(hang);
  if (!hang.python_stacks.is_empty()) {
    html += heading("Python stacks, the outermost call first");
    html += html_of(hang.python_stacks);
  }
  if (!hang.native_stacks.is_empty()) {
    html += heading("Native stacks of main threads, the outermost call first");
    html += html_of(hang.native_stacks);
  }
  if (!hang.child_stacks.empty()) {
    html += heading("Children of workers, the outermost call first");
  }
  for (const Hang::Children& children : hang.child_stacks) {
    html += fmt::format("<h3>Children of {}</h3>\n", html_text(worker_text(children.parent)));
    html += html_of(children.stacks, "stack");
  }
  for (const Hang::Output& output : hang.outputs) {
    html += html_of(output);
  }
  if (!hang.dumps.empty()) {
    html += heading("Dumps of flight recorders, for torchfrtrace");
    html += "<pre>";
    for (const Hang::Dump& dump : hang.dumps) {
      html += html_text(fmt::format("{}: {}", dump.host, dump.text)) + "\n";
    }
    html += "</pre>\n";
  }
  html += heading("Workers");
  html += workers_table(hang);
  html += fmt::format("<p class=soft>Made by timer_client report from {}.</p>\n</html>\n",
                      html_text(logs, kFactCharacters));
  return html;
}

std::string trace_events(const Hang& hang) {
  constexpr double kZeroUs = 3.6e9;
  const auto micros = [](double seconds) { return kZeroUs + seconds * 1e6; };
  std::map<std::string_view, int> hosts;
  JsonWriter json;
  json.begin_array("traceEvents");
  for (const Lane& lane : hang.lanes) {
    const auto host = hosts.try_emplace(lane.worker.host, static_cast<int>(hosts.size()) + 1);
    const int number = host.first->second;
    const auto begin = [&](std::string_view name, const char* phase) -> JsonWriter& {
      return json.begin_object()
          .field("name", name)
          .field("ph", phase)
          .field("pid", number)
          .field("tid", lane.worker.pid.value_or(0));
    };
    if (host.second) {
      begin("process_name", "M")
          .begin_object("args")
          .field("name", lane.worker.host)
          .end_object()
          .end_object();
    }
    begin("thread_name", "M")
        .begin_object("args")
        .field("name", worker_text({{}, lane.worker.pid, lane.worker.rank, lane.worker.comm}))
        .end_object()
        .end_object();
    for (const ScopeBar& bar : lane.bars) {
      begin(bar.scope, "X")
          .fixed("ts", micros(bar.begin_s), 3)
          .fixed("dur", (bar.end_s - bar.begin_s) * 1e6, 3)
          .begin_object("args")
          .field("expired", bar.kind == ScopeBar::Kind::kExpired)
          .field("paused", bar.is_paused);
      if (bar.timeout_s) {
        json.field("timeout_s", *bar.timeout_s);
      }
      json.end_object().end_object();
    }
    for (const Mark& mark : lane.marks) {
      begin(mark.text, "i")
          .field("s", "t")
          .field("cat", name_of(mark.kind))
          .fixed("ts", micros(mark.at_s), 3)
          .end_object();
    }
  }
  json.end_array().field("displayTimeUnit", "ms");
  return std::move(json).finish() + "\n";
}

}  // namespace filetimer::cli
