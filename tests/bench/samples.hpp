// Measured numbers and their statistics.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace filetimer::bench {

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  [[nodiscard]] std::size_t count() const { return values_.size(); }
  [[nodiscard]] bool empty() const { return values_.empty(); }

  // Returns a quantile by nearest rank, which is always a measured value; NaN without values.
  [[nodiscard]] double quantile(double q) const {
    if (values_.empty()) {
      return std::nan("");
    }
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    const double rank = std::ceil(q * static_cast<double>(sorted.size()));
    return sorted[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
  }
  [[nodiscard]] double median() const { return quantile(0.5); }
  [[nodiscard]] double min() const { return quantile(0); }
  [[nodiscard]] double max() const { return quantile(1); }

 private:
  std::vector<double> values_;
};

}  // namespace filetimer::bench
