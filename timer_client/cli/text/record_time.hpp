// The wall-clock times of records: read from RFC 3339 text, and shown to people. Records hold UTC
// and people are shown UTC, so that the logs of several hosts can be laid side by side.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.hpp"

namespace filetimer::cli {

// Microseconds since the epoch, of "2026-11-21T03:15:53.123456Z" or with an offset such as +01:00.
// Digits behind the microseconds are dropped. Nothing for anything else.
std::optional<std::int64_t> parse_rfc3339(std::string_view text);

// What `--since` takes: such a time, or a duration back from `now_us` (`10m`).
Result<std::int64_t> parse_since(std::string_view text, std::int64_t now_us);

// "2026-11-21" and "03:15:53", in UTC.
std::string day_of(std::int64_t time_us);
std::string time_of_day(std::int64_t time_us);
// "2026-11-21 03:15:53.123456 UTC"
std::string long_time(std::int64_t time_us);

// "30.0 s", "412 us"; of a number that a record holds, so of any size.
std::string seconds_text(double seconds);
// A timeout as it was asked for. A deadline on the pipe is a time of day, so the record knows it
// only up to the time that the request took: 29.9998 s was 30 s.
double as_asked(double seconds);
// The timeout of a scope as it was asked for: "30 s", "1.5 s", "500 ms", "10 min".
std::string timeout_text(double seconds);

}  // namespace filetimer::cli
