// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/log_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "common/clock.hpp"
#include "common/text.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

struct Event {
  std::string_view name;
  // The table leaves it out by default: `show` prints it with its expiry, or `list --stats` adds it
  // up.
  bool is_detail = false;
  std::array<std::string_view, 6> fields{};  // that say what happened
};
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

const Event& event_of(const Record& record) {
  const auto* const event = std::ranges::find(kEvents, record.event, &Event::name);
  return event == std::end(kEvents) ? kOtherEvent : *event;
}

std::string_view colour_of(const Record& record) {
  if (record.event == "expired") {
    return kYellow;
  }
  if (record.event == "killed") {
    return record.text("verdict") == "dead" ? "31" : kRed;
  }
  return record.event.starts_with("server_") ? "2" : "";
}

// Returns "11-21 03:15:53", and its zone behind that if it is not `zone`.
std::string short_time(const Integer& time_us, std::string_view zone) {
  if (!time_us) {
    return "";
  }
  const std::string whole = time_text(*time_us);  // "2026-11-21 03:15:53.000000 UTC"
  const std::string its_zone = whole.substr(whole.rfind(' '));
  return whole.substr(5, 14) + (its_zone.substr(1) == zone ? "" : its_zone);
}

}  // namespace

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

std::vector<std::string> known_events() {
  return mapped(kEvents, [](const Event& event) { return std::string(event.name); });
}

bool LogFilter::is_in_time(const Record& record) const {
  return (!since_us || (record.time_us && *record.time_us >= *since_us)) &&
         (!until_us || (record.time_us && *record.time_us <= *until_us));
}

bool LogFilter::admits(const Record& record) const {
  if (events.empty() ? event_of(record).is_detail && !with_details
                     : std::find(events.begin(), events.end(), record.event) == events.end()) {
    return false;
  }
  // The record of a name that was too long shows it cut and marked, and bytes that are no UTF-8
  // escaped.
  return (!scope || record.scope == *scope ||
          record.scope == bounded_scope_name(valid_utf8(*scope))) &&
         (!rank || record.rank == rank) && (!pid || record.pid == pid) &&
         (!host || record.host == *host) && is_in_time(record);
}

LogTable::LogTable(Output& out)
    : out_(out),
      zone_(zone_text(ClockReading::now().wall_ns / 1000)),
      table_({{.title = fmt::format("TIME ({})", zone_), .min_width = 14},
              {.title = "EVENT", .min_width = 13},
              {.title = "HOST", .is_left_out_if_same = true, .min_width = 8},
              {.title = "RANK", .align = Align::kRight, .min_width = 4},
              {.title = "PID", .align = Align::kRight, .min_width = 7},
              {.title = "SCOPE", .is_text = true, .min_width = 8},
              {.title = "ID", .min_width = 8},
              {.title = "WHAT", .is_text = true, .min_width = 4}},
             screen_of(out.fd())) {}

bool LogTable::add(const Record& record) {
  table_.add({{short_time(record.time_us, zone_)},
              {record.event, colour_of(record)},
              {record.host},
              {number_text(record.rank)},
              {number_text(record.pid)},
              {record.scope},
              {record.id.empty() ? record.incident : record.id},
              {in_few_words(record)}});
  return ++rows_ < kRowsFitted || print(Rows::kMoreCome);
}

bool LogTable::print(Rows rows) {
  rows_ = kRowsFitted;
  return out_.write(table_.text(rows));
}

}  // namespace filetimer::cli
