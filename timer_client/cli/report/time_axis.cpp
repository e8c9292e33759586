// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/time_axis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace filetimer::cli {
namespace {

constexpr double kLeastShareAfter = 0.22;  // of the width
constexpr double kTickWidth = 90;          // at least, from one label to the next
constexpr double kLabelRoom = 30;          // of half a label
constexpr double kTickLength = 6;

}  // namespace

TimeAxis::TimeAxis(double begin_s, double end_s, AxisPlace place)
    : begin_s_(begin_s), end_s_(end_s), place_(place) {
  const double share = end_s_ / (end_s_ - begin_s_);
  has_two_scales_ = share < kLeastShareAfter;
  zero_x_ = place_.right - std::max(share, kLeastShareAfter) * (place_.right - place_.left);
}

double TimeAxis::x_of(double at_s) const {
  return at_s < 0 ? zero_x_ - std::min(at_s / begin_s_, 1.0) * (zero_x_ - place_.left)
                  : zero_x_ + std::min(at_s / end_s_, 1.0) * (place_.right - zero_x_);
}

std::string TimeAxis::svg(double height, std::string_view zero) const {
  std::string svg;
  if (has_two_scales_) {
    svg +=
        fmt::format("<rect x={:.1f} y={:.0f} width={:.1f} height={:.0f} class=after />\n", zero_x_,
                    kHeight - kTickLength, place_.right - zero_x_, height - kHeight + kTickLength);
  }
  svg += ticks(begin_s_, 0, height) + ticks(0, end_s_, height) + label(0, zero, height);
  return svg + fmt::format("<line x1={0:.1f} x2={0:.1f} y1={1:.0f} y2={2:.0f} class=zero />\n",
                           zero_x_, kHeight - kTickLength, height);
}

// The times between the two, one of which is 0 and has no tick.
std::string TimeAxis::ticks(double from_s, double to_s, double height) const {
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
      svg += label(
          at_s,
          at_s > 0 && at_s < 1 ? fmt::format("{:+g} ms", at_s * 1e3) : fmt::format("{:+g} s", at_s),
          height);
    }
  }
  return svg;
}

std::string TimeAxis::label(double at_s, std::string_view text, double height) const {
  const double x = x_of(at_s);
  return fmt::format(
      "<line x1={0:.1f} x2={0:.1f} y1={1:.0f} y2={2:.0f} class=tick />"
      "<text x={0:.1f} y={3:.0f} class=\"axis{5}\">{4}</text>\n",
      x, kHeight - kTickLength, height, kHeight - 2 * kTickLength, text,
      x < place_.left + kLabelRoom    ? " leftmost"
      : x > place_.right - kLabelRoom ? " rightmost"
                                      : "");
}

}  // namespace filetimer::cli
