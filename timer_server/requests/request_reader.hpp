// From the bytes of the pipe to requests: cuts lines, parses them, and saves what can be saved from
// a line that somebody else's unfinished one was glued to. Knows nothing of workers or pipes, so it
// is fuzzed as it is.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/limits.hpp"
#include "common/wire.hpp"

namespace filetimer {

class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // What `request` points to is valid until this returns.
  virtual void on_request(const wire::Request& request, std::string_view line) = 0;
  virtual void on_rejected(std::string_view reason, std::string_view line) = 0;
};

class RequestReader {
 public:
  explicit RequestReader(RequestSink& sink);

  // Where the next bytes go; never empty.
  std::span<char> room();
  // `count` bytes were put into room(): every line that they complete goes to the sink.
  void received(std::size_t count);

 private:
  void on_line(std::string_view line, std::size_t lost_before);
  void on_glued_line(std::string_view line, std::size_t lost_before, const Error& why);

  // Reads of 64 KiB are as fast as larger ones here, and fit the cache.
  static constexpr std::size_t kReadBytes = std::size_t{64} << 10;

  RequestSink& sink_;
  wire::Parser parser_;
  std::vector<char> buffer_;
  std::size_t held_ = 0;  // bytes at the front: the beginning of a line, from earlier reads
  std::size_t lost_ = 0;  // of a line too long to hold: bytes that stood before those held
};

}  // namespace filetimer
