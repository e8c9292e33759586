// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/output.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "timer_client/cli/text/words.hpp"
#include "timer_client/client/write_signals.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
constexpr std::size_t kGap = 2;
constexpr std::size_t kNarrowest = 6;  // "abc..." still says something

}  // namespace

Output::Output(int fd, std::string name) : fd_(fd), name_(std::move(name)) {
  std::signal(SIGPIPE, SIG_IGN);
}

bool Output::write(std::string_view text) {
  if (error_ != 0) {
    return false;
  }
  pending_ += text;
  return pending_.size() < kBufferBytes || flush();
}

bool Output::flush() {
  std::string_view rest = pending_;
  while (error_ == 0 && !rest.empty()) {
    const ssize_t written = retry_eintr([&] { return ::write(fd_, rest.data(), rest.size()); });
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      // Another program has left the terminal in non-blocking mode.
      pollfd writable{fd_, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else {
      error_ = errno;
    }
  }
  pending_.clear();
  return error_ == 0;
}

bool Output::is_closed(int wait_ms) const {
  pollfd reader{fd_, 0, 0};
  return error_ != 0 ||
         (::poll(&reader, 1, wait_ms) == 1 && (reader.revents & (POLLERR | POLLHUP)) != 0);
}

int Output::finish() {
  flush();
  if (error_ == 0 || error_ == EPIPE) {
    return 0;
  }
  complain(system_error("cannot write to " + name_, error_).value().message);
  return 1;
}

Screen screen_of(int fd) {
  constexpr std::size_t kUsualWidth = 80;  // of a terminal that does not say
  if (::isatty(fd) != 1) {
    return {};
  }
  winsize size{};
  const bool is_known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return {.width = is_known ? size.ws_col : kUsualWidth,
          .has_colour = (no_colour == nullptr || *no_colour == '\0') &&
                        (term == nullptr || std::string_view(term) != "dumb")};
}

void complain(std::string_view message) {
  // If standard error is closed, full or has no reader, the message is lost and the command goes
  // on.
  const WriteSignalsGuard guard;
  const std::string line = fmt::format("timer_client: {}\n", printable(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
  guard.consume();
}

int failed(std::string_view message, int code) {
  complain(message);
  return code;
}

void complain_of_all(const std::vector<std::string>& messages) {
  for (const std::string& message : messages) {
    if (!message.empty()) {
      complain(message);
    }
  }
}

// --- tables ---

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
    std::size_t end = start + fit.width;
    start = end + kGap;
    if (fit.is_cut) {
      text = cut_text(text, fit.width);
    }
    if (screen_.width > 0) {
      end = std::min(end, screen_.width);
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
