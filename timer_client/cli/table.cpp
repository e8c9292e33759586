// SPDX-License-Identifier: MIT
#include "timer_client/cli/table.hpp"

#include <algorithm>
#include <utility>

#include "common/text.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kNarrowest = 6;  // "abc..." still says something
constexpr std::string_view kMark = "...";

// Where the character number `count` begins.
std::size_t offset_of_character(std::string_view text, std::size_t count) {
  std::size_t offset = 0;
  for (; offset < text.size(); ++offset) {
    const bool starts = (static_cast<unsigned char>(text[offset]) & 0xC0) != 0x80;
    if (starts && count-- == 0) {
      break;
    }
  }
  return offset;
}

// What is much wider than the page is cut anyway; a name of a megabyte is not measured for that.
std::string shown_text(std::string_view text) {
  return printable(utf8_prefix(text, 4 * kPageWidth));
}

}  // namespace

std::string cut_text(std::string_view text, std::size_t width) {
  if (text.size() <= width || utf8_length(text) <= width) {
    return std::string(text);
  }
  if (width <= kMark.size()) {
    return std::string(kMark.substr(0, width));
  }
  std::string cut(text.substr(0, offset_of_character(text, width - kMark.size())));
  cut += kMark;
  return cut;
}

Table::Table(std::vector<Column> columns, bool colour)
    : columns_(std::move(columns)), layout_(columns_.size()), colour_(colour) {}

void Table::add(Row row) {
  row.resize(columns_.size());
  rows_.push_back(std::move(row));
}

std::size_t Table::total_width() const {
  std::size_t total = 0;
  for (const Layout& layout : layout_) {
    if (layout.shown) {
      total += layout.width + (total == 0 ? 0 : kGap);
    }
  }
  return total;
}

bool Table::narrow_one(bool only_free_text) {
  Layout* widest = nullptr;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    Layout& layout = layout_[i];
    if (layout.shown && layout.width > kNarrowest && (columns_[i].free_text || !only_free_text) &&
        (widest == nullptr || layout.width > widest->width)) {
      widest = &layout;
    }
  }
  if (widest == nullptr) {
    return false;
  }
  --widest->width;
  widest->cut = true;
  return true;
}

bool Table::is_shown(std::size_t column) const {
  if (columns_[column].min_width > 0) {
    return true;
  }
  std::string_view first;
  for (const Row& row : rows_) {
    const std::string_view text = row[column].text;
    if (text.empty()) {
      continue;
    }
    if (!columns_[column].hidden_if_same || (!first.empty() && text != first)) {
      return true;
    }
    first = text;
  }
  return false;
}

std::string_view Table::next_text(const Row& row, std::size_t column) const {
  for (std::size_t i = column + 1; i < row.size(); ++i) {
    if (layout_[i].shown) {
      return row[i].text;
    }
  }
  return {};
}

void Table::fit() {
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    layout_[i].shown = is_shown(i);
  }
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& column = columns_[i];
    Layout& layout = layout_[i];
    layout.cut = column.free_text;
    layout.width = std::max(utf8_length(column.title), column.min_width);
    for (const Row& row : rows_) {
      if (!column.runs_over || !next_text(row, i).empty()) {
        layout.width = std::max(layout.width, utf8_length(shown_text(row[i].text)));
      }
    }
    layout.width = std::min(layout.width, kPageWidth);
  }
  while (total_width() > kPageWidth && narrow_one(true)) {
  }
  while (total_width() > kPageWidth && narrow_one(false)) {
  }
}

std::string Table::header() const {
  Row titles;
  for (const Column& column : columns_) {
    titles.push_back({column.title});
  }
  return line(titles);
}

std::string Table::line(const Row& row) const {
  std::string out;
  std::size_t start = 0;            // where this column begins
  std::size_t at = 0;               // how far the line is written, in characters
  std::vector<std::size_t> starts;  // of the columns so far
  std::size_t last = columns_.size();
  while (last > 0 && !layout_[last - 1].shown) {
    --last;
  }
  for (std::size_t i = 0; i < last; ++i) {
    const Layout& layout = layout_[i];
    if (!layout.shown) {
      continue;
    }
    const Cell& cell = row[i];
    starts.push_back(start);
    // Behind cells that ran over there may be no room left on the line.
    if (!cell.text.empty() && at + kGap < kPageWidth) {
      // A cell that ran over moves the next one to the right, and only that far.
      const std::size_t free_from = at == 0 ? 0 : at + kGap;
      std::size_t begin = std::max(start, free_from);
      if (columns_[i].starts_early) {
        const std::size_t needed = utf8_length(shown_text(cell.text));
        for (auto early = starts.rbegin();
             early != starts.rend() && *early >= free_from && begin + needed > kPageWidth;
             ++early) {
          begin = *early;
        }
      }
      const std::size_t room = begin < kPageWidth ? kPageWidth - begin : 0;
      std::size_t limit = layout.cut ? layout.width : room;
      if (i + 1 == last) {
        limit = room;  // nothing to its right is in the way
      }
      const std::string shown = cut_text(shown_text(cell.text), std::min(limit, room));
      const std::size_t length = utf8_length(shown);
      const std::size_t end = start + layout.width;
      const bool right = columns_[i].align == Align::kRight && begin + length < end;
      const std::size_t column = right ? end - length : begin;
      out.append(column - at, ' ');
      if (colour_ && !cell.colour.empty()) {
        out.append("\x1b[").append(cell.colour).append("m").append(shown).append("\x1b[0m");
      } else {
        out += shown;
      }
      at = column + length;
    }
    start += layout.width + kGap;
  }
  out += '\n';
  return out;
}

std::string Table::text() {
  fit();
  std::string out = header();
  for (const Row& row : rows_) {
    out += line(row);
  }
  return out;
}

}  // namespace filetimer::cli
