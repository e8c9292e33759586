// One line of a log or a history, parsed. A field that is missing or has another type reads as the
// value that the caller names.
// SPDX-License-Identifier: MIT
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace filetimer::chaos {

using Element = simdjson::dom::element;

// An object within a line; it lives as long as the line.
class JsonFields {
 public:
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  JsonFields() = default;
  explicit JsonFields(const Element& element) {
    is_object_ = element.get(root_) == simdjson::SUCCESS;
  }

  [[nodiscard]] bool is_object() const { return is_object_; }
  // Returns false if there is no such field.
  [[nodiscard]] bool get(std::string_view key, Element& element) const;
  [[nodiscard]] bool has(std::string_view key) const {
    Element element;
    return get(key, element);
  }
  [[nodiscard]] std::string_view text(std::string_view key, std::string_view missing = "") const {
    return value(key, missing);
  }
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t missing = 0) const {
    return value(key, missing);
  }
  // kNone for null, too. A comparison with it is false.
  [[nodiscard]] double number(std::string_view key, double missing = kNone) const {
    return value(key, missing);
  }
  [[nodiscard]] bool flag(std::string_view key, bool missing = false) const {
    return value(key, missing);
  }
  [[nodiscard]] JsonFields object(std::string_view key) const {
    Element element;
    return get(key, element) ? JsonFields(element) : JsonFields();
  }
  template <class Value>
  [[nodiscard]] std::vector<Value> list(std::string_view key) const {
    std::vector<Value> values;
    Element field;
    simdjson::dom::array array;
    if (get(key, field) && field.get(array) == simdjson::SUCCESS) {
      for (const Element element : array) {
        if constexpr (std::is_same_v<Value, JsonFields> || std::is_same_v<Value, Element>) {
          values.emplace_back(element);
        } else if (Value item; element.get(item) == simdjson::SUCCESS) {
          values.push_back(item);
        }
      }
    }
    return values;
  }
  // Returns the JSON text of a field.
  [[nodiscard]] std::string raw(std::string_view key) const {
    Element element;
    return get(key, element) ? simdjson::minify(element) : std::string();
  }

 protected:
  simdjson::dom::object root_;
  bool is_object_ = false;

 private:
  template <class Value>
  [[nodiscard]] Value value(std::string_view key, Value missing) const {
    Element element;
    Value value{};
    return get(key, element) && element.get(value) == simdjson::SUCCESS ? value : missing;
  }
};

class JsonRecord : public JsonFields {
 public:
  JsonRecord(const std::string& file, std::size_t number, std::string_view line, bool is_last)
      : is_last_(is_last),
        place_(file + ":" + std::to_string(number)),
        line_(std::make_unique<std::string>(line)),
        document_(std::make_unique<simdjson::dom::document>()) {
    thread_local simdjson::dom::parser parser;
    is_object_ =
        parser.parse_into_document(*document_, *line_).get_object().get(root_) == simdjson::SUCCESS;
  }

  [[nodiscard]] bool is_last() const { return is_last_; }  // of its file
  [[nodiscard]] const std::string& place() const { return place_; }
  [[nodiscard]] const std::string& line() const { return *line_; }

 private:
  bool is_last_;
  std::string place_;
  std::unique_ptr<std::string> line_;
  std::unique_ptr<simdjson::dom::document> document_;
};

inline bool are_of_one_worker(const JsonRecord& a, const JsonRecord& b) {
  return a.integer("pid") == b.integer("pid") && a.text("boot_id") == b.text("boot_id") &&
         a.integer("start_time") == b.integer("start_time") && a.integer("uid") == b.integer("uid");
}

}  // namespace filetimer::chaos
