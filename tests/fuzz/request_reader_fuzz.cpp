// Any bytes on the pipe, in reads of any size. Invariants: a good line of its own is parsed after
// any other bytes, every line is a request or a rejection, and the reader always has room.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/limits.hpp"
#include "fuzz_check.hpp"
#include "timer_server/requests/request_reader.hpp"

namespace {

using namespace filetimer;

constexpr std::string_view kMarker = "the marker";
constexpr std::string_view kMarkerLine =
    R"({"version": 1, "pid": 7, "scope_id": "the marker", "expiration_time": 1, "signal": 9})"
    "\n";

struct Answers {
  std::size_t count = 0;
  bool last_is_marker = false;
  void operator()(const Result<wire::Request>& request, std::string_view line) {
    ++count;
    FUZZ_CHECK(!request || line.size() < kMaxLineBytes);
    FUZZ_CHECK(request || !request.error().message.empty());
    last_is_marker = request && request->scope_id == kMarker;
  }
};

void feed(RequestReader& reader, std::string_view bytes, std::size_t at_once) {
  while (!bytes.empty()) {
    const auto room = reader.room();
    FUZZ_CHECK(!room.empty());
    const std::size_t count = std::min({room.size(), bytes.size(), at_once});
    std::copy_n(bytes.begin(), count, room.begin());
    reader.received(count);
    bytes.remove_prefix(count);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  // The first byte is the size of the reads.
  const std::size_t at_once = data[0] == 0 ? std::size_t{1} << 20 : data[0];
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  Answers answers;
  RequestReader reader(std::ref(answers));
  feed(reader, bytes, at_once);
  feed(reader, "\n", at_once);
  feed(reader, kMarkerLine, at_once);
  FUZZ_CHECK(answers.last_is_marker);
  const auto newlines = static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  FUZZ_CHECK(answers.count >= newlines + 2);
  return 0;
}
