// Turns the bytes of the request pipe into requests.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "common/limits.hpp"
#include "common/result.hpp"
#include "common/wire.hpp"

namespace filetimer {

// Cuts lines, parses them, and hands each with its request, or with the reason for its rejection,
// to `on_line`. Recovers a line that follows another writer's incomplete line. Knows neither
// workers nor pipes, so it can be fuzzed.
//
//   reader.received(pipe.read(reader.room()));
//
// Used on the loop thread.
class RequestReader {
 public:
  // Must not call the reader. The views in the request are valid until it returns.
  using OnLine = std::function<void(const Result<wire::Request>&, std::string_view line)>;
  explicit RequestReader(OnLine on_line);

  // Returns where the next bytes belong; never empty.
  std::span<char> room() { return {buffer_.data() + held_, kReadBytes}; }
  // Takes the first `count` bytes of room(). Hands on every line that they complete.
  void received(std::size_t count);
  void read_again(std::string_view line) { parse(line, 0); }

 private:
  void parse(std::string_view line, std::size_t lost_before);
  bool parse_glued(std::string_view line, std::size_t lost_before);

  // Larger reads are no faster and do not fit the processor's cache.
  static constexpr std::size_t kReadBytes = std::size_t{64} << 10;

  const OnLine on_line_;
  wire::Parser parser_;
  std::vector<char> buffer_;
  std::size_t held_ = 0;  // bytes of an incomplete line, at the front of the buffer
  std::size_t lost_ = 0;  // bytes of the same line that were dropped, because it is too long
};

}  // namespace filetimer
