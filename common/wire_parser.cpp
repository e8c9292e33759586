// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "common/wire.hpp"
#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <cmath>
#include <concepts>
#include <cstdlib>
#include <new>
#include <optional>
#include <type_traits>

#include "common/limits.hpp"
#include "common/text.hpp"

namespace filetimer::wire {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr int kMaxDepth = 16;  // of a value under an unknown key
constexpr std::size_t kTokenBytesQuoted = 40;

// Returns the text of the value, without the white space after it.
std::string_view token_of(ondemand::value value) {
  const std::string_view token = value.raw_json_token();
  return token.substr(0, token.find_last_not_of(" \t\r\n") + 1);
}

tl::unexpected<Error> not_json(simdjson::error_code code) {
  return failure(fmt::format("not one JSON object: {}", simdjson::error_message(code)));
}

// Returns whether every escape is one of JSON's. Pairs of surrogates are not checked.
bool escapes_are_json(std::string_view text) {
  for (std::size_t at = text.find('\\'); at != text.npos; at = text.find('\\', at)) {
    const std::string_view escape = text.substr(at + 1);
    const bool is_unicode = escape.starts_with('u');
    if (is_unicode ? escape.size() < 5 || escape.substr(1, 4).find_first_not_of(
                                              "0123456789abcdefABCDEF") != escape.npos
                   : escape.find_first_of("\"\\/bfnrt") != 0) {
      return false;
    }
    at += is_unicode ? 6 : 2;
  }
  return true;
}

// Each of these stores the value, whose text is `token`. They return null, or what was expected.

const char* store(ondemand::value value, std::string_view /*token*/, int& number) {
  std::int64_t wide = 0;
  if (value.get_int64().get(wide) != simdjson::SUCCESS || wide != static_cast<int>(wide)) {
    return "an integer of 32 bits";
  }
  number = static_cast<int>(wide);
  return nullptr;
}

// Reads a number as Python's json does: with the bare words Infinity and -Infinity, and with
// numbers too large for a double as infinite.
const char* store(ondemand::value value, std::string_view token, double& number) {
  if (token == "Infinity" || token == "-Infinity") {
    number = token[0] == '-' ? -HUGE_VAL : HUGE_VAL;
    return nullptr;
  }
  if (value.get_double().get(number) == simdjson::SUCCESS) {
    return nullptr;
  }
  const bool is_numeric =
      !token.empty() && token.find_first_not_of("+-.0123456789eE") == token.npos;
  const std::string copy(token);
  char* end = nullptr;
  number = is_numeric ? std::strtod(copy.c_str(), &end) : 0;
  return end == copy.c_str() + copy.size() && std::isinf(number) ? nullptr : "a number";
}

const char* store(ondemand::value value, std::string_view /*token*/, bool& flag) {
  return value.get_bool().get(flag) == simdjson::SUCCESS ? nullptr : "true or false";
}

template <std::convertible_to<std::string_view> Text>
const char* store(ondemand::value value, std::string_view token, Text& text) {
  std::string_view view;
  const auto error = value.get_string().get(view);
  // Python's json writes half a surrogate pair as \ud800 and reads it back, but UTF-8 has no such
  // character. The text is then that of the line.
  const bool is_half_a_pair = error == simdjson::STRING_ERROR && token.size() >= 2 &&
                              escapes_are_json(token.substr(1, token.size() - 2));
  text = is_half_a_pair ? token.substr(1, token.size() - 2) : view;
  return is_half_a_pair || error == simdjson::SUCCESS ? nullptr : "a string";
}

template <class Value>
const char* store(ondemand::value value, std::string_view token, std::optional<Value>& place) {
  return store(value, token, place.emplace());
}

// On-demand parsing checks only the values that are read. The other values are walked here, so that
// a line is accepted only if all of it is JSON.
simdjson::error_code check_value(simdjson::simdjson_result<ondemand::value> result, int depth) {
  ondemand::value value;
  if (const auto error = depth > kMaxDepth ? simdjson::DEPTH_ERROR : result.get(value)) {
    return error;
  }
  const std::string_view token = token_of(value);
  if (token == "NaN" || token == "Infinity" || token == "-Infinity") {
    return simdjson::SUCCESS;  // Python's json writes and reads these
  }
  ondemand::array array;
  ondemand::object object;
  if (value.get_array().get(array) == simdjson::SUCCESS) {
    for (auto item : array) {
      if (const auto error = check_value(item, depth + 1)) {
        return error;
      }
    }
  } else if (value.get_object().get(object) == simdjson::SUCCESS) {
    for (auto field : object) {
      const auto key_error = field.unescaped_key().error();
      if (const auto error = key_error ? key_error : check_value(field.value(), depth + 1)) {
        return error;
      }
    }
  } else if (token != "null" && value.get_bool().error() != simdjson::SUCCESS &&
             value.get_double().error() != simdjson::SUCCESS) {
    return value.get_string().error();
  }
  return simdjson::SUCCESS;
}

// What read_message() needs. The texts of the message that it has read point into it.
struct Reading {
  ondemand::parser parser;
  std::string padded;  // the message, and bytes after it that the parser may read
};

// Reads `text` into the fields of `message`. Returns an error for a field that is missing or wrong,
// and for anything that is not JSON.
template <class Message>
Status read_message(Reading& reading, std::string_view text, Message& message) {
  std::string& padded = reading.padded;
  padded.assign(text).resize(text.size() + simdjson::SIMDJSON_PADDING);
  auto document = reading.parser.iterate(
      simdjson::padded_string_view(padded.data(), text.size(), padded.size()));
  ondemand::object object;
  if (const auto error = document.get_object().get(object)) {
    return not_json(error);
  }
  std::optional<int> version;
  unsigned seen = 0;
  for (auto field : object) {
    std::string_view key;
    ondemand::value value;
    const auto key_error = field.unescaped_key().get(key);
    if (const auto error = key_error ? key_error : field.value().get(value)) {
      return not_json(error);
    }
    const std::string_view token = token_of(value);
    const char* expected = nullptr;
    bool is_known = false;
    unsigned bit = 1;
    const auto read = [&](std::string_view name, auto& place) {
      if (key == name) {
        is_known = true;
        seen |= bit;
        expected = store(value, token, place);
      }
      bit <<= 1;
    };
    Message::visit(message, read);
    read("version", version);
    if (expected != nullptr) {
      return failure(fmt::format("{} is {}: expected {}", key,
                                 printable(token.substr(0, kTokenBytesQuoted)), expected));
    }
    using Checked = simdjson::simdjson_result<ondemand::value>;
    if (const auto error =
            is_known ? simdjson::SUCCESS : check_value(Checked(std::move(value)), 0)) {
      return not_json(error);
    }
  }
  // At the end there is no current location.
  if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
    return failure("more than one JSON object");
  }
  if (version != kVersion) {
    return failure(version ? fmt::format("version is {}: expected {}", *version, kVersion)
                           : "lacks the key 'version'");
  }
  if constexpr (std::is_same_v<Message, Request>) {
    const char* missing = nullptr;
    unsigned bit = 1;
    const auto check = [&]<class Place>(const char* name, const Place& /*place*/) {
      constexpr bool kIsRequired = std::is_same_v<Place, int> || std::is_same_v<Place, double> ||
                                   std::is_same_v<Place, std::string_view>;
      missing = kIsRequired && missing == nullptr && (seen & bit) == 0 ? name : missing;
      bit <<= 1;
    };
    Request::visit(message, check);
    if (missing != nullptr && !message.x_page) {
      return failure(fmt::format("lacks the key '{}'", missing));
    }
  }
  return {};
}

}  // namespace

struct Parser::State : Reading {};

Parser::Parser() : state_(std::make_unique<State>()) {
  // There is room for the longest line from the start, so parse() allocates nothing later. The
  // line's object, the value and the content of the innermost container are levels of their own.
  if (state_->parser.allocate(kMaxLineBytes, kMaxDepth + 4) != simdjson::SUCCESS) {
    throw std::bad_alloc();
  }
  state_->padded.reserve(kMaxLineBytes + simdjson::SIMDJSON_PADDING);
}

Parser::~Parser() = default;

Result<Request> Parser::parse(std::string_view line) {
  if (line.size() >= kMaxLineBytes) {
    return failure(fmt::format("a line of {} bytes: expected at most {} with its newline",
                               line.size() + 1, kMaxLineBytes));
  }
  if (line.find_first_not_of(" \t\r") == line.npos) {
    return failure("an empty line: expected a JSON object");
  }
  Request request;
  FILETIMER_TRY(read_message(*state_, line, request));
  if (request.x_page) {
    Request hint;
    hint.x_page = request.x_page;
    return hint;
  }
  if (request.x_timeout_s && !(*request.x_timeout_s > 0) && !request.is_release()) {
    return failure(fmt::format("x_timeout_s is {}: expected over 0", *request.x_timeout_s));
  }
  if (request.x_tid && *request.x_tid < 1) {
    return failure(fmt::format("x_tid is {}: expected over 0", *request.x_tid));
  }
  return request;
}

Result<Question> parse_question(std::string_view packet) {
  if (packet.size() > kMaxControlBytes) {
    return failure(fmt::format("a request of {} bytes or more: expected at most {}", packet.size(),
                               kMaxControlBytes));
  }
  Reading reading;
  Question question;
  question.wait_s = HUGE_VAL;
  FILETIMER_TRY(read_message(reading, packet, question));
  return question;
}

}  // namespace filetimer::wire
