// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/events.hpp"

#include <algorithm>

#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr Event kOtherEvent{"", false, {"name", "reason"}};
constexpr Event kEvents[] = {
    {"server_started", false, {"version"}},
    {"server_stopped", false, {"expired", "killed", "reason"}},
    {"incident", true, {"expired", "workers"}},
    {"expired", false, {"timeout_s", "overdue_ms"}},
    {"evidence", true, {"state_name", "wchan"}},
    {"evidence_command",
     true,
     {"drop_in", "result", "name", "exit_status", "reason", "duration_ms"}},
    {"peer_evidence", true, {"state_name", "wchan"}},
    {"killed", false, {"verdict", "reason"}},
    {"warned", false, {"elapsed_s", "timeout_s", "reason"}},
    {"deferred", false, {"reason", "given_s"}},
    {"released_late", false, {"late_ms", "reason"}},
    {"left_open", false, {"elapsed_s", "timeout_s"}},
    {"worker_ended", true, {}},
    {"hook", false, {"result", "name", "exit_status", "reason", "duration_ms"}},
    {"rejected", false, {"count", "reason"}},
    {"rendezvous", false, {"name", "reason"}},
    {"rendezvous_timeout", false, {"name", "reason"}}};

}  // namespace

std::span<const Event> known_events() {
  return kEvents;
}

const Event& event_of(const Record& record) {
  const auto* const event = std::ranges::find(kEvents, record.event, &Event::name);
  return event == std::end(kEvents) ? kOtherEvent : *event;
}

std::string in_few_words(const Record& record) {
  const Number dead_after_ms = record.number("dead_after_ms");
  std::vector<std::string> parts;
  for (const std::string_view key : event_of(record).fields) {
    if (key.empty()) {
      break;
    }
    const bool is_word = key == "verdict" || key == "result";
    const bool is_usual = (key == "result" && record.text(key) == "exited") ||
                          (key == "count" && record.integer(key) == 1);
    if (key == "verdict" && dead_after_ms) {
      parts.push_back("dead after " + seconds_text(*dead_after_ms / 1e3));
    } else if (!is_usual) {
      parts.push_back(is_word ? with_spaces(record.text(key)) : field_text(record.fields, key));
    }
  }
  return joined(parts);
}

}  // namespace filetimer::cli
