// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/page.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/json_fields.hpp"
#include "common/text.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kWidestLabel = 24;
constexpr std::size_t kFieldGap = 2;

// --- fields ---

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
    case element_type::STRING: {
      const std::string text = as_text(value);
      const auto time = key == "time" ? parse_rfc3339(text) : std::nullopt;
      return time ? time_text(*time) : text;
    }
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

void Page::wrap(std::string_view text, std::size_t first_column, std::size_t indent) {
  const std::string safe = printable(text);
  std::string_view rest = safe;
  std::size_t column = first_column;
  bool is_empty = true;  // the line
  const auto break_line = [&] {
    text_.append("\n").append(indent, ' ');
    column = indent;
    is_empty = true;
  };
  while (!rest.empty()) {
    // No longer than a line, so that a long word takes linear time.
    std::string_view word = prefix_of_width(rest.substr(0, rest.find(' ')), kPageWidth);
    if (!is_empty && column + 1 + display_width(word) > kPageWidth) {
      break_line();
    }
    const std::size_t room = kPageWidth - column - (is_empty ? 0 : 1);
    word = prefix_of_width(word, room);  // the whole of it, unless it is wider than a line
    text_.append(is_empty ? "" : " ").append(word);
    column += display_width(word) + (is_empty ? 0 : 1);
    is_empty = false;
    rest.remove_prefix(word.size());
    if (rest.starts_with(' ')) {
      rest.remove_prefix(1);
    }
  }
  text_ += '\n';
}

void Page::end_fields() {
  std::size_t widest = 0;
  for (const Field& field : fields_) {
    widest = std::max(widest, field.indent + std::min(display_width(field.label), kWidestLabel));
  }
  for (const Field& field : std::exchange(fields_, {})) {
    const std::size_t end = field.indent + display_width(field.label);
    const std::size_t begin = std::max(widest, end) + kFieldGap;
    text_.append(field.indent, ' ').append(field.label).append(begin - end, ' ');
    wrap(field.value, begin, widest + kFieldGap);
  }
}

void Page::paragraph(std::string_view text) {
  end_fields();
  wrap(text, 0, 0);
}

void Page::heading(std::string_view title) {
  end_fields();
  text_ += text_.empty() ? "" : "\n";
  text_ += colour_ ? "\x1b[1m" : "";
  text_ += printable(title);
  text_ += colour_ ? "\x1b[0m\n" : "\n";
}

void Page::field(std::string_view label, std::string_view value, std::size_t indent) {
  if (!value.empty()) {
    fields_.push_back({indent, cut_text(printable(label), kPageWidth / 2), std::string(value)});
  }
}

void Page::item(std::size_t indent, std::string_view text) {
  end_fields();
  if (!text.empty()) {
    text_.append(indent, ' ');
    wrap(text, indent, indent + 2);
  }
}

std::string Page::text() && {
  end_fields();
  return std::move(text_);
}

void add_fields(Page& page, const simdjson::dom::object& object,
                const std::vector<std::string_view>& hidden, std::size_t indent) {
  for (const auto& [key, value] : object) {
    if (std::find(hidden.begin(), hidden.end(), key) == hidden.end()) {
      page.field(label_of(key, value), value_text(key, value), indent);
    }
  }
}

std::string field_text(const simdjson::dom::object& object, std::string_view key) {
  element value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) {
    return {};
  }
  return joined({value.is_string() ? "" : label_of(key, value), value_text(key, value)}, " ");
}

}  // namespace filetimer::cli
