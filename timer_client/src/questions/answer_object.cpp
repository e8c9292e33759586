// SPDX-License-Identifier: MIT
#include "timer_client/src/questions/answer_object.hpp"

#include <pthread.h>
#include <sched.h>

#include <atomic>

#include "common/clock.hpp"

namespace filetimer {
namespace {

// How long the end of the process waits for answers that are being parsed, some microseconds each.
constexpr Duration kEndWaits = std::chrono::milliseconds{100};

// Never destroyed. All sequentially consistent: who parses says so and then looks whether all is
// over, and the end says that it is and then looks who parses.
constinit std::atomic<bool> is_over{false};
constinit std::atomic<int> parsing{0};

// Made behind the parser's own static objects, and so destroyed before them.
class End {
 public:
  End() = default;
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    is_over = true;
    const Instant until = Instant::now() + kEndWaits;
    while (parsing > 0 && Instant::now() < until) {
      ::sched_yield();
    }
  }
};

bool parse(simdjson::dom::parser& parser, std::string_view text, simdjson::dom::object& object) {
  return parser.parse(text.data(), text.size()).get_object().get(object) == simdjson::SUCCESS;
}

}  // namespace

void prepare_to_parse() {
  [[maybe_unused]] static const End end = [] {
    simdjson::dom::parser first;
    simdjson::dom::object nothing;
    parse(first, "{}", nothing);
    // Nobody parses in a child, whatever the other threads of its parent were at.
    ::pthread_atfork(nullptr, nullptr, [] { parsing = 0; });
    return End();
  }();
}

bool parse_answer(simdjson::dom::parser& parser, std::string_view answer,
                  simdjson::dom::object& object) {
  ++parsing;
  const bool is_object = !is_over && parse(parser, answer, object);
  --parsing;
  return is_object;
}

}  // namespace filetimer
