// A line of JSON, read by a strict parser. A test fails if the line is not JSON, if a key is
// missing, or if its value has another type than the test expects.
// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>
#include <simdjson.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace filetimer::testing {

// One JSON object on a line.
class JsonLine {
 public:
  explicit JsonLine(std::string line)
      : line_(std::move(line)), parser_(std::make_shared<simdjson::dom::parser>()) {
    const auto error = parser_->parse(line_).get_object().get(root_);
    REQUIRE_MESSAGE(error == simdjson::SUCCESS, "not an object of strict JSON: " << line_);
  }

  [[nodiscard]] const std::string& line() const { return line_; }
  [[nodiscard]] bool has(std::string_view key) const {
    return root_[key].error() == simdjson::SUCCESS;
  }
  [[nodiscard]] simdjson::dom::element at(std::string_view key) const {
    simdjson::dom::element element;
    REQUIRE_MESSAGE(root_[key].get(element) == simdjson::SUCCESS,
                    "no '" << key << "' in " << line_);
    return element;
  }
  [[nodiscard]] bool is_null(std::string_view key) const { return at(key).is_null(); }
  [[nodiscard]] bool flag(std::string_view key) const { return get<bool>(key, at(key)); }
  [[nodiscard]] std::string text(std::string_view key) const {
    return std::string(get<std::string_view>(key, at(key)));
  }
  [[nodiscard]] std::int64_t integer(std::string_view key) const {
    return get<std::int64_t>(key, at(key));
  }
  [[nodiscard]] double number(std::string_view key) const { return get<double>(key, at(key)); }
  [[nodiscard]] simdjson::dom::array array(std::string_view key) const {
    return get<simdjson::dom::array>(key, at(key));
  }
  // Returns an array of strings; empty: the key is missing.
  [[nodiscard]] std::vector<std::string> strings(std::string_view key) const {
    std::vector<std::string> list;
    if (has(key)) {
      for (const auto text : array(key)) {
        list.emplace_back(get<std::string_view>(key, text));
      }
    }
    return list;
  }

 private:
  template <class Value>
  Value get(std::string_view key, simdjson::dom::element element) const {
    Value value{};
    REQUIRE_MESSAGE(element.get(value) == simdjson::SUCCESS,
                    "wrong type of '" << key << "' in " << line_);
    return value;
  }

  std::string line_;
  std::shared_ptr<simdjson::dom::parser> parser_;  // owns the memory of root_
  simdjson::dom::object root_;
};

}  // namespace filetimer::testing
