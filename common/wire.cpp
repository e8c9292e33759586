// SPDX-License-Identifier: MIT
#include "common/wire.hpp"

#include <cmath>

#include "common/json_writer.hpp"

namespace filetimer::wire {
namespace {

// Writes each field that says something.
struct Writer {
  JsonWriter& json;
  bool is_line;  // of the pipe: numbers are as Python's json writes them

  void operator()(const char* key, double number) const {
    if (std::isfinite(number)) {
      json.field(key, number);
    } else if (is_line) {
      json.raw(key, number > 0 ? "Infinity" : "-Infinity");
    }
  }
  void operator()(const char* key, const std::optional<double>& number) const {
    if (number) {
      (*this)(key, *number);
    }
  }
  void operator()(const char* key, int number) const { json.field(key, number); }
  void operator()(const char* key, std::string_view text) const {
    if (is_line || !text.empty()) {
      json.field(key, text);
    }
  }
  template <class Value>
  void operator()(const char* key, const std::optional<Value>& value) const {
    json.given(key, value);
  }
  void operator()(const char* key, bool flag) const { json.given(key, flag); }
};

template <class Message>
std::string written(const Message& message) {
  constexpr bool kIsLine = std::is_same_v<Message, Request>;
  JsonWriter json(kIsLine ? " " : "");  // a line has the spaces that Python's json writes
  json.field("version", kVersion);
  Message::visit(message, Writer{json, kIsLine});
  return std::move(json).finish();
}

}  // namespace

std::string format_page_hint(std::string_view page) {
  JsonWriter json(" ");
  json.field("version", kVersion).field("x_page", page);
  return std::move(json).finish() + '\n';
}

std::string format(const Request& request) {
  return written(request) + '\n';
}

std::string format_question(const Question& question) {
  return written(question);
}

}  // namespace filetimer::wire
