// The events of the log, and what their records say.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <span>

#include "timer_client/cli/log/reader.hpp"

namespace filetimer::cli {

struct Event {
  std::string_view name;
  // `log` leaves it out by default: `show` prints it with its expiry, or `list --stats` adds it up.
  bool is_detail = false;
  std::array<std::string_view, 6> fields{};  // that say what happened
};

// Returns every event that a log of schema 1 may hold.
std::span<const Event> known_events();
// Returns that of the record; of an unknown one, an event without a name.
const Event& event_of(const Record& record);

// Returns what a record says beyond who and when, in a few words.
std::string in_few_words(const Record& record);

}  // namespace filetimer::cli
