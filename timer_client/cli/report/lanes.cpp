// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "timer_client/cli/report/report_page.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// All lengths are in units of the image, which is as wide as this and is scaled by the browser.
// report.html has the two widths, too.
constexpr double kWidth = 1200;
constexpr double kLabelWidth = 190;
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

constexpr double kAxisHeight = 30;         // of the labels
constexpr double kLeastShareAfter = 0.22;  // of the width
constexpr double kTickWidth = 90;          // at least, from one label to the next
constexpr double kLabelRoom = 30;          // of half a label
constexpr double kTickLength = 6;

// The horizontal axis, with the first verdict at 0, where there is one. The time after the verdict
// is mostly a thousandth of that before, and has most of the marks. It has a share of the width of
// its own therefore, unless it needs none.
class TimeAxis {
 public:
  // 0 is between the two times.
  TimeAxis(double begin_s, double end_s) : begin_s_(begin_s), end_s_(end_s) {
    const double share = end_s_ / (end_s_ - begin_s_);
    has_two_scales_ = share < kLeastShareAfter;
    zero_x_ = kWidth - std::max(share, kLeastShareAfter) * (kWidth - kLabelWidth);
  }

  // Returns where a time is; one before or after the axis is at its end.
  [[nodiscard]] double x_of(double at_s) const {
    return at_s < 0 ? zero_x_ - std::min(at_s / begin_s_, 1.0) * (zero_x_ - kLabelWidth)
                    : zero_x_ + std::min(at_s / end_s_, 1.0) * (kWidth - zero_x_);
  }
  [[nodiscard]] bool has_two_scales() const { return has_two_scales_; }

  // Returns the ticks with their labels, and the line at 0 with the label `zero`, over `height`.
  [[nodiscard]] std::string svg(double height, std::string_view zero) const {
    std::string svg;
    if (has_two_scales_) {
      svg += fmt::format("<rect x={:.1f} y={:.0f} width={:.1f} height={:.0f} class=after />\n",
                         zero_x_, kAxisHeight - kTickLength, kWidth - zero_x_,
                         height - kAxisHeight + kTickLength);
    }
    svg += ticks(begin_s_, 0, height) + ticks(0, end_s_, height) + label(0, zero, height);
    return svg + fmt::format("<line x1={0:.1f} x2={0:.1f} y1={1:.0f} y2={2:.0f} class=zero />\n",
                             zero_x_, kAxisHeight - kTickLength, height);
  }

 private:
  // Returns the ticks between the two times, one of which is 0 and has no tick.
  [[nodiscard]] std::string ticks(double from_s, double to_s, double height) const {
    const double most = std::max((x_of(to_s) - x_of(from_s)) / kTickWidth, 1.0);
    const double span = to_s - from_s;
    double step = std::pow(10, std::floor(std::log10(span / most)));
    for (const double factor : {2.0, 2.5, 2.0}) {
      step *= span / step > most ? factor : 1;
    }
    std::string svg;
    for (double tick = std::ceil(from_s / step); tick * step <= to_s; ++tick) {
      const double at_s = tick * step;
      if (tick != 0) {
        svg += label(at_s,
                     at_s > 0 && at_s < 1 ? fmt::format("{:+g} ms", at_s * 1e3)
                                          : fmt::format("{:+g} s", at_s),
                     height);
      }
    }
    return svg;
  }

  [[nodiscard]] std::string label(double at_s, std::string_view text, double height) const {
    const double x = x_of(at_s);
    return fmt::format(
        "<line x1={0:.1f} x2={0:.1f} y1={1:.0f} y2={2:.0f} class=tick />"
        "<text x={0:.1f} y={3:.0f} class=\"axis{5}\">{4}</text>\n",
        x, kAxisHeight - kTickLength, height, kAxisHeight - 2 * kTickLength, text,
        x < kLabelWidth + kLabelRoom ? " leftmost"
        : x > kWidth - kLabelRoom    ? " rightmost"
                                     : "");
  }

  double begin_s_;
  double end_s_;
  double zero_x_ = 0;
  bool has_two_scales_ = false;
};

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

// A lane that is drawn: that of one worker, or of all of a group in one scope.
struct DrawnLane {
  const Lane* lane = nullptr;  // the first one, whose bars and marks it has
  std::vector<WorkerName> workers{};
  std::set<std::string_view> hosts{};
  bool is_own_clock = false;  // at least one of the workers is
};

std::vector<DrawnLane> drawn_lanes(const Picture& picture) {
  std::vector<DrawnLane> drawn;
  std::map<std::size_t, std::size_t> lane_of_group;
  for (const Lane& lane : picture.lanes) {
    const Worker& worker = *lane.worker;
    const bool is_shared = picture.lanes.size() > kMostLanes && worker.group && !worker.is_first &&
                           &lane != picture.lanes.data();
    std::size_t at = drawn.size();
    if (is_shared) {
      at = lane_of_group.try_emplace(*worker.group, at).first->second;
    }
    if (at == drawn.size()) {
      drawn.push_back({.lane = &lane});
    }
    drawn[at].workers.push_back(worker.name);
    drawn[at].hosts.insert(worker.name.host);
    drawn[at].is_own_clock = drawn[at].is_own_clock || worker.is_own_clock;
  }
  return drawn;
}

std::string short_name(const WorkerName& worker) {
  return worker.rank
             ? fmt::format("rank {}", *worker.rank)
             : joined({worker.pid ? fmt::format("pid {}", *worker.pid) : "", worker.comm}, " ");
}

// Returns "open for 30.0 s of 30 s, expired", "took 50 ms".
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
  constexpr std::array<std::string_view, 9> kClasses{
      "warning", "warning", "verdict", "note", "signal", "death", "note", "note", "note"};
  return kClasses[static_cast<std::size_t>(kind)];
}

class Painter {
 public:
  explicit Painter(const Picture& picture)
      : picture_(picture),
        axis_(picture.begin_s, picture.end_s),
        has_odd_(picture.incident->has_odd_group()) {}

  Drawing drawing() {
    std::vector<DrawnLane> lanes = drawn_lanes(picture_);
    const bool has_all_lanes = lanes.size() <= kMostLanes;
    lanes.resize(std::min(lanes.size(), kMostLanes));
    const double resolution = std::clamp(
        kCoarserPerWorker * static_cast<double>(picture_.lanes.size()), kFinest, kCoarsest);
    std::string host;
    for (const DrawnLane& lane : lanes) {
      const std::string of =
          lane.hosts.size() > 1 ? counted(lane.hosts.size(), "host") : lane.workers[0].host;
      if (y_ == kAxisHeight || of != host) {
        add_host(of, lane);
        host = of;
      }
      add_lane(lane, shapes_of(*lane.lane, axis_, resolution));
    }
    const double height = y_ + kLaneGap;
    const std::string axis = axis_.svg(height, zero_of(*picture_.incident));
    return {std::move(names_), grounds_ + axis + body_, height, axis_.has_two_scales(),
            has_all_lanes};
  }

 private:
  void add_host(const std::string& host, const DrawnLane& first) {
    names_ +=
        fmt::format("<text x=4 y={:.1f} class=host>{}{}</text>\n", y_ + kHostHeight - 7,
                    html_text(host, kTitleCharacters),
                    !first.is_own_clock       ? ""
                    : first.hosts.size() == 1 ? " <tspan class=doubt>by its own clock</tspan>"
                                              : " <tspan class=doubt>by their own clocks</tspan>");
    y_ += kHostHeight;
  }

  void add_lane(const DrawnLane& drawn, const Shapes& shapes) {
    const Worker& worker = *drawn.lane->worker;
    const std::size_t workers = drawn.workers.size();
    const bool is_red = has_odd_ ? worker.is_odd : worker.is_first;
    const std::string note = workers > 1 ? counted(workers, "worker")
                                         : joined({has_odd_ && worker.is_odd ? "odd one out" : "",
                                                   worker.is_first ? "expired first" : ""});
    const double height =
        static_cast<double>(std::max<std::size_t>(shapes.rows, note.empty() ? 1 : 2)) * kRowHeight;
    const std::string names = workers > 1 ? workers_text(drawn.workers) : short_name(worker.name);
    const std::string more =
        workers > 1 ? fmt::format("bars and marks are those of {}", worker_text(worker.name))
                    : worker_text(worker.name);
    names_ += fmt::format("<g{}><title>{}</title><text x=4 y={:.1f} class=lane>{}</text>",
                          is_red ? " class=odd" : "",
                          html_text(fmt::format("{}: {}", names, more), kTitleCharacters), y_ + 12,
                          html_text(names, kLabelCharacters));
    if (!note.empty()) {
      names_ += fmt::format("<text x=4 y={:.1f} class=under>{}</text>", y_ + kRowHeight + 10, note);
    }
    names_ += "</g>\n";
    grounds_ +=
        fmt::format("<rect x={:.0f} y={:.1f} width={:.0f} height={:.1f} class=\"ground{}{}\" />\n",
                    kLabelWidth, y_, kWidth - kLabelWidth, height, is_red ? " hung" : "",
                    drawn.is_own_clock ? " other" : "");
    body_ += has_odd_ && !is_red ? "<g class=calm>\n" : "<g>\n";
    const double top = y_ + (height - static_cast<double>(shapes.rows) * kRowHeight) / 2;
    for (const DrawnBar& bar : shapes.bars) {
      add_bar(bar, top);
    }
    body_ += "</g>\n";
    for (const Moment* const moment : drawn.lane->moments) {
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
  double y_ = kAxisHeight;
};

}  // namespace

Drawing drawing_of(const Picture& picture) {
  return Painter(picture).drawing();
}

}  // namespace filetimer::cli
