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

// A line with the padding that the parser may read.
class PaddedLine {
 public:
  explicit PaddedLine(std::string_view line) : length_(line.size()), bytes_(line) {
    bytes_.resize(length_ + wire::Parser::padding());
  }
  [[nodiscard]] std::string_view line() const { return {bytes_.data(), length_}; }

 private:
  std::size_t length_;
  std::string bytes_;
};

bool same_number(double a, double b) {
  return a == b && std::signbit(a) == std::signbit(b);
}

bool same_number(const std::optional<double>& a, const std::optional<double>& b) {
  return a.has_value() == b.has_value() && (!a || same_number(*a, *b));
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
  const PaddedLine line(text);
  const auto request = parser.parse(line.line());
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
  const PaddedLine again_line(written);
  const auto again = second_parser.parse(again_line.line());
  FUZZ_CHECK(again);
  FUZZ_CHECK(again->pid == request->pid);
  FUZZ_CHECK(again->scope_id == request->scope_id);
  FUZZ_CHECK(same_number(again->expiration_time, request->expiration_time));
  FUZZ_CHECK(again->is_release() == request->is_release());
  FUZZ_CHECK(again->signal == request->signal);
  FUZZ_CHECK(same_number(again->x_timeout_s, request->x_timeout_s));
  FUZZ_CHECK(same_number(again->x_grace_s, request->x_grace_s));
  FUZZ_CHECK(same_number(again->x_soft_s, request->x_soft_s));
  FUZZ_CHECK(again->x_tid == request->x_tid);
  FUZZ_CHECK(again->x_scope == request->x_scope);
  FUZZ_CHECK(again->x_whole_process == request->x_whole_process);
  FUZZ_CHECK(again->x_signal_first == request->x_signal_first);
  FUZZ_CHECK(again->x_page == request->x_page);
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
