// SPDX-License-Identifier: MIT
#include "tests/bench/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace filetimer::bench {
namespace {

constexpr std::size_t kFaultsShown = 10;
constexpr std::string_view kNone = "-";

// Returns the number with about three significant digits.
std::string number(double value) {
  const double size = std::abs(value);
  const int places = size >= 100 || size == 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return fmt::format("{:.{}f}", value, places);
}

std::string with_unit(std::optional<double> value, const std::string& unit) {
  if (!value) {
    return std::string(kNone);
  }
  return unit.empty() ? number(*value) : number(*value) + " " + unit;
}

std::optional<double> ratio_of(const Row& row) {
  if (row.ratio) {
    return row.ratio;
  }
  if (row.value && row.base && *row.base != 0) {
    return *row.value / *row.base;
  }
  return std::nullopt;
}

std::string target_text(const Row& row) {
  const Target& target = row.target;
  if (!target.limit) {
    return std::string(kNone);
  }
  return (target.is_least ? "> " : "< ") +
         (target.is_of_ratio ? number(*target.limit) + " x" : with_unit(target.limit, row.unit));
}

std::string ok_text(const Row& row) {
  const Target& target = row.target;
  const auto reached = target.is_of_ratio ? ratio_of(row) : row.value;
  if (!target.limit || !reached) {
    return "";
  }
  return (target.is_least ? *reached >= *target.limit : *reached <= *target.limit) ? "yes" : "NO";
}

}  // namespace

void Report::section(const std::string& title, const std::string& base) {
  sections_.push_back({title, base, {}});
}

void Report::add(Row row) {
  sections_.back().rows.push_back(std::move(row));
}

void Report::fault(const std::string& what) {
  ++fault_count_;
  if (faults_.size() < kFaultsShown) {
    faults_.push_back(what);
  }
}

void Report::print_table(std::FILE* out) const {
  std::size_t width = 0;
  for (const Section& section : sections_) {
    for (const Row& row : section.rows) {
      width = std::max(width, row.measure.size() + 2);
    }
  }
  fmt::print(out, "{:<{}}  {:>14}  {:>14}  {:>6}  {:>14}  {}\n", "measure", width, "value", "base",
             "ratio", "target", "ok?");
  for (const Section& section : sections_) {
    fmt::print(out, "{}{}\n", section.title,
               section.base.empty() ? "" : fmt::format(" (base: {})", section.base));
    for (const Row& row : section.rows) {
      if (!row.value) {
        fmt::print(out, "  {:<{}}  {:>14}\n", row.measure, width - 2, row.note);
        continue;
      }
      const auto ratio = ratio_of(row);
      fmt::print(out, "  {:<{}}  {:>14}  {:>14}  {:>6}  {:>14}  {}\n", row.measure, width - 2,
                 with_unit(row.value, row.unit), with_unit(row.base, row.unit),
                 ratio ? number(*ratio) : kNone, target_text(row), ok_text(row));
    }
  }
  for (const std::string& what : faults_) {
    fmt::print(out, "WRONG: {}\n", what);
  }
  if (fault_count_ > faults_.size()) {
    fmt::print(out, "WRONG: and {} more\n", fault_count_ - faults_.size());
  }
}

}  // namespace filetimer::bench
