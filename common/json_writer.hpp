// Writes one JSON object on one line, key by key. Strings may have any bytes: bytes that are not
// UTF-8 are written as the text \xHH, so that a strict parser can read every line.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"

namespace filetimer {

// Appends `text` as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text);

class JsonWriter {
 public:
  // `space` follows each comma between values and each colon. It outlives the writer.
  explicit JsonWriter(std::string_view space = {}) : space_(space) { text_ += '{'; }

  JsonWriter& field(std::string_view key, std::string_view value) {
    begin_value(key);
    append_json_string(text_, value);
    return *this;
  }
  JsonWriter& field(std::string_view key, const char* value) {
    return field(key, std::string_view(value));
  }
  JsonWriter& field(std::string_view key, double value) {  // not finite: null
    return raw(key, std::isfinite(value) ? fmt::format("{}", value) : "null");
  }
  JsonWriter& field(std::string_view key, char value) = delete;  // ambiguous: text or a number
  template <std::integral Integer>
  JsonWriter& field(std::string_view key, Integer value) {
    begin_value(key);
    if constexpr (std::same_as<Integer, bool>) {
      text_ += value ? "true" : "false";
    } else {
      fmt::format_to(std::back_inserter(text_), "{}", value);
    }
    return *this;
  }
  // Writes the value, or null.
  template <class Value>
  JsonWriter& field(std::string_view key, const std::optional<Value>& value) {
    return value ? field(key, *value) : null(key);
  }
  // Writes a number with `places` decimal places; not finite: null.
  JsonWriter& fixed(std::string_view key, double value, int places) {
    return raw(key, std::isfinite(value) ? fmt::format("{:.{}f}", value, places) : "null");
  }
  JsonWriter& null(std::string_view key) { return raw(key, "null"); }
  // Writes seconds with nine decimal places; kForever: null.
  JsonWriter& seconds(std::string_view key, Duration duration) {
    return duration == kForever ? null(key) : fixed(key, in_seconds(duration), 9);
  }

  // Open and close objects and arrays. An empty key adds an element to an array.
  JsonWriter& begin_object(std::string_view key = {}) { return raw(key, "{"); }
  JsonWriter& end_object() { return end('}'); }
  JsonWriter& begin_array(std::string_view key) { return raw(key, "["); }
  JsonWriter& end_array() { return end(']'); }
  // Adds an element to an array.
  template <class Value>
  JsonWriter& element(const Value& value) {
    return field(std::string_view{}, value);
  }

  // Writes a value that is JSON already.
  JsonWriter& raw(std::string_view key, std::string_view json) {
    begin_value(key);
    text_ += json;
    return *this;
  }

  // Writes a whole array.
  template <class Range>
  JsonWriter& array(std::string_view key, const Range& values) {
    begin_array(key);
    for (const auto& value : values) {
      element(value);
    }
    return end_array();
  }

  // Write what says something: no text or list that is empty, no 0, and no false.
  JsonWriter& given(std::string_view key, std::string_view text) {
    return text.empty() ? *this : field(key, text);
  }
  template <std::integral Integer>
  JsonWriter& given(std::string_view key, Integer value) {
    return value == Integer{} ? *this : field(key, value);
  }
  template <class Value>
  JsonWriter& given(std::string_view key, const std::optional<Value>& value) {
    return value ? field(key, *value) : *this;
  }
  template <class Value>
  JsonWriter& given(std::string_view key, const std::vector<Value>& values) {
    return values.empty() ? *this : array(key, values);
  }

  JsonWriter& given_fixed(std::string_view key, std::optional<double> value, int places) {
    return value ? fixed(key, *value, places) : *this;
  }

  [[nodiscard]] std::size_t size() const { return text_.size(); }
  // Returns the object, without a newline. The writer must not be used afterwards.
  std::string finish() {
    text_ += '}';
    return std::move(text_);
  }

 private:
  void begin_value(std::string_view key);
  JsonWriter& end(char bracket) {
    text_ += bracket;
    return *this;
  }
  std::string_view space_;
  std::string text_;
};

}  // namespace filetimer
