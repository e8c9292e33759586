// Durations as people write and read them: `30`, `1.5`, `500ms`, `10m`, `inf`.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/result.hpp"

namespace filetimer {

enum class EndlessDuration { kRefused, kAllowed };

// Reads a positive duration: a decimal number with an optional unit of us, ms, s, m, h or d
// (seconds without one). `inf` and `-1` give kForever where an endless one is allowed.
// 0, other negatives, numbers over kMaxTimeout and anything else are errors that quote the word.
Result<Duration> parse_duration(std::string_view text,
                                EndlessDuration endless = EndlessDuration::kRefused);

// The exact value in one unit: "30s", "500ms", "inf" (and "7ns", which parse_duration does not
// take).
std::string duration_text(Duration duration);

// Three significant places in the unit a reader expects: "31.2 s", "4.50 ms", "2 h 05 min".
std::string duration_for_reading(Duration duration);

// Seconds as they stand on the wire, rounded to the nanosecond and never negative. Over
// kMaxTimeout, or not a number: endless.
Duration duration_from_seconds(double seconds);

}  // namespace filetimer
