// SPDX-License-Identifier: MIT
#include "timer_client/client/page/timeouts_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <limits>
#include <optional>
#include <string_view>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/text.hpp"
#include "timer_client/client/page/thread_slots.hpp"

// In a namespace of its own: a program that links this library may use another version of toml++.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 8
#define toml filetimer_toml
#include <toml++/toml.h>
#undef toml

namespace filetimer {
namespace {

namespace parser = filetimer_toml;

constexpr std::string_view kTimeout = "timeout";
constexpr std::string_view kFirstTimeout = "first_timeout";
constexpr const char* kExpectedTime =
    "expected a time such as \"2.5s\" or \"inf\", or seconds, at most 1000000000";

std::string place_of(const std::string& path, const parser::source_region& where) {
  return fmt::format("{}:{}:{}", printable(path), where.begin.line, where.begin.column);
}

// Each dot of a key makes a table within another one, and toml++ destroys tables recursively: a
// line with many would overflow the stack of the worker.
Status check_dots(const std::string& path, std::string_view text) {
  std::size_t line = 1;
  std::size_t dots = 0;
  for (const char byte : text) {
    line += byte == '\n' ? 1 : 0;
    dots = byte == '\n' ? 0 : dots + (byte == '.' ? 1 : 0);
    if (dots > kMaxDotsOfLine) {
      return failure(
          fmt::format("{}:{}: the line has more than {} dots: expected a scope name and "
                      "a timeout",
                      printable(path), line, kMaxDotsOfLine));
    }
  }
  return {};
}

Result<std::string> read_text(const std::string& path) {
  // O_NONBLOCK: opening a FIFO does not wait for its other end.
  const UniqueFd file = open_file(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY);
  struct stat st {};
  if (!file || ::fstat(file.get(), &st) != 0) {
    return system_error(fmt::format("cannot read the timeouts in '{}'", printable(path)));
  }
  if (!S_ISREG(st.st_mode)) {
    return failure(
        fmt::format("cannot read the timeouts in '{}': it is no regular file", printable(path)));
  }
  if (static_cast<std::uint64_t>(st.st_size) > kMaxTimeoutsFileBytes) {
    return failure(fmt::format("'{}' has {} bytes: expected timeouts in {} at most",
                               printable(path), st.st_size, kMaxTimeoutsFileBytes));
  }
  std::string text(static_cast<std::size_t>(st.st_size), '\0');
  if (!read_at(file.get(), text.data(), text.size(), 0)) {
    return system_error(fmt::format("cannot read the timeouts in '{}'", printable(path)));
  }
  return text;
}

// Returns nothing if the value is no time over 0, or is finite and over kMaxTimeout.
std::optional<Duration> time_in(const parser::node& value) {
  if (const auto* const text = value.as_string()) {
    const auto parsed = parse_duration(text->get(), EndlessDuration::kAllowed);
    return parsed ? std::optional(*parsed) : std::nullopt;
  }
  const auto seconds = value.is_number() ? value.value<double>() : std::nullopt;
  if (seconds == -1 || seconds == std::numeric_limits<double>::infinity()) {
    return kForever;
  }
  if (!seconds || !(*seconds > 0) || *seconds > in_seconds(kMaxTimeout)) {
    return std::nullopt;
  }
  const Duration time = duration_from_seconds(*seconds);
  return time > Duration::zero() ? std::optional(time) : std::nullopt;
}

// Returns the value as it is written in the file, for a message.
std::string quoted(const parser::node& value) {
  return value.visit([](const auto& node) -> std::string {
    if constexpr (parser::is_string<decltype(node)>) {
      return fmt::format("'{}'", printable(node.get()));
    } else if constexpr (parser::is_number<decltype(node)> || parser::is_boolean<decltype(node)>) {
      return fmt::format("'{}'", node.get());
    } else {
      return node.is_array() ? "a list" : node.is_table() ? "a table" : "a date";
    }
  });
}

tl::unexpected<Error> no_time(const std::string& path, std::string_view key,
                              const parser::node& value) {
  return failure(fmt::format("{}: '{}' is {}: {}", place_of(path, value.source()), printable(key),
                             quoted(value), kExpectedTime));
}

// Reads a table with the two times of a name.
Result<ReplacedTimeout> read_table(const std::string& path, std::string_view name,
                                   const parser::table& table) {
  ReplacedTimeout times;
  for (const auto& [key, value] : table) {
    if (key.str() != kTimeout && key.str() != kFirstTimeout) {
      return failure(
          fmt::format("{}: unknown key '{}' of '{}': expected {} or {} (a name with a dot needs "
                      "quotes)",
                      place_of(path, key.source()), printable(key.str()), printable(name), kTimeout,
                      kFirstTimeout));
    }
    const auto time = time_in(value);
    if (!time) {
      return no_time(path, fmt::format("{}.{}", name, key.str()), value);
    }
    (key.str() == kTimeout ? times.timeout : times.first_timeout) = *time;
  }
  return times;
}

}  // namespace

Result<ReplacedTimeouts> read_timeouts_file(const std::string& path) {
  const auto text = read_text(path);
  FILETIMER_TRY(text);
  FILETIMER_TRY(check_dots(path, *text));
  const parser::parse_result parsed = parser::parse(std::string_view(*text));
  if (!parsed) {
    return failure(fmt::format("{}: {}: expected TOML with a timeout for each scope name",
                               place_of(path, parsed.error().source()),
                               printable(parsed.error().description())));
  }
  ReplacedTimeouts timeouts;
  for (const auto& [key, value] : parsed.table()) {
    const std::string_view name = key.str();
    if (name.empty()) {
      return failure(fmt::format("{}: a name is empty: expected at least one byte",
                                 place_of(path, key.source())));
    }
    // As on the page, which cuts names that are too long.
    const std::string shown = shown_name(ScopeKey::of_name(name));
    if (const parser::table* const table = value.as_table()) {
      const auto times = read_table(path, name, *table);
      FILETIMER_TRY(times);
      timeouts.try_emplace(shown, *times);
    } else if (const auto time = time_in(value)) {
      timeouts.try_emplace(shown, ReplacedTimeout{.timeout = *time});
    } else {
      return no_time(path, name, value);
    }
  }
  return timeouts;
}

}  // namespace filetimer
