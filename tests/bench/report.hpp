// The table of results: measurement, base, target. A missed target is a "no" in the table. Wrong
// behaviour (a kill before its deadline, a lost line) is a fault and makes the program fail.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace filetimer::bench {

// Measured numbers and their statistics.
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

 private:
  std::vector<double> values_;
};

struct Target {
  std::optional<double> limit{};  // none: there is no target
  bool is_of_ratio = false;       // else of the value
  bool is_least = false;          // else the most

  static Target value_at_most(double limit) { return {limit}; }
  static Target ratio_at_most(double limit) { return {limit, true}; }
  static Target ratio_at_least(double limit) { return {limit, true, true}; }
};

struct Row {
  std::string measure;
  std::string unit{};
  std::optional<double> value{};  // none: not measured, for the reason in `note`
  std::optional<double> base{};
  std::optional<double> ratio{};  // not set: value / base
  Target target{};
  std::string note{};
};

// Returns the row of what is to be faster than its base, at least by that factor.
inline Row times_faster(std::string measure, std::string unit, double value, double base,
                        double factor) {
  return {.measure = std::move(measure),
          .unit = std::move(unit),
          .value = value,
          .base = base,
          .ratio = base / value,
          .target = Target::ratio_at_least(factor)};
}

class Report {
 public:
  // Begins a section. `base` names the base of its rows.
  void section(const std::string& title, const std::string& base);
  void add(Row row);
  // Adds what was measured, beside its base if it has one.
  void add(std::string measure, std::string unit, double value, std::optional<double> base = {},
           const Target& target = {}) {
    add(Row{.measure = std::move(measure),
            .unit = std::move(unit),
            .value = value,
            .base = base,
            .target = target});
  }
  // Reports wrong behaviour. The first few texts are kept, all are counted.
  void fault(const std::string& what);

  void print_table(std::FILE* out) const;
  [[nodiscard]] bool has_faults() const { return fault_count_ > 0; }

 private:
  struct Section {
    std::string title;
    std::string base;
    std::vector<Row> rows;
  };
  std::vector<Section> sections_;
  std::vector<std::string> faults_;
  std::size_t fault_count_ = 0;
};

}  // namespace filetimer::bench
