// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/table.hpp"

#include <algorithm>
#include <utility>

#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kNarrowest = 6;  // "abc..." still says something

}  // namespace

std::string cut_text(std::string_view text, std::size_t width) {
  if (display_width(text) <= width) {
    return std::string(text);
  }
  if (width <= kDots.size()) {
    return std::string(kDots.substr(0, width));
  }
  return std::string(prefix_of_width(text, width - kDots.size())).append(kDots);
}

Table::Table(std::vector<Column> columns, Screen screen)
    : columns_(std::move(columns)), screen_(screen) {
  for (const Column& column : columns_) {
    cells_.emplace_back(column.title);
  }
}

void Table::fit(Rows rows) {
  const std::size_t count = columns_.size();
  fits_.resize(count);
  std::size_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Column& column = columns_[i];
    const std::size_t min_width = rows == Rows::kMoreCome ? column.min_width : 0;
    std::size_t most = 0;
    bool is_same = column.is_left_out_if_same;
    for (std::size_t cell = count + i; cell < cells_.size(); cell += count) {
      most = std::max(most, display_width(cells_[cell].text));
      is_same = is_same && cells_[cell].text == cells_[count + i].text;
    }
    fits_[i].is_shown = (most > 0 && !is_same) || min_width > 0;
    fits_[i].width = std::max({most, column.title.size(), min_width});
    total += fits_[i].is_shown ? fits_[i].width + (total == 0 ? 0 : kGap) : 0;
  }
  while (screen_.width > 0 && total > screen_.width) {
    Fit* widest = nullptr;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (fits_[i].is_shown && columns_[i].is_text &&
          fits_[i].width > std::max(kNarrowest, columns_[i].title.size()) &&
          (widest == nullptr || fits_[i].width > widest->width)) {
        widest = &fits_[i];
      }
    }
    if (widest == nullptr) {
      break;  // the ends of the lines are cut
    }
    --widest->width;
    --total;
    widest->is_cut = true;
  }
}

void Table::add_line(const Cell* row, std::string& out) const {
  std::size_t at = 0;     // how many characters the line has
  std::size_t start = 0;  // where the column begins
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Fit& fit = fits_[i];
    if (!fit.is_shown) {
      continue;
    }
    std::string text = row[i].text;
    const std::size_t begin = std::max(start, at == 0 ? 0 : at + kGap);
    const std::size_t end = start + fit.width;
    start = end + kGap;
    if (fit.is_cut) {
      text = cut_text(text, fit.width);
    }
    if (screen_.width > 0) {
      text = cut_text(text, screen_.width - std::min(begin, screen_.width));
    }
    if (text.empty()) {
      continue;
    }
    const std::size_t length = display_width(text);
    const bool is_moved = columns_[i].align == Align::kRight && begin + length < end;
    out.append((is_moved ? end - length : begin) - at, ' ');
    at = (is_moved ? end - length : begin) + length;
    if (screen_.has_colour && !row[i].colour.empty()) {
      out.append("\x1b[").append(row[i].colour).append("m").append(text).append("\x1b[0m");
    } else {
      out.append(text);
    }
  }
  out += '\n';
}

std::string Table::text(Rows rows) {
  if (fits_.empty()) {
    if (cells_.size() == columns_.size() && rows == Rows::kAll) {
      return {};
    }
    fit(rows);
  }
  std::string out;
  for (std::size_t cell = 0; cell < cells_.size(); cell += columns_.size()) {
    add_line(&cells_[cell], out);
  }
  cells_.clear();
  return out;
}

}  // namespace filetimer::cli
