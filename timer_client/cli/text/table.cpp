// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/table.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/text.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kNarrowest = 6;  // "abc..." still says something
// A name gives way to this, even where that makes it one of several.
constexpr std::size_t kWidestName = 24;
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

std::string cut_in_front(std::string_view text, std::size_t width) {
  const std::size_t length = utf8_length(text);
  if (length <= width || width <= kMark.size()) {
    return cut_text(text, width);
  }
  return std::string(kMark).append(
      text.substr(offset_of_character(text, length - (width - kMark.size()))));
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
    if (layout.shown && layout.width > layout.narrowest &&
        (columns_[i].free_text || !only_free_text) &&
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

// Numbered hosts differ at their end, full names of hosts at their beginning: what all have in
// common is cut.
void Table::keep_distinct(std::size_t column) {
  std::optional<std::string> first;
  std::size_t in_front = kPageWidth;
  std::size_t at_end = kPageWidth;
  for (const Row& row : rows_) {
    if (row[column].text.empty()) {
      continue;
    }
    const std::string text = shown_text(row[column].text);
    if (!first) {
      first = text;
    } else if (text != *first) {
      const auto [front, other] =
          std::mismatch(text.begin(), text.end(), first->begin(), first->end());
      const auto [end, other_end] =
          std::mismatch(text.rbegin(), text.rend(), first->rbegin(), first->rend());
      in_front = std::min(in_front, static_cast<std::size_t>(front - text.begin()));
      at_end = std::min(at_end, static_cast<std::size_t>(end - text.rbegin()));
    }
  }
  Layout& layout = layout_[column];
  layout.cut_in_front = in_front >= at_end;
  const std::size_t common = std::max(in_front, at_end);
  const std::size_t distinct = layout.width > common ? layout.width - common + kMark.size() : 0;
  layout.narrowest = std::max(layout.narrowest, std::min(distinct, kWidestName));
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
    layout.narrowest = std::max(kNarrowest, column.min_width);
    if (column.is_name) {
      keep_distinct(i);
    }
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
      const std::string whole = shown_text(cell.text);
      const std::size_t most = std::min(limit, room);
      const std::string shown =
          layout.cut_in_front ? cut_in_front(whole, most) : cut_text(whole, most);
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
