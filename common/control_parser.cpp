// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "common/control.hpp"
#include "common/json_fields.hpp"
#include "common/limits.hpp"
#include "common/text.hpp"
#include "common/wire.hpp"

namespace filetimer::wire {
namespace {

using simdjson::dom::element;

// Each of these returns what was expected, or null if the value is stored.
const char* store(element value, std::string& text) {
  std::string_view view;
  if (value.get_string().get(view) != simdjson::SUCCESS) {
    return "a string";
  }
  text = view;
  return nullptr;
}

const char* store(element value, double& number) {
  return value.get_double().get(number) == simdjson::SUCCESS ? nullptr : "a number";
}

const char* store(element value, bool& flag) {
  return value.get_bool().get(flag) == simdjson::SUCCESS ? nullptr : "true or false";
}

const char* store(element value, std::optional<int>& number) {
  using Limits = std::numeric_limits<int>;
  const auto wide = as_integer(value);
  if (!wide || *wide < Limits::min() || *wide > Limits::max()) {
    return "an integer of 32 bits";
  }
  number = static_cast<int>(*wide);
  return nullptr;
}

}  // namespace

Result<Question> parse_question(std::string_view packet) {
  if (packet.size() > kMaxControlBytes) {
    return failure(fmt::format("a request of {} bytes or more: expected at most {}", packet.size(),
                               kMaxControlBytes));
  }
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  if (parser.parse(packet.data(), packet.size()).get_object().get(object) != simdjson::SUCCESS) {
    return failure("not one JSON object");
  }
  Question question;
  question.wait_s = HUGE_VAL;
  std::optional<int> version;
  for (const auto field : object) {
    const std::string_view key = field.key;
    const element value = field.value;
    const char* expected = key == "version" ? store(value, version) : nullptr;
    Question::visit(question, [&](std::string_view name, auto& place) {
      if (key == name) {
        expected = store(value, place);
      }
    });
    if (expected != nullptr) {
      const std::string given = simdjson::minify(value);
      return failure(fmt::format("{} is {}: expected {}", key,
                                 printable(given.substr(0, kMaxRejectedBytesShown)), expected));
    }
  }
  if (version != kVersion) {
    return failure(version ? fmt::format("version is {}: expected {}", *version, kVersion)
                           : "lacks the key 'version'");
  }
  return question;
}

}  // namespace filetimer::wire
