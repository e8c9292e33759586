// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "common/json_fields.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

constexpr std::size_t kElementsShown = 16;

std::string size_text(double bytes) {
  constexpr double kMiB = 1024.0 * 1024;
  constexpr double kMost = 999.5;  // what is rounded to 1000 has the next unit
  return bytes >= kMost * kMiB   ? fmt::format("{:.3g} GiB", bytes / (1024 * kMiB))
         : bytes >= kMost * 1024 ? fmt::format("{:.3g} MiB", bytes / kMiB)
                                 : fmt::format("{:.3g} KiB", bytes / 1024);
}

struct Unit {
  std::string_view suffix;
  std::string (*text)(double);
};
constexpr Unit kUnits[] = {{"_s", seconds_text},
                           {"_ms", [](double ms) { return seconds_text(ms / 1e3); }},
                           {"_bytes", size_text}};

const Unit* unit_of(std::string_view key, element value) {
  const auto unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                 [&](const Unit& known) { return key.ends_with(known.suffix); });
  return unit != std::end(kUnits) && (value.is_null() || as_number(value)) ? unit : nullptr;
}

std::string label_of(std::string_view key, element value) {
  if (const Unit* unit = unit_of(key, value)) {
    key.remove_suffix(unit->suffix.size());
  }
  return with_spaces(key);
}

// Returns the value as text. Of an object it has the values only: the names would fill the line.
std::string value_text(std::string_view key, element value) {
  std::vector<std::string> parts;
  simdjson::dom::array array;
  simdjson::dom::object object;
  if (value.get_array().get(array) == simdjson::SUCCESS) {
    for (const element each : array) {
      parts.push_back(value_text({}, each));
    }
    return listed(parts, kElementsShown);
  }
  if (value.get_object().get(object) == simdjson::SUCCESS) {
    for (const auto& [name, each] : object) {
      parts.push_back(value_text(name, each));
    }
    return joined(parts, " ");
  }
  switch (value.type()) {
    case element_type::STRING:
      return as_text(value);
    case element_type::BOOL:
      return simdjson::minify(value) == "true" ? "yes" : "no";
    case element_type::NULL_VALUE:
      return "none";
    default:
      break;
  }
  const Unit* unit = unit_of(key, value);
  return unit != nullptr ? unit->text(as_number(value).value_or(0)) : simdjson::minify(value);
}

}  // namespace

void add_fields(Page& page, const simdjson::dom::object& object,
                const std::vector<std::string_view>& hidden, std::size_t indent) {
  for (const auto& [key, value] : object) {
    if (std::find(hidden.begin(), hidden.end(), key) == hidden.end()) {
      page.field(label_of(key, value), value_text(key, value), indent);
    }
  }
}

}  // namespace filetimer::cli
