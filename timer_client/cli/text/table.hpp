// A table of aligned columns that never grows wider than 80 columns, the same on a terminal and in
// a pipe. Every cell passes printable(): what a record says cannot move anybody's cursor.
// Columns without a cell are left out; free text gives way first and is cut with "...", names where
// most of them are the same.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace filetimer::cli {

inline constexpr std::size_t kPageWidth = 80;

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
  bool free_text = false;       // may be cut to make the table fit
  bool is_name = false;         // cut where it still can be told from the others
  bool runs_over = false;       // does not count for the width where the next cell is empty
  bool hidden_if_same = false;  // left out where all its cells say the same
  bool starts_early = false;    // begins further left where it needs room and the cells are empty
  std::size_t min_width = 0;    // keeps the column even when all its cells are empty
};

struct Cell {
  std::string text;
  std::string_view colour = {};  // parameters of an SGR sequence, such as "1;31"
};

using Row = std::vector<Cell>;

class Table {
 public:
  explicit Table(std::vector<Column> columns, bool colour = false);

  // A cell for each column.
  void add(Row row);
  // Decides the widths by the rows added so far. Call it before header() and line().
  void fit();

  // Lines with their newline. Rows that came after fit() keep its columns where they can.
  [[nodiscard]] std::string header() const;
  [[nodiscard]] std::string line(const Row& row) const;
  // fit(), the header and all rows.
  std::string text();

 private:
  struct Layout {
    std::size_t width = 0;
    std::size_t narrowest = 0;
    bool shown = false;
    bool cut = false;
    bool cut_in_front = false;
  };

  [[nodiscard]] bool is_shown(std::size_t column) const;
  // The text in the next column that is shown.
  [[nodiscard]] std::string_view next_text(const Row& row, std::size_t column) const;
  [[nodiscard]] std::size_t total_width() const;
  bool narrow_one(bool only_free_text);
  void keep_distinct(std::size_t column);

  std::vector<Column> columns_;
  std::vector<Layout> layout_;
  std::vector<Row> rows_;
  bool colour_;
};

// At most `width` characters; "..." stands for what was cut.
std::string cut_text(std::string_view text, std::size_t width);
// The same of its end.
std::string cut_in_front(std::string_view text, std::size_t width);

}  // namespace filetimer::cli
