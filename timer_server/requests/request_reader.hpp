// Turns the bytes of the request pipe into requests.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/limits.hpp"
#include "common/wire_parser.hpp"

namespace filetimer {

class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // The views in `request` are valid until the call returns.
  virtual void on_request(const wire::Request& request, std::string_view line) = 0;
  virtual void on_rejected(std::string_view reason, std::string_view line) = 0;
};

// Cuts lines, parses them, and hands requests and rejected lines to the sink. Recovers a line that
// follows another writer's incomplete line. Knows neither workers nor pipes, so it can be fuzzed.
//
//   reader.received(pipe.read(reader.room()));
//
// Used on the loop thread. `sink` must outlive the reader, and must not call it.
class RequestReader {
 public:
  explicit RequestReader(RequestSink& sink);

  // Returns where the next bytes belong; never empty.
  std::span<char> room();
  // Takes the first `count` bytes of room(). Hands every line that they complete to the sink.
  void received(std::size_t count);
  void read_again(std::string line);

 private:
  void on_line(std::string_view line, std::size_t lost_before);
  void on_glued_line(std::string_view line, std::size_t lost_before, const Error& why);

  // Larger reads are no faster and do not fit the processor's cache.
  static constexpr std::size_t kReadBytes = std::size_t{64} << 10;

  RequestSink& sink_;
  wire::Parser parser_;
  std::vector<char> buffer_;
  std::size_t held_ = 0;  // bytes of an incomplete line, at the front of the buffer
  std::size_t lost_ = 0;  // bytes of the same line that were dropped, because it is too long
};

}  // namespace filetimer
