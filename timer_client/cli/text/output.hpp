// Standard output of commands with much output, and the tables on it. If the reader closes the pipe
// (`| head`), the command ends without a message; a full disk is an error with a message.
// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.hpp"
#include "common/text.hpp"

namespace filetimer::cli {

class Output {
 public:
  // Ignores SIGPIPE for the process, so that a write fails instead. `name`: for error messages.
  explicit Output(int fd = STDOUT_FILENO, std::string name = "standard output");

  // Returns false once the output has no reader; later text is dropped.
  bool write(std::string_view text);
  bool flush();
  // Whether the reader is gone, asked without writing. Waits for that, at most so long.
  [[nodiscard]] bool is_closed(int wait_ms = 0) const;
  [[nodiscard]] int fd() const { return fd_; }

  // Flushes the output. Returns the exit code: 0, or 1 after a line on standard error.
  int finish();

 private:
  int fd_;
  std::string name_;
  int error_ = 0;
  std::string pending_;
};

// The terminal, pipe or file on which tables and pages are printed.
struct Screen {
  std::size_t width = 0;    // in characters; 0: of a pipe or a file, where nothing is cut
  bool has_colour = false;  // only of a terminal, never with NO_COLOR or of a dumb terminal
};
Screen screen_of(int fd);

// Writes "timer_client: MESSAGE" on standard error, as one line for any bytes.
void complain(std::string_view message);
// Writes that line and returns the exit code.
int failed(std::string_view message, int code);
// Writes one line for each message that is not empty.
void complain_of_all(const std::vector<std::string>& messages);

// --- tables ---

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
  bool is_text = false;              // it may be cut
  bool is_left_out_if_same = false;  // and not only if all its cells are empty
  std::size_t min_width = 0;         // if more rows may come
};
// Return a column of texts, and one of numbers.
inline Column text_column(const char* title) {
  return {.title = title, .is_text = true};
}
inline Column number_column(const char* title) {
  return {.title = title, .align = Align::kRight};
}
enum class Rows { kAll, kMoreCome };

// Parameters of SGR sequences.
inline constexpr std::string_view kYellow = "1;33";
inline constexpr std::string_view kRed = "1;31";

struct Cell {
  Cell(std::string_view its_text, std::string_view its_colour = {})
      : text(printable(its_text)), colour(its_colour) {}
  std::string text;
  std::string_view colour;  // parameters of an SGR sequence, such as "1;31"
};

// A table of aligned columns, as wide as the terminal. In a pipe or a file nothing is cut, so that
// a search finds whole names. Every cell passes printable(), so no record can move the cursor. A
// column whose cells are all empty is left out. If the table is too wide for a terminal, texts are
// cut, and then the ends of lines; what was cut ends with "...".
//
//   Table table({{"PID", Align::kRight}, {.title = "SCOPE"}}, screen_of(out.fd()));
//   table.add({{"4711"}, {"step"}});
//   out.write(table.text());
//
// Rows that come later are printed by further calls of text(), so a table may be endless.
class Table {
 public:
  explicit Table(std::vector<Column> columns, Screen screen = {});

  // Keeps the row, which has a cell for each column.
  void add(std::initializer_list<Cell> row) { cells_.insert(cells_.end(), row); }
  // Returns the rows that were added, and forgets them; the first time below a header. The rows of
  // the first time decide the widths. A cell that is wider than its column moves the next one to
  // the right. Empty: there are no rows, and none will come.
  std::string text(Rows rows = Rows::kAll);

 private:
  struct Fit {
    std::size_t width = 0;
    bool is_shown = false;
    bool is_cut = false;
  };

  void fit(Rows rows);
  void add_line(const Cell* row, std::string& out) const;

  std::vector<Column> columns_;
  std::vector<Fit> fits_;    // of the columns; empty: nothing is printed yet
  std::vector<Cell> cells_;  // row by row, the header first
  Screen screen_;
};

// Returns at most `width` columns of the text; if it was cut, it ends with "...".
std::string cut_text(std::string_view text, std::size_t width);

}  // namespace filetimer::cli
