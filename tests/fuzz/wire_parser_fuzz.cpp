// Any bytes as lines of the pipe and as control requests. Invariants: a request that the parser
// accepts, written again by format() or format_page_hint(), is accepted with the same fields; a
// refusal is one line of text.
// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/limits.hpp"
#include "common/text.hpp"
#include "common/wire.hpp"
#include "fuzz_check.hpp"

namespace {

using namespace filetimer;

// Returns whether both have the same sign. Zero and minus zero compare equal, and differ in it.
bool same_sign(const std::optional<double>& a, const std::optional<double>& b) {
  return std::signbit(a.value_or(0)) == std::signbit(b.value_or(0));
}

void check_question(std::string_view packet) {
  const auto question = wire::parse_question(packet);
  if (!question) {
    FUZZ_CHECK(printable(question.error().message) == question.error().message);
    return;
  }
  const std::string written = wire::format_question(*question);
  if (written.size() <= kMaxControlBytes) {
    const auto again = wire::parse_question(written);
    FUZZ_CHECK(again.has_value() && *again == *question);
  }
}

void check_line(wire::Parser& parser, wire::Parser& second_parser, std::string_view text) {
  const auto request = parser.parse(text);
  if (!request) {
    FUZZ_CHECK(!request.error().message.empty());
    FUZZ_CHECK(printable(request.error().message) == request.error().message);
    return;
  }
  FUZZ_CHECK(!std::isnan(request->expiration_time));
  std::string written =
      request->x_page ? wire::format_page_hint(*request->x_page) : wire::format(*request);
  FUZZ_CHECK(written.ends_with('\n'));
  written.pop_back();
  FUZZ_CHECK(written.find('\n') == written.npos);
  if (written.size() >= kMaxLineBytes) {
    return;  // numbers and escapes may be longer when they are written again
  }
  const auto again = second_parser.parse(written);
  FUZZ_CHECK(again);
  FUZZ_CHECK(*again == *request);
  FUZZ_CHECK(same_sign(again->expiration_time, request->expiration_time));
  FUZZ_CHECK(same_sign(again->x_timeout_s, request->x_timeout_s));
  FUZZ_CHECK(same_sign(again->x_grace_s, request->x_grace_s));
  FUZZ_CHECK(same_sign(again->x_soft_s, request->x_soft_s));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static wire::Parser parser;
  static wire::Parser second_parser;
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_question(bytes);
  for (;;) {
    const std::size_t newline = bytes.find('\n');
    check_line(parser, second_parser, bytes.substr(0, newline));
    if (newline == bytes.npos) {
      return 0;
    }
    bytes.remove_prefix(newline + 1);
  }
}
