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

// Returns the value, if it is one of this type. `place` is an element, or what at_key() has found.
template <class Value, class Place>
std::optional<Value> value_as(const Place& place) {
  Value value{};
  return place.get(value) == simdjson::SUCCESS ? std::optional(value) : std::nullopt;
}

inline std::optional<std::int64_t> integer_at(simdjson::dom::object object, std::string_view key) {
  return value_as<std::int64_t>(object.at_key(key));
}

inline std::optional<double> number_at(simdjson::dom::object object, std::string_view key) {
  return value_as<double>(object.at_key(key));
}

inline std::string text_at(simdjson::dom::object object, std::string_view key) {
  return std::string(value_as<std::string_view>(object.at_key(key)).value_or(""));
}

// Returns whether the value under `key` is true.
inline bool flag_at(simdjson::dom::object object, std::string_view key) {
  return value_as<bool>(object.at_key(key)).value_or(false);
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
  if (const auto array = value_as<simdjson::dom::array>(object.at_key(key))) {
    for (const simdjson::dom::element element : *array) {
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
    if (const auto one = value_as<simdjson::dom::object>(element)) {
      objects.push_back(*one);
    }
  }
  return objects;
}

// Returns the elements that are texts and not empty.
inline std::vector<std::string> texts_at(simdjson::dom::object object, std::string_view key) {
  std::vector<std::string> texts;
  for (const simdjson::dom::element element : elements_at(object, key)) {
    if (const auto text = value_as<std::string_view>(element); text && !text->empty()) {
      texts.emplace_back(*text);
    }
  }
  return texts;
}

}  // namespace filetimer
