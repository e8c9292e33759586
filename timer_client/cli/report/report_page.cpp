// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text.hpp"
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

std::string heading(std::string_view title) {
  return fmt::format("<h2>{}</h2>\n", title);
}

std::string cause_paragraph(const Incident& incident) {
  std::string cause;
  if (incident.has_odd_group()) {
    const ScopeGroup& most = incident.largest_group();
    cause = joined({odd_sentence(incident), first_waited_sentence(incident),
                    fmt::format("{} were {}.", counted(most.workers.size(), "other worker"),
                                in_scope(most.scope))},
                   " ");
  } else if (!incident.expired.empty()) {
    cause = fmt::format("The first to expire: {}.", worker_text(incident.expired[0].worker));
  }
  return cause.empty()
             ? ""
             : fmt::format("<p><strong>{}</strong></p>\n", html_text(cause, kFactCharacters));
}

std::string facts_of(const ExpirySummary& cause) {
  std::string html;
  for (const auto& [label, value] : cause.facts) {
    html += fmt::format("<dt>{}</dt><dd><bdi>{}</bdi></dd>\n", html_text(label),
                        html_text(value, kFactCharacters));
  }
  return html;
}

// Returns sentences about what the picture does not show.
std::string doubts_of(const Incident& incident, const Drawing& drawing) {
  std::string html;
  const auto add = [&](const std::string& text) {
    html += fmt::format("<p class=soft>{}</p>\n", html_text(text));
  };
  if (incident.machines > 1) {
    add("Each host has its own clock. Their difference is not known: compare times of two hosts "
        "with how well their clocks agree.");
  }
  if (!incident.missing.empty() && !incident.expired.empty()) {
    add("No incident record of " + listed(incident.missing, 8) +
        ": of workers there only those that expired are shown.");
  }
  if (incident.omitted_scopes > 0) {
    add(counted(incident.omitted_scopes, "more open scope") + " did not fit into the records.");
  }
  if (incident.ended_omitted > 0) {
    add(counted(incident.ended_omitted, "more ended scope") + " did not fit into the records.");
  }
  if (!drawing.has_all_lanes) {
    add(fmt::format("The first {} lanes are drawn. All workers are in the table.", kMostLanes));
  }
  return html;
}

std::string groups_of(const Incident& incident) {
  if (incident.groups.empty()) {
    return {};
  }
  std::string html = heading("Ranks at time of expiry") + "<ul>\n";
  const std::vector<const ScopeGroup*> groups = incident.first_groups(kGroupsShown);
  const std::size_t left_out = incident.groups.size() - groups.size();
  for (const ScopeGroup* const group : groups) {
    if (left_out > 0 && group == groups.back()) {
      html += fmt::format("<li>and in {} other places, the most of them:</li>\n", left_out + 1);
    }
    const bool is_odd = group == incident.groups.data() && incident.has_odd_group();
    html += fmt::format(
        "<li>{} <bdi>{}</bdi>{}{}</li>\n", html_text(workers_text(group->workers), kFactCharacters),
        html_text(in_scope(group->scope), kNameCharacters), html_text(time_in_scope(*group)),
        is_odd ? ", <strong>" + odd_text(group->workers.size()) + "</strong>" : "");
  }
  return html + "</ul>\n";
}

// Returns "+0.063 s".
std::string time_of(const Moment& moment) {
  return fmt::format("{:+.3f} s", moment.at_s);
}

std::vector<WorkerName> workers_to_look_at(const Incident& incident) {
  const bool has_odd = incident.has_odd_group();
  std::vector<WorkerName> workers;
  for (const Worker& worker : incident.workers) {
    if (has_odd ? worker.is_odd : worker.is_first) {
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
        "</th><th>{}</th><th>Event</th></tr>\n",
        html_text(worker_text(lane.worker->name), kNameCharacters), zero_of(*picture.incident),
        html_text(zone_text(picture.incident->zero_us)));
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
      std::vector<std::string> calls = native_frames_of(child);
      if (const std::string doing = text_at(child, "doing"); calls.empty() && !doing.empty()) {
        calls.push_back(doing);
      }
      if (!calls.empty()) {
        of_children.add(worker_in(child), outermost_first(std::move(calls)));
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

std::string table_rows(const Picture& picture) {
  std::string html;
  for (const Lane& lane : picture.lanes) {
    const WorkerName& worker = lane.worker->name;
    std::vector<std::string> events;
    for (const Moment* const moment : lane.moments) {
      events.push_back(fmt::format("{} {}", time_of(*moment), moment->text));
    }
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        html_text(worker.host, kNameCharacters), number_text(worker.rank), number_text(worker.pid),
        html_text(worker.comm, kNameCharacters),
        lane.worker->group
            ? html_text(picture.incident->groups[*lane.worker->group].scope, kNameCharacters)
            : "",
        html_text(joined(events, "; "), kEventsCharacters));
  }
  return html;
}

// Returns report.html with these texts in place of its "{{name}}".
std::string filled_page(const std::map<std::string_view, std::string>& texts) {
  std::string html;
  std::string_view left = kReportHtml;
  for (std::size_t begin; (begin = left.find("{{")) != left.npos;) {
    const std::size_t end = left.find("}}", begin);
    html.append(left.substr(0, begin));
    html.append(texts.at(left.substr(begin + 2, end - begin - 2)));
    left.remove_prefix(end + 2);
  }
  return html.append(left);
}

}  // namespace

std::string html_page(const Picture& picture, const ExpirySummary& cause, const std::string& logs) {
  const Incident& incident = *picture.incident;
  const Drawing drawing = drawing_of(picture);
  std::string outputs;
  for (const CommandOutput& output : incident.outputs) {
    outputs += html_of(output);
  }
  return filled_page(
      {{"title", html_text(cause.headline, kNameCharacters)},
       {"headline", html_text(cause.headline, kFactCharacters)},
       {"cause", cause_paragraph(incident)},
       {"facts", facts_of(cause)},
       {"zero", std::string(zero_of(incident))},
       {"scales", drawing.has_two_scales
                      ? " What followed it, on the darker ground, has a scale of its own."
                      : ""},
       {"height", fmt::format("{:.0f}", drawing.height)},
       {"names", drawing.names},
       {"scopes", drawing.scopes},
       {"doubts", doubts_of(incident, drawing)},
       {"events", events_of(picture)},
       {"groups", groups_of(incident)},
       {"stacks", stacks_of(incident)},
       {"outputs", outputs},
       {"open", picture.lanes.size() <= kTableOpen ? " open" : ""},
       {"workers", counted(picture.lanes.size(), "worker")},
       {"rows", table_rows(picture)},
       {"logs", html_text(logs, kFactCharacters)}});
}

}  // namespace filetimer::cli
