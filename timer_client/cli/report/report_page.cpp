// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/text.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// --- the picture: the lanes as an <svg> element, whose colours are in the style of report.html ---

// All lengths are in units of the image, which is as wide as this and is scaled by the browser.
constexpr double kWidth = 1200;
constexpr double kLabelWidth = 190;
constexpr double kRowHeight = 16;
constexpr double kLaneGap = 8;
constexpr double kBarInset = 1;
constexpr double kLeastBar = 1.5;
constexpr double kCharacterWidth = 6.6;
constexpr std::size_t kMostLanes = 72;
constexpr std::size_t kMostBars = 32;  // of one lane
constexpr std::size_t kLabelCharacters = 28;
constexpr std::size_t kLeastCharacters = 8;  // of a text that is cut
constexpr std::size_t kTitleCharacters = 400;
constexpr double kRoundingS = 2e-6;  // of two times in records

constexpr double kAxisHeight = 30;         // of the labels
constexpr double kLeastShareAfter = 0.22;  // of the width
constexpr double kTickWidth = 90;          // at least, from one label to the next
constexpr double kLabelRoom = 30;          // of half a label
constexpr double kTickLength = 6;

// The axis begins this many times the longest expired scope before the verdict.
constexpr double kPastShare = 1.5;
constexpr double kLeastPastS = 1;
constexpr double kMostPastS = 600;
constexpr double kMarginShare = 0.04;  // before the first event
constexpr double kAfterShare = 1.15;   // of the last event
constexpr double kLeastAxisS = 1e-3;

// The horizontal axis, with the first verdict at 0. The time after the verdict is mostly a
// thousandth of that before, and has most of the marks. It has a scale of its own therefore, and a
// share of the width.
class TimeAxis {
 public:
  // The axis has what is known, and no empty time before it.
  explicit TimeAxis(const Incident& incident) {
    double longest_s = 0;
    double first_s = 0;
    for (const Worker& worker : incident.workers) {
      for (const Scope& scope : worker.scopes) {
        first_s = std::min(first_s, scope.begin_s);
        longest_s = std::max(longest_s, scope.kind == Scope::Kind::kExpired ? -scope.begin_s : 0);
      }
      for (const Moment& moment : worker.moments) {
        first_s = std::min(first_s, moment.at_s);
        end_s_ = std::max(end_s_, moment.at_s);
      }
    }
    begin_s_ = std::max(-std::clamp(kPastShare * longest_s, kLeastPastS, kMostPastS),
                        std::min((1 + kMarginShare) * first_s, -kLeastAxisS));
    end_s_ = end_s_ > kLeastAxisS ? kAfterShare * end_s_ : -kMarginShare * begin_s_;
    zero_x_ =
        kWidth - std::max(end_s_ / (end_s_ - begin_s_), kLeastShareAfter) * (kWidth - kLabelWidth);
  }

  // Returns where a time is; one before or after the axis is at its end.
  [[nodiscard]] double x_of(double at_s) const {
    return at_s < 0 ? zero_x_ - std::min(at_s / begin_s_, 1.0) * (zero_x_ - kLabelWidth)
                    : zero_x_ + std::min(at_s / end_s_, 1.0) * (kWidth - zero_x_);
  }
  [[nodiscard]] bool has(const Scope& scope) const {
    return scope.end_s >= begin_s_ && scope.begin_s <= end_s_;
  }
  [[nodiscard]] bool has(const Moment& moment) const { return moment.at_s >= begin_s_; }

  // Returns the ground of the time after 0, the ticks with their labels, and the line at 0.
  [[nodiscard]] std::string svg(double height) const {
    const double top = kAxisHeight - kTickLength;
    return fmt::format("<rect x={:.1f} y={:.0f} width={:.1f} height={:.0f} class=after />\n",
                       zero_x_, top, kWidth - zero_x_, height - top) +
           ticks(begin_s_, 0, height) + ticks(0, end_s_, height) +
           fmt::format("<line x1={0:.1f} x2={0:.1f} y1={1:.0f} y2={2:.0f} class=zero />\n", zero_x_,
                       top, height);
  }

 private:
  // Returns the ticks between the two times, one of which is 0. Only the later time has that tick.
  [[nodiscard]] std::string ticks(double from_s, double to_s, double height) const {
    const double most = std::max((x_of(to_s) - x_of(from_s)) / kTickWidth, 1.0);
    const double span = to_s - from_s;
    double step = std::pow(10, std::floor(std::log10(span / most)));
    for (const double factor : {2.0, 2.5, 2.0}) {
      step *= span / step > most ? factor : 1;
    }
    std::string svg;
    for (double tick = std::ceil(from_s / step); tick * step <= to_s; ++tick) {
      if (tick != 0 || from_s == 0) {
        svg += label(tick * step, height);
      }
    }
    return svg;
  }

  [[nodiscard]] std::string label(double at_s, double height) const {
    const double x = x_of(at_s);
    return fmt::format(
        "<line x1={0:.1f} x2={0:.1f} y1={1:.0f} y2={2:.0f} class=tick />"
        "<text x={0:.1f} y={3:.0f} class=\"axis{5}\">{4}</text>\n",
        x, kAxisHeight - kTickLength, height, kAxisHeight - 2 * kTickLength,
        at_s > 0 && at_s < 1 ? fmt::format("{:+g} ms", at_s * 1e3) : fmt::format("{:+g} s", at_s),
        x < kLabelWidth + kLabelRoom ? " leftmost"
        : x > kWidth - kLabelRoom    ? " rightmost"
                                     : "");
  }

  double begin_s_ = 0;
  double end_s_ = 0;
  double zero_x_ = 0;
};

struct Bar {
  const Scope* scope = nullptr;
  std::size_t row = 0;  // bars that overlap are in different rows, the outermost scope first
};

// Returns the bars of the scopes on the axis. Of many scopes those that expired come first, then
// those that were open, then those that ended last; the others are counted in `left_out`.
std::vector<Bar> bars_of(const Worker& worker, const TimeAxis& axis, std::size_t& left_out) {
  std::vector<Bar> bars;
  for (const Scope& scope : worker.scopes) {
    if (axis.has(scope)) {
      bars.push_back({&scope});
    }
  }
  std::ranges::stable_sort(bars, std::greater<>{}, [](const Bar& bar) {
    return std::pair(bar.scope->kind, bar.scope->end_s);
  });
  left_out = bars.size() - std::min(bars.size(), kMostBars);
  bars.resize(bars.size() - left_out);
  std::ranges::stable_sort(
      bars, {}, [](const Bar& bar) { return std::pair(bar.scope->begin_s, -bar.scope->end_s); });
  std::vector<double> ends;  // of each row's last bar
  for (Bar& bar : bars) {
    const auto row = std::ranges::find_if(
        ends, [&](double end) { return end <= bar.scope->begin_s + kRoundingS; });
    bar.row = static_cast<std::size_t>(row - ends.begin());
    ends.resize(std::max(ends.size(), bar.row + 1));
    ends[bar.row] = bar.scope->end_s;
  }
  return bars;
}

// A lane is that of one worker, or of all of a group in one scope.
struct Lane {
  const Worker* worker = nullptr;  // the first one, whose bars and marks it has
  std::vector<WorkerName> workers{};
};

// Each worker has a lane where there are few. Else the worker at the top and the first to expire
// have one each, and each group has one for its others.
std::vector<Lane> lanes_of(const Incident& incident) {
  std::vector<Lane> lanes;
  std::map<std::size_t, std::size_t> lane_of_group;
  for (const Worker& worker : incident.workers) {
    const bool is_shared = incident.workers.size() > kMostLanes && worker.group &&
                           !worker.is_first && &worker != incident.workers.data();
    std::size_t at = lanes.size();
    if (is_shared) {
      at = lane_of_group.try_emplace(*worker.group, at).first->second;
    }
    if (at == lanes.size()) {
      lanes.push_back({.worker = &worker});
    }
    lanes[at].workers.push_back(worker.name);
  }
  return lanes;
}

// Returns "rank 2, odd one out, node07"; of several workers "ranks 0, 1, 3-7".
std::string label_of(const Lane& lane) {
  const Worker& worker = *lane.worker;
  if (lane.workers.size() > 1) {
    return workers_text(lane.workers);
  }
  return joined({worker.name.rank ? fmt::format("rank {}", *worker.name.rank)
                                  : worker_text({{}, worker.name.pid, {}, worker.name.comm}),
                 worker.is_odd ? "odd" : "", worker.is_first ? "first" : "", worker.name.host});
}

// The classes of bars, in the order of Scope::Kind.
constexpr std::string_view kBarClasses[] = {"ended", "open", "expired"};

// How a moment looks, in the order of Moment::Kind: its class, and the sign that the key of the
// page has for it, too.
constexpr std::pair<std::string_view, std::string_view> kLooks[] = {{"warning", "&#9650;"},
                                                                    {"verdict", "|"},
                                                                    {"signal", "&#8942;"},
                                                                    {"death", "&#10005;"},
                                                                    {"note", "&#9679;"}};
static_assert(std::size(kLooks) == static_cast<std::size_t>(Moment::Kind::kOther) + 1);

class Painter {
 public:
  explicit Painter(const Incident& incident)
      : incident_(incident), axis_(incident), has_odd_(incident.has_odd_group()) {}

  std::string svg() {
    const std::vector<Lane> lanes = lanes_of(incident_);
    const std::size_t drawn = std::min(lanes.size(), kMostLanes);
    std::for_each_n(lanes.begin(), drawn, [this](const Lane& lane) { add_lane(lane); });
    if (drawn < lanes.size()) {
      body_ += fmt::format("<text x=4 y={:.1f} class=lane>{}: see the table</text>\n", y_ + 12,
                           counted(lanes.size() - drawn, "more lane"));
      y_ += kRowHeight;
    }
    return fmt::format(
        "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=img aria-label=\"The scopes of each worker over "
        "time\">\n{}{}{}</svg>\n",
        kWidth, y_ + kLaneGap, grounds_, axis_.svg(y_ + kLaneGap), body_);
  }

 private:
  void add_lane(const Lane& lane) {
    const Worker& worker = *lane.worker;
    std::size_t left_out = 0;
    const std::vector<Bar> bars = bars_of(worker, axis_, left_out);
    std::size_t rows = 1;
    for (const Bar& bar : bars) {
      rows = std::max(rows, bar.row + 1);
    }
    const double height = static_cast<double>(rows) * kRowHeight;
    const std::string label = label_of(lane);
    const bool is_red = has_odd_ ? worker.is_odd : worker.is_first;
    const std::string title =
        lane.workers.size() == 1
            ? worker_text(worker.name)
            : fmt::format("{}: {}; bars and marks are those of {}", label,
                          counted(lane.workers.size(), "worker"), worker_text(worker.name));
    grounds_ +=
        fmt::format("<rect x={:.0f} y={:.1f} width={:.0f} height={:.1f} class=\"ground{}\" />\n",
                    kLabelWidth, y_, kWidth - kLabelWidth, height, is_red ? " hung" : "");
    body_ += fmt::format("<g{}><title>{}</title><text x=4 y={:.1f} class=lane>{}</text></g>\n",
                         is_red ? " class=odd" : "", html_text(title, kTitleCharacters), y_ + 12,
                         html_text(label, kLabelCharacters));
    for (const Bar& bar : bars) {
      add_bar(*bar.scope, y_ + static_cast<double>(bar.row) * kRowHeight + kBarInset);
    }
    for (const Moment& moment : worker.moments) {
      if (axis_.has(moment)) {
        const auto [name, sign] = kLooks[static_cast<std::size_t>(moment.kind)];
        body_ += fmt::format(
            "<text x={:.2f} y={:.1f} class=\"mark {}\"><title>{} ({:+.3f} s)</title>{}</text>\n",
            axis_.x_of(moment.at_s), y_ + height / 2 + 4, name,
            html_text(moment.text, kTitleCharacters), moment.at_s, sign);
      }
    }
    if (left_out > 0) {
      body_ += fmt::format(
          "<text x={:.0f} y={:.1f} class=rightmost><title>{} not drawn</title>+{}</text>\n",
          kLabelWidth - 4, y_ + 12, counted(left_out, "more scope"), left_out);
    }
    y_ += height + kLaneGap;
  }

  static std::string rect(double begin_x, double end_x, double top, std::string_view name) {
    return fmt::format("<rect x={:.2f} y={:.1f} width={:.2f} height={:.0f} rx=2{} />", begin_x, top,
                       std::max(end_x - begin_x, kLeastBar), kRowHeight - 2 * kBarInset, name);
  }

  void add_bar(const Scope& scope, double top) {
    const double begin_x = axis_.x_of(scope.begin_s);
    const double end_x = axis_.x_of(scope.end_s);
    const double known_x =
        scope.has_end ? end_x : std::clamp(axis_.x_of(scope.known_s), begin_x, end_x);
    const std::string times = times_text(scope);
    body_ +=
        fmt::format("<g class={}><title>{}: {}, from {:+.3f} s{}</title>",
                    kBarClasses[static_cast<std::size_t>(scope.kind)],
                    html_text(scope.name, kTitleCharacters), times, scope.begin_s,
                    !std::isfinite(scope.end_s) ? "; no record has its end"
                                                : fmt::format(" to {:+.3f} s{}", scope.end_s,
                                                              scope.has_end ? "" : " or before")) +
        rect(begin_x, known_x, top, "");
    if (known_x < end_x) {
      body_ += rect(known_x, end_x, top, " class=unknown");
    }
    const auto room =
        static_cast<std::size_t>(std::max(end_x - begin_x - 6, 0.0) / kCharacterWidth);
    const std::string text =
        scope.kind == Scope::Kind::kEnded ? scope.name : scope.name + " " + times;
    if (room >= std::min(text.size(), kLeastCharacters)) {
      body_ += fmt::format("<text x={:.2f} y={:.1f}>{}</text>", begin_x + 3, top + 11,
                           html_text(text, text.size() <= room ? room : room - kDots.size()));
    }
    body_ += "</g>\n";
  }

  const Incident& incident_;
  TimeAxis axis_;
  bool has_odd_;  // else the first to expire is the one to look at
  std::string grounds_;
  std::string body_;
  double y_ = kAxisHeight;
};

// --- the page ---

constexpr std::size_t kHeadlineCharacters = 1000;
constexpr std::size_t kNameCharacters = 200;
constexpr std::size_t kEventsCharacters = 600;  // of one worker in the table

std::string table_rows(const Incident& incident) {
  std::string html;
  for (const Worker& worker : incident.workers) {
    const auto events = mapped(worker.moments, [](const Moment& moment) {
      return fmt::format("{:+.3f} s {}", moment.at_s, moment.text);
    });
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        html_text(worker_text(worker.name), kNameCharacters),
        worker.group ? html_text(incident.groups[*worker.group].scope, kNameCharacters) : "",
        html_text(joined(events, "; "), kEventsCharacters));
  }
  return html;
}

// Returns the lines of a page with the characters of markup escaped.
std::string html_lines(std::string_view page) {
  std::string html;
  while (!page.empty()) {
    html += html_text(take_until(page, '\n')) + "\n";
  }
  return html;
}

}  // namespace

std::string html_page(const Incident& incident, const std::string& page) {
  const std::size_t end = std::min(page.find("\n\n"), page.size());
  std::string headline = page.substr(0, end);
  std::ranges::replace(headline, '\n', ' ');
  const std::map<std::string_view, std::string> texts{
      {"title", html_text(headline, kNameCharacters)},
      {"headline", html_text(headline, kHeadlineCharacters)},
      {"zero", incident.expired.empty() ? "record" : "verdict"},
      {"picture", Painter(incident).svg()},
      {"page", html_lines(std::string_view(page).substr(std::min(end + 2, page.size())))},
      {"rows", table_rows(incident)}};
  std::string html;
  std::string_view left = kReportHtml;
  for (std::size_t begin; (begin = left.find("{{")) != left.npos;) {
    const std::size_t name_end = left.find("}}", begin);
    html.append(left.substr(0, begin));
    html.append(texts.at(left.substr(begin + 2, name_end - begin - 2)));
    left.remove_prefix(name_end + 2);
  }
  return html.append(left);
}

}  // namespace filetimer::cli
