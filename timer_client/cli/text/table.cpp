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

// Cuts text that is much wider than the page first, so that a name of a megabyte is not measured.
std::string shown_text(std::string_view text) {
  return printable(utf8_prefix(text, 4 * kPageWidth));
}

}  // namespace

std::size_t bytes_of(std::string_view text, std::size_t count) {
  std::size_t bytes = 0;
  for (; bytes < text.size(); ++bytes) {
    const bool starts = (static_cast<unsigned char>(text[bytes]) & 0xC0) != 0x80;
    if (starts && count-- == 0) {
      break;
    }
  }
  return bytes;
}

std::string cut_text(std::string_view text, std::size_t width) {
  if (text.size() <= width || utf8_length(text) <= width) {
    return std::string(text);
  }
  if (width <= kDots.size()) {
    return std::string(kDots.substr(0, width));
  }
  return std::string(text.substr(0, bytes_of(text, width - kDots.size()))).append(kDots);
}

Table::Table(std::vector<Column> columns, bool colour)
    : columns_(std::move(columns)), widths_(columns_.size()), colour_(colour) {}

void Table::add(std::span<const Cell> row) {
  for (const Cell& cell : row) {
    cells_.push_back({shown_text(cell.text), cell.colour});
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
    if (width.is_shown && width.width > std::max(kNarrowest, columns_[i].min_width) &&
        (columns_[i].is_text || !only_texts) && (found == nullptr || width.width > found->width)) {
      found = &width;
    }
  }
  return found;
}

void Table::fit() {
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t most = 0;
    for (std::size_t cell = i; cell < cells_.size(); cell += columns_.size()) {
      most = std::max(most, utf8_length(cells_[cell].text));
    }
    const Column& column = columns_[i];
    const std::size_t width = std::max({most, column.title.size(), column.min_width});
    widths_[i] = {std::min(width, kPageWidth), most > 0 || column.min_width > 0, column.is_text};
    last_ = widths_[i].is_shown ? i : last_;
  }
  for (const bool only_texts : {true, false}) {
    for (Width* width = nullptr;
         total_width() > kPageWidth && (width = widest(only_texts)) != nullptr;) {
      --width->width;
      width->is_cut = true;
    }
  }
}

void Table::add_cell(std::size_t column, const Cell& cell, std::string_view text, std::string& out,
                     std::size_t& at, std::size_t start) const {
  const std::size_t free_from = at == 0 ? 0 : at + kGap;
  std::size_t begin = std::max(start, free_from);
  std::size_t length = utf8_length(text);
  if (column == last_ && begin + length > kPageWidth) {
    // The last cell of a row may begin in the empty cells before it.
    begin = std::max(free_from, length < kPageWidth ? kPageWidth - length : 0);
  }
  if (begin >= kPageWidth) {
    return;  // wider cells before it have left no room
  }
  std::size_t room = kPageWidth - begin;
  if (widths_[column].is_cut && column != last_) {
    room = std::min(room, widths_[column].width);
  }
  std::string cut;
  if (length > room) {
    text = cut = cut_text(text, room);
    length = room;
  }
  const std::size_t end = start + widths_[column].width;
  if (columns_[column].align == Align::kRight && begin + length < end) {
    begin = end - length;
  }
  out.append(begin - at, ' ');
  if (colour_ && !cell.colour.empty()) {
    out.append("\x1b[").append(cell.colour).append("m").append(text).append("\x1b[0m");
  } else {
    out.append(text);
  }
  at = begin + length;
}

void Table::add_line(std::span<const Cell> row, std::string& out) const {
  std::size_t at = 0;     // how many characters the line has
  std::size_t start = 0;  // where the column begins
  for (std::size_t i = 0; i <= last_ && i < row.size(); ++i) {
    if (!widths_[i].is_shown) {
      continue;
    }
    const Cell& cell = row[i];
    if (cell.text.size() <= kPageWidth && is_plain(cell.text)) {
      if (!cell.text.empty()) {
        add_cell(i, cell, cell.text, out, at, start);
      }
    } else {
      add_cell(i, cell, shown_text(cell.text), out, at, start);
    }
    start += widths_[i].width + kGap;
  }
  out += '\n';
}

void Table::add_header(std::string& out) const {
  std::vector<Cell> titles;
  for (const Column& column : columns_) {
    titles.push_back({column.title});
  }
  add_line(titles, out);
}

std::string Table::text() {
  fit();
  std::string out;
  add_header(out);
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
