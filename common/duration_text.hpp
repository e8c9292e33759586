// Durations as text: `30`, `1.5`, `500ms`, `10m`, `inf`.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/result.hpp"

namespace filetimer {

enum class EndlessDuration { kRefused, kAllowed };

// Returns a positive duration: a decimal number with an optional unit of us, ms, s, m, h or d
// (seconds without one). `inf` and `-1` are kForever if an endless duration is allowed. Any other
// text, and durations over kMaxTimeout, are errors that quote the word.
Result<Duration> parse_duration(std::string_view text,
                                EndlessDuration endless = EndlessDuration::kRefused);

// Returns the exact value in one unit: "30s", "500ms", "inf", or "7ns", which parse_duration
// refuses.
std::string duration_text(Duration duration);

// Returns three significant places in the unit that a reader expects: "31.2 s", "4.50 ms",
// "2 h 05 min". A whole number has no decimals, so a timeout reads as it was requested: "30 s", "2
// h".
std::string duration_for_reading(Duration duration);

// Returns seconds of the wire, rounded to the nanosecond, at least 0. Over kMaxTimeout, or not a
// number: kForever.
Duration duration_from_seconds(double seconds);

}  // namespace filetimer
