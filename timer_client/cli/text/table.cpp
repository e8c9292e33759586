// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/table.hpp"

#include <algorithm>
#include <utility>

#include "common/text.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kNarrowest = 6;  // "abc..." still says something

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

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
    : columns_(std::move(columns)), widths_(columns_.size()), screen_(screen) {}

void Table::add(std::span<const Cell> row) {
  for (const Cell& cell : row) {
    cells_.push_back({printable(cell.text), cell.colour});
  }
}

std::size_t Table::total_width() const {
  std::size_t total = 0;
  for (const Width& width : widths_) {
    total += width.is_shown ? width.width + (total == 0 ? 0 : kGap) : 0;
  }
  return total;
}

Table::Width* Table::widest(bool only_texts) {
  Width* found = nullptr;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    Width& width = widths_[i];
    if (width.is_shown && width.width > std::max(kNarrowest, columns_[i].title.size()) &&
        (columns_[i].is_text || !only_texts) && (found == nullptr || width.width > found->width)) {
      found = &width;
    }
  }
  return found;
}

void Table::fit(Rows rows) {
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& column = columns_[i];
    const std::size_t min_width = rows == Rows::kMoreCome ? column.min_width : 0;
    std::size_t most = 0;
    bool is_same = column.is_left_out_if_same;
    for (std::size_t cell = i; cell < cells_.size(); cell += columns_.size()) {
      most = std::max(most, display_width(cells_[cell].text));
      is_same = is_same && cells_[cell].text == cells_[i].text;
    }
    widths_[i] = {std::max({most, column.title.size(), min_width}),
                  (most > 0 && !is_same) || min_width > 0, false};
    last_ = widths_[i].is_shown ? i : last_;
  }
  for (const bool only_texts : {true, false}) {
    for (Width* width = nullptr; screen_.width > 0 && total_width() > screen_.width &&
                                 (width = widest(only_texts)) != nullptr;) {
      --width->width;
      width->is_cut = true;
    }
  }
}

void Table::add_line(std::span<const Cell> row, std::string& out) const {
  std::size_t at = 0;     // how many characters the line has
  std::size_t start = 0;  // where the column begins
  for (std::size_t i = 0; i <= last_ && i < row.size(); ++i) {
    const Width& width = widths_[i];
    if (!width.is_shown) {
      continue;
    }
    std::string text = is_plain(row[i].text) ? std::string(row[i].text) : printable(row[i].text);
    const std::size_t begin = std::max(start, at == 0 ? 0 : at + kGap);
    const std::size_t end = start + width.width;
    start = end + kGap;
    if (width.is_cut) {
      text = cut_text(text, width.width);
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
  fit(rows);
  std::string out;
  std::vector<Cell> titles;
  for (const Column& column : columns_) {
    titles.push_back({column.title});
  }
  add_line(titles, out);
  std::vector<Cell> row(columns_.size());
  for (std::size_t first = 0; first + row.size() <= cells_.size(); first += row.size()) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = {cells_[first + i].text, cells_[first + i].colour};
    }
    add_line(row, out);
  }
  cells_ = {};
  return out;
}

}  // namespace filetimer::cli
