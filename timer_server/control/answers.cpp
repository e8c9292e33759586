// SPDX-License-Identifier: MIT
#include "timer_server/control/answers.hpp"

#include <fmt/format.h>

#include "common/wire.hpp"

namespace filetimer {

JsonWriter begin_answer(std::string_view kind) {
  JsonWriter json;
  json.field("version", wire::kVersion).field("answer", kind);
  return json;
}

std::string answer_with_reason(std::string_view kind, std::string_view reason) {
  JsonWriter json = begin_answer(kind);
  json.field("reason", reason);
  return std::move(json).finish();
}

std::string refuse_as_too_many(std::size_t others) {
  return answer_with_reason(
      "refused",
      fmt::format("{} clients wait for an answer: there is no room for another", others));
}

}  // namespace filetimer
