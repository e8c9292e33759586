// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/lanes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "timer_client/cli/report/html.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// In units of the image, which is as wide as this and is scaled by the browser.
constexpr double kWidth = 1200;
constexpr double kLabelWidth = 190;  // the page's style has the share of it, too
constexpr double kAxisHeight = 30;
constexpr double kRowHeight = 16;
constexpr double kLaneGap = 8;
constexpr double kHostHeight = 22;
constexpr double kAxisLabelRoom = 30;  // of the text on the left of its tick
constexpr double kBarInset = 1;
constexpr double kLeastBar = 1.5;
constexpr double kCharacterWidth = 6.6;
constexpr std::size_t kMostRows = 6;  // of one lane; bars further in are counted
constexpr std::size_t kLabelCharacters = 26;
constexpr std::size_t kTitleCharacters = 400;
constexpr std::size_t kFoldedGroup = 8;  // a group of more shares a lane, if lanes are many
constexpr int kMostTicks = 8;

class Drawing {
 public:
  explicit Drawing(const Hang& hang) : hang_(hang), has_odd_(hang.incident.has_odd_group()) {}

  std::string svg() {
    const std::vector<DrawnLane> lanes = drawn_lanes(hang_);
    std::string host;
    bool is_first = true;
    for (const DrawnLane& drawn : std::span(lanes).first(std::min(lanes.size(), kMostLanesDrawn))) {
      const std::string of = hosts_of(drawn);
      if (is_first || of != host) {
        add_host(of, drawn);
        host = of;
        is_first = false;
      }
      add_lane(drawn);
    }
    const double height = y_ + kLaneGap;
    std::string axis;
    add_axis(axis, height);
    return fmt::format(
        "<svg class=names viewBox=\"0 0 {0:.0f} {1:.0f}\" role=img aria-label=\"The names of hosts "
        "and workers\">\n{2}</svg>\n<svg class=scopes viewBox=\"{0:.0f} 0 {3:.0f} {1:.0f}\" "
        "role=img aria-label=\"The scopes of each worker over time\">\n<defs><pattern id=paused "
        "width=6 height=6 patternUnits=userSpaceOnUse patternTransform=\"rotate(45)\"><line x1=0 "
        "y1=0 x2=0 y2=6 class=hatch /></pattern></defs>\n{4}{5}</svg>\n",
        kLabelWidth, height, names_, kWidth - kLabelWidth, axis, body_);
  }

 private:
  [[nodiscard]] double x_of(double at_s) const {
    const double share = (at_s - hang_.begin_s) / (hang_.end_s - hang_.begin_s);
    return kLabelWidth + std::clamp(share, 0.0, 1.0) * (kWidth - kLabelWidth);
  }

  void add_axis(std::string& axis, double height) const {
    const double span = hang_.end_s - hang_.begin_s;
    double step = std::pow(10, std::floor(std::log10(span / kMostTicks)));
    for (const double factor : {2.0, 2.5, 2.0}) {
      step *= span / step > kMostTicks ? factor : 1;
    }
    for (double tick = std::ceil(hang_.begin_s / step); tick * step <= hang_.end_s; ++tick) {
      const double at_s = tick * step;
      axis += fmt::format(
          "<line x1={0:.1f} x2={0:.1f} y1={1:.0f} y2={2:.0f} class=tick />"
          "<text x={0:.1f} y={3:.0f} class=\"axis{5}\">{4}</text>\n",
          x_of(at_s), kAxisHeight - 6, height, kAxisHeight - 12,
          tick == 0 ? "verdict" : fmt::format("{:+g} s", at_s),
          x_of(at_s) < kLabelWidth + kAxisLabelRoom ? " leftmost" : "");
    }
    axis += fmt::format("<line x1={0:.1f} x2={0:.1f} y1={1:.0f} y2={2:.0f} class=zero />\n",
                        x_of(0), kAxisHeight - 6, height);
  }

  static std::string hosts_of(const DrawnLane& drawn) {
    std::set<std::string_view> hosts;
    for (const WorkerName& worker : drawn.workers) {
      hosts.insert(worker.host);
    }
    return hosts.size() > 1 ? counted(hosts.size(), "host") : drawn.lane->worker.host;
  }

  void add_host(const std::string& host, const DrawnLane& first) {
    const bool is_own_clock = first.workers.size() == 1 && first.lane->is_own_clock;
    names_ += fmt::format("<text x=4 y={:.1f} class=host>{}{}</text>\n", y_ + kHostHeight - 7,
                          html_text(host, kTitleCharacters),
                          is_own_clock ? " <tspan class=doubt>by its own clock</tspan>" : "");
    y_ += kHostHeight;
  }

  void add_lane(const DrawnLane& drawn) {
    const Lane& lane = *drawn.lane;
    std::size_t rows = 1;
    std::size_t deeper = 0;
    for (const ScopeBar& bar : lane.bars) {
      rows = std::max(rows, std::min(bar.row + 1, kMostRows));
      deeper += bar.row >= kMostRows ? 1 : 0;
    }
    const double height = static_cast<double>(rows) * kRowHeight;
    const std::string who =
        drawn.workers.size() > 1 ? workers_text(drawn.workers) : short_name(lane.worker);
    const std::string more =
        drawn.workers.size() > 1
            ? fmt::format("{}; drawn: {}", counted(drawn.workers.size(), "worker"),
                          worker_text(lane.worker))
            : worker_text(lane.worker);
    names_ += fmt::format("<g{}><title>{}</title><text x=4 y={:.1f} class=lane>{}</text></g>\n",
                          (has_odd_ ? lane.is_odd : lane.is_first) ? " class=odd" : "",
                          html_text(fmt::format("{}: {}", who, more), kTitleCharacters), y_ + 12,
                          html_text(who, kLabelCharacters));
    body_ += fmt::format(
        "<rect x={:.0f} y={:.1f} width={:.0f} height={:.1f} class=\"ground{}\" />\n", kLabelWidth,
        y_, kWidth - kLabelWidth, height, lane.is_own_clock ? " other" : "");
    for (const ScopeBar& bar : lane.bars) {
      if (bar.row < kMostRows) {
        add_bar(bar);
      }
    }
    for (const Mark& mark : lane.marks) {
      add_mark(mark, height);
    }
    if (deeper > 0) {
      body_ += fmt::format("<text x={:.0f} y={:.1f} class=deeper>{} further in</text>\n",
                           kWidth - 4, y_ + height - 4, counted(deeper, "scope"));
    }
    y_ += height + kLaneGap;
  }

  void add_bar(const ScopeBar& bar) {
    const double begin = x_of(bar.begin_s);
    const double width = std::max(x_of(bar.end_s) - begin, kLeastBar);
    const double top = y_ + static_cast<double>(bar.row) * kRowHeight + kBarInset;
    const bool is_open = bar.kind != ScopeBar::Kind::kEnded;
    const std::string_view kind = bar.kind == ScopeBar::Kind::kExpired ? "expired"
                                  : is_open                            ? "open"
                                                                       : "ended";
    const std::string times = joined(
        {fmt::format("{} {}", is_open ? "open for" : "took", seconds_text(bar.end_s - bar.begin_s)),
         bar.timeout_s ? "of " + seconds_text(*bar.timeout_s) : (is_open ? "no deadline" : ""),
         bar.kind == ScopeBar::Kind::kExpired ? "expired" : "", bar.is_paused ? "paused" : ""});
    body_ += fmt::format(
        "<g class={}><title>{}: {}, from {:+.3f} s to {:+.3f} s</title>"
        "<rect x={:.2f} y={:.1f} width={:.2f} height={:.0f} rx=2 />",
        kind, html_text(bar.scope, kTitleCharacters), times, bar.begin_s, bar.end_s, begin, top,
        width, kRowHeight - 2 * kBarInset);
    if (bar.is_paused) {
      body_ += fmt::format("<rect x={:.2f} y={:.1f} width={:.2f} height={:.0f} class=paused />",
                           begin, top, width, kRowHeight - 2 * kBarInset);
    }
    const auto room = static_cast<std::size_t>(std::max(width - 6, 0.0) / kCharacterWidth);
    if (room >= 3) {
      const std::string text =
          is_open ? bar.scope + " " + seconds_text(bar.end_s - bar.begin_s) : bar.scope;
      const std::string& shown = room >= text.size() ? text : bar.scope;
      body_ += fmt::format("<text x={:.2f} y={:.1f}>{}</text>", begin + 3, top + 11,
                           html_text(shown, room));
    }
    body_ += "</g>\n";
  }

  void add_mark(const Mark& mark, double height) {
    const double x = x_of(mark.at_s);
    body_ +=
        fmt::format("<g class=\"mark {}\"><title>{}: {} ({:+.3f} s)</title>", class_of(mark.kind),
                    name_of(mark.kind), html_text(mark.text, kTitleCharacters), mark.at_s);
    const double middle = y_ + height / 2;
    if (mark.kind == Mark::Kind::kDeath) {
      body_ += fmt::format(
          "<path d=\"M{0:.2f} {2:.1f}L{1:.2f} {3:.1f}M{1:.2f} {2:.1f}L{0:.2f} {3:.1f}\" />", x - 4,
          x + 4, middle - 4, middle + 4);
    } else if (mark.kind == Mark::Kind::kWarning || mark.kind == Mark::Kind::kDeferred) {
      body_ += fmt::format("<path d=\"M{:.2f} {:.1f}l5 9h-10z\" />", x, middle - 5);
    } else if (mark.kind == Mark::Kind::kEvidence || mark.kind == Mark::Kind::kReleased ||
               mark.kind == Mark::Kind::kOther) {
      body_ += fmt::format("<circle cx={:.2f} cy={:.1f} r=3 />", x, middle);
    } else {
      body_ += fmt::format("<path d=\"M{:.2f} {:.1f}v{:.1f}\" />", x, y_ - 2, height + 4);
    }
    body_ += "</g>\n";
  }

  static std::string_view class_of(Mark::Kind kind) {
    switch (kind) {
      case Mark::Kind::kWarning:
      case Mark::Kind::kDeferred:
        return "warning";
      case Mark::Kind::kVerdict:
        return "verdict";
      case Mark::Kind::kSignal:
        return "signal";
      case Mark::Kind::kDeath:
        return "death";
      default:
        return "note";
    }
  }

  static std::string short_name(const WorkerName& worker) {
    return worker.rank
               ? fmt::format("rank {}", *worker.rank)
               : joined({worker.pid ? fmt::format("pid {}", *worker.pid) : "", worker.comm}, " ");
  }

  const Hang& hang_;
  bool has_odd_;  // else the first to expire is the one to look at
  std::string names_;
  std::string body_;
  double y_ = kAxisHeight;
};

}  // namespace

std::vector<DrawnLane> drawn_lanes(const Hang& hang) {
  std::vector<DrawnLane> drawn;
  if (hang.lanes.size() <= kMostLanes) {
    for (const Lane& lane : hang.lanes) {
      drawn.push_back({&lane, {lane.worker}});
    }
    return drawn;
  }
  using Key = std::pair<std::string_view, std::int64_t>;
  std::map<Key, const ScopeGroup*> group_of;
  for (const ScopeGroup& group : hang.incident.groups) {
    for (const WorkerName& worker : group.workers) {
      group_of.emplace(Key{worker.host, worker.pid.value_or(0)}, &group);
    }
  }
  std::map<const ScopeGroup*, std::size_t> folded;
  for (const Lane& lane : hang.lanes) {
    const auto at = group_of.find(Key{lane.worker.host, lane.worker.pid.value_or(0)});
    const ScopeGroup* const group = at == group_of.end() ? nullptr : at->second;
    if (lane.is_first || lane.is_odd || group == nullptr || group->workers.size() <= kFoldedGroup) {
      drawn.push_back({&lane, {lane.worker}});
      continue;
    }
    const auto [place, is_new] = folded.try_emplace(group, drawn.size());
    if (is_new) {
      drawn.push_back({&lane, {}});
    }
    drawn[place->second].workers.push_back(lane.worker);
  }
  return drawn;
}

std::string svg_of(const Hang& hang) {
  return Drawing(hang).svg();
}

}  // namespace filetimer::cli
