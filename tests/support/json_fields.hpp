// A JSON object of which no field has to be there.
// SPDX-License-Identifier: MIT
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace filetimer::testing {

// A field that is missing or has another type reads as the value that the caller names.
class JsonFields {
 public:
  // A line that is no object has no fields.
  explicit JsonFields(const std::string& line)
      : parser_(std::make_shared<simdjson::dom::parser>()), root_(parser_->parse(line)) {}

  [[nodiscard]] bool has(std::string_view key) const {
    return root_[key].error() == simdjson::SUCCESS;
  }
  [[nodiscard]] std::string_view text(std::string_view key, std::string_view missing = "") const {
    return value(key, missing);
  }
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t missing = 0) const {
    return value(key, missing);
  }
  // Returns the objects of a list.
  [[nodiscard]] std::vector<JsonFields> objects(std::string_view key) const {
    std::vector<JsonFields> objects;
    if (simdjson::dom::array list; root_[key].get(list) == simdjson::SUCCESS) {
      for (auto element : list) {
        objects.push_back({parser_, std::move(element)});
      }
    }
    return objects;
  }

 private:
  using Element = simdjson::simdjson_result<simdjson::dom::element>;

  JsonFields(std::shared_ptr<simdjson::dom::parser> parser, Element root)
      : parser_(std::move(parser)), root_(root) {}

  template <class Value>
  [[nodiscard]] Value value(std::string_view key, Value missing) const {
    Value value{};
    return root_[key].get(value) == simdjson::SUCCESS ? value : missing;
  }

  std::shared_ptr<simdjson::dom::parser> parser_;  // owns the memory of root_
  Element root_;
};

}  // namespace filetimer::testing
