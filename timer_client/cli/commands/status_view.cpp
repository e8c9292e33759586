// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/status_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/json_fields.hpp"
#include "common/text.hpp"
#include "timer_client/cli/commands/list_view.hpp"

namespace filetimer::cli {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;
using Lines = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kSeconds = "_s";
constexpr std::size_t kIndent = 2;
constexpr std::size_t kGap = 2;

// Beyond this a number of seconds is no duration that could be shown.
constexpr double kMostSeconds = 9e9;

std::string value_text(std::string_view key, element value) {
  const auto number = as_number(value);
  if (number && key.ends_with(kSeconds) && *number > -kMostSeconds && *number < kMostSeconds) {
    return short_timeout(
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*number)));
  }
  switch (value.type()) {
    case element_type::STRING:
      return printable(as_text(value));
    case element_type::BOOL:
      return simdjson::minify(value) == "true" ? "yes" : "no";
    case element_type::NULL_VALUE:
      return "none";
    case element_type::ARRAY: {
      std::string text;
      simdjson::dom::array elements;
      if (value.get_array().get(elements) != simdjson::SUCCESS) {
        break;
      }
      for (const element each : elements) {
        text += (text.empty() ? "" : ", ") + value_text({}, each);
      }
      return text;
    }
    default:
      break;
  }
  return printable(simdjson::minify(value));
}

std::string label(std::string_view key, element value) {
  if (key.ends_with(kSeconds) && (as_number(value) || value.is_null())) {
    key.remove_suffix(kSeconds.size());
  }
  std::string text = printable(key);
  std::ranges::replace(text, '_', ' ');
  return text;
}

// Says nothing: a text or a list that is empty, and a process that there is not.
bool is_left_out(std::string_view key, element value, const std::string& text) {
  return text.empty() || key == "answer" || (key == "command_pid" && as_integer(value) == 0);
}

std::string aligned(const Lines& lines, std::size_t indent) {
  std::size_t width = 0;
  for (const auto& [name, value] : lines) {
    width = std::max(width, utf8_length(name));
  }
  std::string text;
  for (const auto& [name, value] : lines) {
    text += fmt::format("{:{}}{}{:{}}{}\n", "", indent, name, "", width - utf8_length(name) + kGap,
                        value);
  }
  return text;
}

}  // namespace

std::string status_page(const std::string& answer) {
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  if (parser.parse(answer).get_object().get(object) != simdjson::SUCCESS) {
    return {};
  }
  Lines lines;
  std::string groups;
  for (const auto& [key, value] : object) {
    simdjson::dom::object group;
    if (value.get_object().get(group) == simdjson::SUCCESS) {
      Lines inner;
      for (const auto& [inner_key, inner_value] : group) {
        std::string text = value_text(inner_key, inner_value);
        if (!is_left_out(inner_key, inner_value, text)) {
          inner.emplace_back(label(inner_key, inner_value), std::move(text));
        }
      }
      groups += fmt::format("\n{}\n{}", label(key, value), aligned(inner, kIndent));
      continue;
    }
    std::string text = value_text(key, value);
    if (!is_left_out(key, value, text)) {
      lines.emplace_back(label(key, value), std::move(text));
    }
  }
  return aligned(lines, 0) + groups;
}

}  // namespace filetimer::cli
