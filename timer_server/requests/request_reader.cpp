// SPDX-License-Identifier: MIT
#include "timer_server/requests/request_reader.hpp"

#include <fmt/format.h>

#include <cstring>

#include "timer_server/system/messages.hpp"

namespace filetimer {

RequestReader::RequestReader(OnLine on_line)
    : on_line_(std::move(on_line)), buffer_(kMaxLineBytes + kReadBytes) {}

void RequestReader::received(std::size_t count) {
  const std::string_view bytes(buffer_.data(), held_ + count);
  std::size_t start = 0;
  // The held bytes have no newline.
  for (std::size_t newline = bytes.find('\n', held_); newline != bytes.npos;
       newline = bytes.find('\n', start)) {
    // The lines behind one for which there is no memory are read.
    messages::guard([&] { parse(bytes.substr(start, newline - start), lost_); });
    start = newline + 1;
    held_ = 0;
    lost_ = 0;
  }
  std::string_view rest = bytes.substr(start);
  // The end of a line over the limit is kept, because it may be the complete line of another
  // writer.
  if (rest.size() >= kMaxLineBytes) {
    const std::size_t lost = rest.size() - (kMaxLineBytes - 1);
    lost_ += lost;
    rest.remove_prefix(lost);
  }
  std::memmove(buffer_.data(), rest.data(), rest.size());
  held_ = rest.size();
}

void RequestReader::parse(std::string_view line, std::size_t lost_before) {
  const Result<wire::Request> request =
      lost_before == 0
          ? parser_.parse(line)
          : failure(fmt::format("a line of {} bytes: expected at most {} with its newline",
                                lost_before + line.size() + 1, kMaxLineBytes));
  if (request || !parse_glued(line, lost_before)) {
    on_line_(request, line);
  }
}

// Parses a line again from the last place at which a line may begin. A writer that closes the pipe
// without a newline leaves its bytes in front of the next writer's line, and a pipe does not show
// where a write began. A line of two complete objects from one read, however, is the mistake of one
// client and is rejected as a whole. Returns whether the end of the line is another writer's.
bool RequestReader::parse_glued(std::string_view line, std::size_t lost_before) {
  const std::size_t begin = line.rfind(wire::kLineStart);
  if (begin == line.npos || (begin == 0 && lost_before == 0)) {
    return false;
  }
  const std::string_view front = line.substr(0, begin);
  const std::string_view back = line.substr(begin);
  const bool seam_is_known = begin == held_;
  const bool are_two_objects = lost_before == 0 && !seam_is_known && parser_.parse(front);
  const auto request = parser_.parse(back);
  if (are_two_objects || !request) {
    return false;
  }
  on_line_(failure("a line without its newline, in front of another one"), front);
  on_line_(request, back);
  return true;
}

}  // namespace filetimer
