// SPDX-License-Identifier: MIT
#include "common/wire_parser.hpp"

#include <fmt/format.h>
#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>

#include "common/limits.hpp"
#include "common/text.hpp"

namespace filetimer::wire {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr int kMaxDepth = 16;  // of a value under an unknown key
constexpr std::size_t kTokenBytesQuoted = 40;

// Returns the text of the value, without the white space after it.
std::string_view token_of(ondemand::value value) {
  std::string_view token = value.raw_json_token();
  const std::size_t end = token.find_last_not_of(" \t\r\n");
  return end == std::string_view::npos ? std::string_view{} : token.substr(0, end + 1);
}

tl::unexpected<Error> wrong_value(std::string_view key, std::string_view token,
                                  std::string_view expected) {
  return failure(fmt::format("{} is {}: expected {}", key,
                             printable(token.substr(0, kTokenBytesQuoted)), expected));
}

tl::unexpected<Error> not_json(simdjson::error_code code) {
  return failure(fmt::format("not one JSON object: {}", simdjson::error_message(code)));
}

Result<int> read_int(std::string_view key, ondemand::value value, int low, int high) {
  const std::string_view token = token_of(value);
  std::int64_t number = 0;
  if (value.get_int64().get(number) != simdjson::SUCCESS) {
    return wrong_value(key, token, "an integer");
  }
  if (number < low || number > high) {
    return wrong_value(key, token, fmt::format("an integer from {} to {}", low, high));
  }
  return static_cast<int>(number);
}

// Reads a number as Python's json does: with the bare words Infinity and -Infinity, and with
// numbers too large for a double as infinite.
Result<double> read_number(std::string_view key, ondemand::value value) {
  const std::string_view token = token_of(value);
  if (token == "Infinity") {
    return HUGE_VAL;
  }
  if (token == "-Infinity") {
    return -HUGE_VAL;
  }
  double number = 0;
  if (value.get_double().get(number) == simdjson::SUCCESS) {
    return number;
  }
  const bool numeric = !token.empty() && token.find_first_not_of("+-.0123456789eE") == token.npos;
  const std::string copy(token);
  char* end = nullptr;
  number = numeric ? std::strtod(copy.c_str(), &end) : 0;
  if (!numeric || end != copy.c_str() + copy.size() || !std::isinf(number)) {
    return wrong_value(key, token, "a number");
  }
  return number;
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

Result<bool> read_bool(std::string_view key, ondemand::value value) {
  const std::string_view token = token_of(value);
  bool flag = false;
  if (value.get_bool().get(flag) != simdjson::SUCCESS) {
    return wrong_value(key, token, "true or false");
  }
  return flag;
}

Result<std::string_view> read_string(std::string_view key, ondemand::value value) {
  const std::string_view token = token_of(value);
  std::string_view text;
  switch (value.get_string().get(text)) {
    case simdjson::SUCCESS:
      return text;
    case simdjson::STRING_ERROR:
      // Python's json writes half a surrogate pair as \ud800 and reads it back, but UTF-8 has no
      // such character. The name is then the text of the line.
      if (token.size() >= 2 && escapes_are_json(token.substr(1, token.size() - 2))) {
        return token.substr(1, token.size() - 2);
      }
      [[fallthrough]];
    default:
      return wrong_value(key, token, "a string");
  }
}

// On-demand parsing checks only the values that are read. The other values are walked here, so that
// a line is accepted only if all of it is JSON.
simdjson::error_code check_value(ondemand::value value, int depth) {
  if (depth > kMaxDepth) {
    return simdjson::DEPTH_ERROR;
  }
  const std::string_view token = token_of(value);
  if (token == "NaN" || token == "Infinity" || token == "-Infinity") {
    return simdjson::SUCCESS;  // Python's json writes and reads these
  }
  ondemand::json_type type{};
  if (const auto error = value.type().get(type)) {
    return error;
  }
  switch (type) {
    case ondemand::json_type::array: {
      ondemand::array array;
      if (const auto error = value.get_array().get(array)) {
        return error;
      }
      for (auto item : array) {
        ondemand::value element;
        if (const auto error = item.get(element)) {
          return error;
        }
        if (const auto error = check_value(element, depth + 1)) {
          return error;
        }
      }
      return simdjson::SUCCESS;
    }
    case ondemand::json_type::object: {
      ondemand::object object;
      if (const auto error = value.get_object().get(object)) {
        return error;
      }
      for (auto field : object) {
        ondemand::value element;
        if (const auto error = field.unescaped_key().error()) {
          return error;
        }
        if (const auto error = field.value().get(element)) {
          return error;
        }
        if (const auto error = check_value(element, depth + 1)) {
          return error;
        }
      }
      return simdjson::SUCCESS;
    }
    case ondemand::json_type::number:
      return value.get_double().error();
    case ondemand::json_type::string:
      return value.get_string().error();
    case ondemand::json_type::boolean:
      return value.get_bool().error();
    case ondemand::json_type::null:
      return token == "null" ? simdjson::SUCCESS : simdjson::N_ATOM_ERROR;
  }
  return simdjson::INCORRECT_TYPE;
}

// Checks the value of an unknown key.
Status walk(ondemand::value value) {
  if (const auto error = check_value(value, 0)) {
    return not_json(error);
  }
  return {};
}

// Moves a value into its place, or returns its error.
template <class Value, class Place>
Status store(Result<Value> value, Place& place) {
  FILETIMER_TRY(value);
  place = *value;
  return {};
}

enum Seen : unsigned { kVersionSeen = 1, kPid = 2, kScope = 4, kExpiration = 8, kSignal = 16 };

constexpr std::pair<Seen, std::string_view> kRequired[] = {{kVersionSeen, "version"},
                                                           {kPid, "pid"},
                                                           {kScope, "scope_id"},
                                                           {kExpiration, "expiration_time"},
                                                           {kSignal, "signal"}};

constexpr int kIntMin = std::numeric_limits<int>::min();
constexpr int kIntMax = std::numeric_limits<int>::max();

Status read_field(std::string_view key, ondemand::value value, Request& request, unsigned& seen) {
  if (key == "version") {
    seen |= kVersionSeen;
    auto version = read_int(key, value, kIntMin, kIntMax);
    if (version && *version != kVersion) {
      return failure(fmt::format("version is {}: expected {}", *version, kVersion));
    }
    return version ? Status{} : tl::unexpected<Error>(std::move(version.error()));
  }
  if (key == "pid") {
    seen |= kPid;
    return store(read_int(key, value, kIntMin, kIntMax), request.pid);
  }
  if (key == "scope_id") {
    seen |= kScope;
    return store(read_string(key, value), request.scope_id);
  }
  if (key == "expiration_time") {
    seen |= kExpiration;
    return store(read_number(key, value), request.expiration_time);
  }
  if (key == "signal") {
    seen |= kSignal;
    return store(read_int(key, value, kIntMin, kIntMax), request.signal);
  }
  if (key == "x_timeout_s") {
    return store(read_number(key, value), request.x_timeout_s);
  }
  if (key == "x_grace_s") {
    return store(read_number(key, value), request.x_grace_s);
  }
  if (key == "x_soft_s") {
    return store(read_number(key, value), request.x_soft_s);
  }
  if (key == "x_tid") {
    return store(read_int(key, value, 1, kIntMax), request.x_tid);
  }
  if (key == "x_scope") {
    return store(read_string(key, value), request.x_scope);
  }
  if (key == "x_whole_process") {
    return store(read_bool(key, value), request.x_whole_process);
  }
  if (key == "x_signal_first") {
    return store(read_bool(key, value), request.x_signal_first);
  }
  if (key == "x_page") {
    return store(read_string(key, value), request.x_page);
  }
  return walk(value);
}

}  // namespace

struct Parser::State {
  ondemand::parser parser;
};

Parser::Parser() : state_(std::make_unique<State>()) {
  // There is room for the longest line from the start, so parse() allocates nothing later. The
  // line's object, the value and the content of the innermost container are levels of their own.
  if (state_->parser.allocate(kMaxLineBytes, kMaxDepth + 4) != simdjson::SUCCESS) {
    throw std::bad_alloc();
  }
}

Parser::~Parser() = default;

std::size_t Parser::padding() {
  return simdjson::SIMDJSON_PADDING;
}

Result<Request> Parser::parse(std::string_view line) {
  if (line.size() >= kMaxLineBytes) {
    return failure(fmt::format("a line of {} bytes: expected at most {} with its newline",
                               line.size() + 1, kMaxLineBytes));
  }
  if (line.find_first_not_of(" \t\r") == line.npos) {
    return failure("an empty line: expected a JSON object");
  }
  ondemand::document document;
  if (const auto error = state_->parser
                             .iterate(simdjson::padded_string_view(line.data(), line.size(),
                                                                   line.size() + padding()))
                             .get(document)) {
    return not_json(error);
  }
  ondemand::object object;
  if (document.get_object().get(object) != simdjson::SUCCESS) {
    return failure("not a JSON object");
  }
  Request request;
  unsigned seen = 0;
  for (auto field : object) {
    std::string_view key;
    if (const auto error = field.unescaped_key().get(key)) {
      return not_json(error);
    }
    ondemand::value value;
    if (const auto error = field.value().get(value)) {
      return not_json(error);
    }
    FILETIMER_TRY(read_field(key, value, request, seen));
  }
  // At the end there is no current location.
  if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
    return failure("more than one JSON object on a line");
  }
  if (request.x_page && (seen & kVersionSeen) != 0) {
    Request hint;
    hint.x_page = request.x_page;
    return hint;
  }
  for (const auto& [bit, key] : kRequired) {
    if ((seen & bit) == 0) {
      return failure(fmt::format("lacks the key '{}'", key));
    }
  }
  if (request.is_from_own_client() && std::isnan(*request.x_timeout_s)) {
    return failure("x_timeout_s is NaN: expected a number");
  }
  return request;
}

}  // namespace filetimer::wire
