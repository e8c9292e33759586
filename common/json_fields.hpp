// Reads single keys of a record that any program may have written: a value of another type than
// expected counts as absent. For the .cpp files that parse records; no header includes this.
// SPDX-License-Identifier: MIT
#pragma once

#ifndef SIMDJSON_EXCEPTIONS
#define SIMDJSON_EXCEPTIONS 0
#endif
#include <simdjson.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace filetimer {

inline std::optional<std::int64_t> as_integer(simdjson::dom::element value) {
  std::int64_t number = 0;
  return value.get_int64().get(number) == simdjson::SUCCESS ? std::optional(number) : std::nullopt;
}

inline std::optional<double> as_number(simdjson::dom::element value) {
  double number = 0;
  return value.get_double().get(number) == simdjson::SUCCESS ? std::optional(number) : std::nullopt;
}

inline std::string as_text(simdjson::dom::element value) {
  std::string_view text;
  return value.get_string().get(text) == simdjson::SUCCESS ? std::string(text) : std::string();
}

inline std::optional<std::int64_t> integer_at(simdjson::dom::object object, std::string_view key) {
  simdjson::dom::element value;
  return object.at_key(key).get(value) == simdjson::SUCCESS ? as_integer(value) : std::nullopt;
}

inline std::optional<double> number_at(simdjson::dom::object object, std::string_view key) {
  simdjson::dom::element value;
  return object.at_key(key).get(value) == simdjson::SUCCESS ? as_number(value) : std::nullopt;
}

inline std::string text_at(simdjson::dom::object object, std::string_view key) {
  simdjson::dom::element value;
  return object.at_key(key).get(value) == simdjson::SUCCESS ? as_text(value) : std::string();
}

// Returns whether the value under `key` is true.
inline bool flag_at(simdjson::dom::object object, std::string_view key) {
  bool is_set = false;
  return object.at_key(key).get(is_set) == simdjson::SUCCESS && is_set;
}

// Returns a count: at least 0, and limited so that sums of a few counts do not overflow.
inline std::int64_t count_at(simdjson::dom::object object, std::string_view key) {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  return std::clamp<std::int64_t>(integer_at(object, key).value_or(0), 0, kMost);
}

// Returns the elements of the array under `key`; none: the value is not an array.
inline std::vector<simdjson::dom::element> elements_at(simdjson::dom::object object,
                                                       std::string_view key) {
  std::vector<simdjson::dom::element> elements;
  simdjson::dom::array array;
  if (object.at_key(key).get_array().get(array) == simdjson::SUCCESS) {
    for (const simdjson::dom::element element : array) {
      elements.push_back(element);
    }
  }
  return elements;
}

// Returns the elements that are objects.
inline std::vector<simdjson::dom::object> objects_at(simdjson::dom::object object,
                                                     std::string_view key) {
  std::vector<simdjson::dom::object> objects;
  for (const simdjson::dom::element element : elements_at(object, key)) {
    simdjson::dom::object one;
    if (element.get_object().get(one) == simdjson::SUCCESS) {
      objects.push_back(one);
    }
  }
  return objects;
}

// Returns the elements that are texts and not empty.
inline std::vector<std::string> texts_at(simdjson::dom::object object, std::string_view key) {
  std::vector<std::string> texts;
  for (const simdjson::dom::element element : elements_at(object, key)) {
    if (std::string text = as_text(element); !text.empty()) {
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

}  // namespace filetimer
