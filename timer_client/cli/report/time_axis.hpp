// The horizontal axis of a picture, with the first verdict at 0, where there is one.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace filetimer::cli {

// Where the axis lies in the image.
struct AxisPlace {
  double left = 0;
  double right = 0;
};

// The time after the verdict is mostly a thousandth of that before, and has most of the marks. It
// has a share of the width of its own therefore, unless it needs none.
class TimeAxis {
 public:
  // 0 is between the two times.
  TimeAxis(double begin_s, double end_s, AxisPlace place);

  // Returns where a time is; one before or after the axis is at its end.
  [[nodiscard]] double x_of(double at_s) const;
  [[nodiscard]] bool has_two_scales() const { return has_two_scales_; }
  // Returns the ticks with their labels, and the line at 0 with the label `zero`, over `height`.
  [[nodiscard]] std::string svg(double height, std::string_view zero) const;

  static constexpr double kHeight = 30;  // of the labels

 private:
  [[nodiscard]] std::string ticks(double from_s, double to_s, double height) const;
  [[nodiscard]] std::string label(double at_s, std::string_view text, double height) const;

  double begin_s_;
  double end_s_;
  AxisPlace place_;
  double zero_x_ = 0;
  bool has_two_scales_ = false;
};

}  // namespace filetimer::cli
