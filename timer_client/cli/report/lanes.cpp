// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/lanes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "timer_client/cli/report/time_axis.hpp"
#include "timer_client/cli/text/words.hpp"

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

// All lengths are in units of the image, which is as wide as this and is scaled by the browser.
constexpr double kWidth = 1200;
constexpr double kLabelWidth = 190;  // the page's style has the share of it, too
constexpr double kRowHeight = 16;
constexpr double kLaneGap = 8;
constexpr double kHostHeight = 22;
constexpr double kBarInset = 1;
constexpr double kLeastBar = 1.5;
constexpr double kCharacterWidth = 6.6;
constexpr std::size_t kMostRows = 6;  // of one lane; bars in others are counted
constexpr std::size_t kLabelCharacters = 26;
constexpr std::size_t kLeastCharacters = 8;  // of a text that is cut
constexpr std::size_t kTitleCharacters = 400;
// Ended scopes that are shorter and closer to each other are joined: the more workers, the more of
// them, so that the page stays small.
constexpr double kFinest = 2;
constexpr double kCoarsest = 12;
constexpr double kCoarserPerWorker = 0.25;

constexpr std::string_view kPattern =
    "<defs><pattern id=paused width=6 height=6 patternUnits=userSpaceOnUse "
    "patternTransform=\"rotate(45)\"><line x1=0 y1=0 x2=0 y2=6 class=hatch /></pattern></defs>\n";

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

TimeAxis axis_of(const Picture& picture) {
  return {picture.begin_s, picture.end_s, {kLabelWidth, kWidth}};
}

// The bar of one scope, or of scopes that ended and are too short for bars of their own.
struct DrawnBar {
  const Bar* bar = nullptr;  // the longest
  std::size_t scopes = 1;
  std::size_t row = 0;
  double begin_s = 0;
  double end_s = 0;
};

struct Shapes {
  std::vector<DrawnBar> bars;
  std::size_t rows = 1;
  std::size_t left_out = 0;  // bars
};

// Returns which rows are drawn. If they are too many, those of expired scopes come first, then
// those of open ones.
std::vector<std::size_t> rows_of(const Lane& lane) {
  std::vector<Bar::Kind> kinds;
  for (const Bar& bar : lane.bars) {
    kinds.resize(std::max(kinds.size(), bar.row + 1), Bar::Kind::kEnded);
    kinds[bar.row] = std::max(kinds[bar.row], bar.kind);
  }
  std::vector<std::size_t> rows(kinds.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  std::ranges::stable_sort(rows, std::greater<>{}, [&](std::size_t row) { return kinds[row]; });
  rows.resize(std::min(rows.size(), kMostRows));
  std::ranges::sort(rows);
  return rows;
}

// Joins ended scopes that are shorter and closer than `resolution`.
Shapes shapes_of(const Lane& lane, const TimeAxis& axis, double resolution) {
  Shapes shapes;
  const std::vector<std::size_t> rows = rows_of(lane);
  shapes.rows = std::max<std::size_t>(rows.size(), 1);
  std::array<std::size_t, kMostRows> last{};  // bar of each row, plus 1
  const auto is_short = [&](double begin_s, double end_s) {
    return axis.x_of(end_s) - axis.x_of(begin_s) <= resolution;
  };
  for (const Bar& bar : lane.bars) {
    const auto at = std::ranges::lower_bound(rows, bar.row);
    if (at == rows.end() || *at != bar.row) {
      ++shapes.left_out;
      continue;
    }
    const auto row = static_cast<std::size_t>(at - rows.begin());
    if (DrawnBar* const before = last[row] > 0 ? &shapes.bars[last[row] - 1] : nullptr;
        before != nullptr && before->bar->kind == Bar::Kind::kEnded &&
        bar.kind == Bar::Kind::kEnded && is_short(bar.begin_s, bar.end_s) &&
        is_short(before->bar->begin_s, before->bar->end_s) &&
        is_short(before->end_s, bar.begin_s)) {
      const bool is_longer = bar.end_s - bar.begin_s > before->bar->end_s - before->bar->begin_s;
      before->bar = is_longer ? &bar : before->bar;
      before->end_s = std::max(before->end_s, bar.end_s);
      ++before->scopes;
      continue;
    }
    shapes.bars.push_back({&bar, 1, row, bar.begin_s, bar.end_s});
    last[row] = shapes.bars.size();
  }
  return shapes;
}

std::vector<WorkerName> workers_of(const DrawnLane& lanes) {
  std::vector<WorkerName> workers;
  for (const Lane* const lane : lanes) {
    workers.push_back(lane->worker->name);
  }
  return workers;
}

std::size_t hosts_in(const DrawnLane& lanes) {
  std::set<std::string_view> hosts;
  for (const Lane* const lane : lanes) {
    hosts.insert(lane->worker->name.host);
  }
  return hosts.size();
}

std::string hosts_of(const DrawnLane& lanes) {
  const std::size_t hosts = hosts_in(lanes);
  return hosts > 1 ? counted(hosts, "host") : lanes[0]->worker->name.host;
}

bool is_own_clock(const DrawnLane& lanes) {
  return std::ranges::any_of(lanes, [](const Lane* lane) { return lane->worker->is_own_clock; });
}

std::string short_name(const WorkerName& worker) {
  return worker.rank
             ? fmt::format("rank {}", *worker.rank)
             : joined({worker.pid ? fmt::format("pid {}", *worker.pid) : "", worker.comm}, " ");
}

// "open for 30.0 s of 30 s, expired", "took 50 ms"
std::string times_of(const Bar& bar) {
  if (bar.kind == Bar::Kind::kEnded) {
    return "took " + seconds_text(bar.end_s - bar.begin_s);
  }
  return joined(
      {fmt::format("open for {}{}", seconds_text(std::min(bar.known_s, bar.end_s) - bar.begin_s),
                   bar.timeout_s ? " of " + seconds_text(*bar.timeout_s) : ""),
       bar.timeout_s ? "" : "no deadline", bar.kind == Bar::Kind::kExpired ? "expired" : "",
       bar.is_paused ? "paused" : ""});
}

// Returns what fits of "forward 30.0 s of 30 s".
std::string text_in(const Bar& bar, std::size_t characters) {
  if (bar.kind == Bar::Kind::kEnded) {
    return bar.name;
  }
  const std::string elapsed =
      fmt::format("{} {}", bar.name, seconds_text(std::min(bar.known_s, bar.end_s) - bar.begin_s));
  const std::string whole =
      elapsed + (bar.timeout_s ? " of " + seconds_text(*bar.timeout_s) : ", no deadline");
  return whole.size() <= characters ? whole : elapsed.size() <= characters ? elapsed : bar.name;
}

std::string_view class_of(Bar::Kind kind) {
  return kind == Bar::Kind::kExpired ? "expired" : kind == Bar::Kind::kOpen ? "open" : "ended";
}

std::string_view class_of(Moment::Kind kind) {
  switch (kind) {
    case Moment::Kind::kWarning:
    case Moment::Kind::kDeferred:
      return "warning";
    case Moment::Kind::kVerdict:
      return "verdict";
    case Moment::Kind::kSignal:
      return "signal";
    case Moment::Kind::kDeath:
      return "death";
    default:
      return "note";
  }
}

class Drawing {
 public:
  explicit Drawing(const Picture& picture)
      : picture_(picture), axis_(axis_of(picture)), has_odd_(picture.incident->has_odd_group()) {}

  std::string svg() {
    std::vector<DrawnLane> lanes = drawn_lanes(picture_);
    lanes.resize(std::min(lanes.size(), kMostLanes));
    const double resolution = std::clamp(
        kCoarserPerWorker * static_cast<double>(picture_.lanes.size()), kFinest, kCoarsest);
    std::string host;
    for (const DrawnLane& lane : lanes) {
      const std::string of = hosts_of(lane);
      if (y_ == TimeAxis::kHeight || of != host) {
        add_host(of, lane);
        host = of;
      }
      add_lane(lane, shapes_of(*lane[0], axis_, resolution));
    }
    const double height = y_ + kLaneGap;
    return fmt::format(
        "<div class=picture><svg class=names viewBox=\"0 0 {0:.0f} {1:.0f}\" role=img "
        "aria-label=\"The names of hosts and workers\">\n{2}</svg>\n<svg class=scopes "
        "viewBox=\"{0:.0f} 0 {3:.0f} {1:.0f}\" role=img aria-label=\"The scopes of each worker "
        "over time\">\n{4}{5}{6}{7}</svg></div>\n",
        kLabelWidth, height, names_, kWidth - kLabelWidth, kPattern, grounds_,
        axis_.svg(height, zero_of(*picture_.incident)), body_);
  }

 private:
  void add_host(const std::string& host, const DrawnLane& first) {
    const bool is_one = hosts_in(first) == 1;
    names_ += fmt::format("<text x=4 y={:.1f} class=host>{}{}</text>\n", y_ + kHostHeight - 7,
                          html_text(host, kTitleCharacters),
                          !is_own_clock(first) ? ""
                          : is_one             ? " <tspan class=doubt>by its own clock</tspan>"
                                               : " <tspan class=doubt>by their own clocks</tspan>");
    y_ += kHostHeight;
  }

  // The line below the name.
  [[nodiscard]] std::string note_of(const DrawnLane& lanes) const {
    return lanes.size() > 1 ? counted(lanes.size(), "worker")
                            : joined({has_odd_ && lanes[0]->worker->is_odd ? "odd one out" : "",
                                      lanes[0]->worker->is_first ? "expired first" : ""});
  }

  void add_lane(const DrawnLane& lanes, const Shapes& shapes) {
    const Worker& worker = *lanes[0]->worker;
    const bool is_red = has_odd_ ? worker.is_odd : worker.is_first;
    const std::string note = note_of(lanes);
    const double height =
        static_cast<double>(std::max<std::size_t>(shapes.rows, note.empty() ? 1 : 2)) * kRowHeight;
    const std::string who =
        lanes.size() > 1 ? workers_text(workers_of(lanes)) : short_name(worker.name);
    const std::string more =
        lanes.size() > 1 ? fmt::format("bars and marks are those of {}", worker_text(worker.name))
                         : worker_text(worker.name);
    names_ += fmt::format("<g{}><title>{}</title><text x=4 y={:.1f} class=lane>{}</text>",
                          is_red ? " class=odd" : "",
                          html_text(fmt::format("{}: {}", who, more), kTitleCharacters), y_ + 12,
                          html_text(who, kLabelCharacters));
    if (!note.empty()) {
      names_ += fmt::format("<text x=4 y={:.1f} class=under>{}</text>", y_ + kRowHeight + 10, note);
    }
    names_ += "</g>\n";
    grounds_ +=
        fmt::format("<rect x={:.0f} y={:.1f} width={:.0f} height={:.1f} class=\"ground{}{}\" />\n",
                    kLabelWidth, y_, kWidth - kLabelWidth, height, is_red ? " hung" : "",
                    is_own_clock(lanes) ? " other" : "");
    body_ += has_odd_ && !is_red ? "<g class=calm>\n" : "<g>\n";
    const double top = y_ + (height - static_cast<double>(shapes.rows) * kRowHeight) / 2;
    for (const DrawnBar& bar : shapes.bars) {
      add_bar(bar, top);
    }
    body_ += "</g>\n";
    for (const Moment* const moment : lanes[0]->moments) {
      add_mark(*moment, height);
    }
    if (shapes.left_out > 0) {
      body_ += fmt::format("<text x={:.0f} y={:.1f} class=deeper>{} not drawn</text>\n", kWidth - 4,
                           y_ + height - 4, counted(shapes.left_out, "more scope"));
    }
    y_ += height + kLaneGap;
  }

  std::string rect(double begin_x, double end_x, double top, std::string_view more) const {
    return fmt::format("<rect x={:.2f} y={:.1f} width={:.2f} height={:.0f}{} />", begin_x, top,
                       std::max(end_x - begin_x, kLeastBar), kRowHeight - 2 * kBarInset, more);
  }

  void add_bar(const DrawnBar& drawn, double lane_top) {
    const Bar& bar = *drawn.bar;
    const double begin_x = axis_.x_of(drawn.begin_s);
    const double end_x = axis_.x_of(drawn.end_s);
    const double top = lane_top + static_cast<double>(drawn.row) * kRowHeight + kBarInset;
    const std::string what = drawn.scopes > 1
                                 ? fmt::format("{}, the longest {}", counted(drawn.scopes, "scope"),
                                               backquoted(bar.name))
                                 : bar.name;
    body_ += fmt::format("<g class={}><title>{}: {}, from {:+.3f} s{}</title>", class_of(bar.kind),
                         html_text(what, kTitleCharacters), times_of(bar), drawn.begin_s,
                         bar.has_end ? fmt::format(" to {:+.3f} s", drawn.end_s)
                         : drawn.end_s < picture_.end_s
                             ? fmt::format(" to {:+.3f} s or before", drawn.end_s)
                             : "; no record has its end");
    const double known_x =
        bar.has_end ? end_x : std::clamp(axis_.x_of(bar.known_s), begin_x, end_x);
    body_ += rect(begin_x, known_x, top, " rx=2");
    if (known_x < end_x) {
      body_ += rect(known_x, end_x, top, " class=unknown");
    }
    if (bar.is_paused) {
      body_ += rect(begin_x, known_x, top, " class=paused");
    }
    add_text(bar, begin_x, end_x, top);
    body_ += "</g>\n";
  }

  void add_text(const Bar& bar, double begin_x, double end_x, double top) {
    const auto room =
        static_cast<std::size_t>(std::max(end_x - begin_x - 6, 0.0) / kCharacterWidth);
    const std::string text = text_in(bar, room);
    if (room < std::min(text.size(), kLeastCharacters)) {
      return;
    }
    body_ += fmt::format("<text x={:.2f} y={:.1f}>{}</text>", begin_x + 3, top + 11,
                         html_text(text, text.size() <= room ? room : room - kDots.size()));
  }

  void add_mark(const Moment& moment, double height) {
    const double x = axis_.x_of(moment.at_s);
    body_ +=
        fmt::format("<g class=\"mark {}\"><title>{}: {} ({:+.3f} s)</title>", class_of(moment.kind),
                    name_of(moment.kind), html_text(moment.text, kTitleCharacters), moment.at_s);
    const double middle = y_ + height / 2;
    switch (moment.kind) {
      case Moment::Kind::kDeath:
        body_ += fmt::format(
            "<path d=\"M{0:.2f} {2:.1f}L{1:.2f} {3:.1f}M{1:.2f} {2:.1f}L{0:.2f} {3:.1f}\" />",
            x - 4, x + 4, middle - 4, middle + 4);
        break;
      case Moment::Kind::kWarning:
      case Moment::Kind::kDeferred:
        body_ += fmt::format("<path d=\"M{:.2f} {:.1f}l5 9h-10z\" />", x, middle - 5);
        break;
      case Moment::Kind::kVerdict:
      case Moment::Kind::kSignal:
        body_ += fmt::format("<path d=\"M{:.2f} {:.1f}v{:.1f}\" />", x, y_ - 2, height + 4);
        break;
      default:
        body_ += fmt::format("<circle cx={:.2f} cy={:.1f} r=3.5 />", x, middle);
        break;
    }
    body_ += "</g>\n";
  }

  const Picture& picture_;
  TimeAxis axis_;
  bool has_odd_;  // else the first to expire is the one to look at
  std::string names_;
  std::string grounds_;
  std::string body_;
  double y_ = TimeAxis::kHeight;
};

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

std::vector<DrawnLane> drawn_lanes(const Picture& picture) {
  std::vector<DrawnLane> drawn;
  std::map<std::size_t, std::size_t> lane_of_group;
  for (const Lane& lane : picture.lanes) {
    const Worker& worker = *lane.worker;
    const bool is_shared = picture.lanes.size() > kMostLanes && worker.group && !worker.is_first &&
                           &lane != picture.lanes.data();
    if (!is_shared || lane_of_group.try_emplace(*worker.group, drawn.size()).second) {
      drawn.push_back({&lane});
    } else {
      drawn[lane_of_group[*worker.group]].push_back(&lane);
    }
  }
  return drawn;
}

std::string svg_of(const Picture& picture) {
  return Drawing(picture).svg();
}

bool has_two_scales(const Picture& picture) {
  return axis_of(picture).has_two_scales();
}

}  // namespace filetimer::cli
