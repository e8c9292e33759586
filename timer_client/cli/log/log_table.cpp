// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/log_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/clock.hpp"
#include "common/text.hpp"
#include "timer_client/cli/log/evidence_page.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::array<std::string_view, 17> kEvents = {
    "server_started",   "server_stopped",    "incident",     "expired", "evidence",
    "evidence_command", "peer_evidence",     "killed",       "warned",  "deferred",
    "released_late",    "left_open",         "worker_ended", "hook",    "rejected",
    "rendezvous",       "rendezvous_timeout"};

enum ColumnIndex { kTime, kEvent, kHost, kRank, kPid, kScope, kId, kWhat };

// Returns whether the table leaves the event out by default: `show` prints these events with their
// expiry, and `list --stats` adds them up.
bool is_detail(std::string_view event) {
  return event == "incident" || event == "evidence" || event == "evidence_command" ||
         event == "peer_evidence" || event == "worker_ended";
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

std::string seconds_of(const Record& record, std::string_view key) {
  const Number seconds = record.number(key);
  return seconds ? seconds_text(*seconds) : "";
}

std::string late_text(const Record& record, std::string_view key) {
  const Number late_ms = record.number(key);
  return late_ms ? seconds_text(*late_ms / 1e3) + " late" : "";
}

// Returns "29.6 s of 30 s".
std::string elapsed_of_timeout(const Record& record) {
  return joined({seconds_of(record, "elapsed_s"), seconds_of(record, "timeout_s")}, " of ");
}

// Returns "3 expired" of a number, or of a list of three.
std::string count_of(const Record& record, std::string_view key, std::string_view what) {
  simdjson::dom::element value;
  simdjson::dom::array listed;
  if (record.fields.at_key(key).get(value) != simdjson::SUCCESS) {
    return "";
  }
  const Integer count = value.get_array().get(listed) == simdjson::SUCCESS
                            ? static_cast<std::int64_t>(listed.size())
                            : as_integer(value);
  return count ? fmt::format("{} {}", *count, what) : "";
}

std::string what_killed(const Record& record) {
  const std::string verdict = record.text("verdict");
  if (verdict != "dead") {
    return joined({with_spaces(verdict), record.text("reason")});
  }
  const Number after_ms = record.number("dead_after_ms");
  return after_ms ? "dead after " + seconds_text(*after_ms / 1e3) : verdict;
}

std::string what_rejected(const Record& record) {
  const Integer count = record.integer("count");
  return count && *count != 1 ? fmt::format("{} x {}", *count, record.text("reason"))
                              : record.text("reason");
}

struct Wording {
  std::string_view event;
  std::string (*of)(const Record&);
};
constexpr Wording kWordings[] = {
    {"expired",
     [](const Record& r) {
       return joined({seconds_of(r, "timeout_s"), late_text(r, "overdue_ms")});
     }},
    {"killed", what_killed},
    {"left_open",
     [](const Record& r) {
       return joined({elapsed_of_timeout(r), "worker ended"});
     }},
    {"worker_ended", [](const Record& r) { return count_of(r, "scopes", "scope names"); }},
    {"released_late",
     [](const Record& r) {
       return r.number("late_ms") ? late_text(r, "late_ms") : r.text("reason");
     }},
    {"warned",
     [](const Record& r) {
       return joined({elapsed_of_timeout(r), r.text("reason")});
     }},
    {"deferred",
     [](const Record& r) {
       const std::string late = seconds_of(r, "late_s");
       const std::string given = seconds_of(r, "given_s");
       return joined({r.text("reason"), late.empty() ? "" : late + " late",
                      given.empty() ? "" : "given " + given});
     }},
    {"hook", command_end_text},
    {"evidence_command",
     [](const Record& r) {
       return joined({r.text("drop_in"), command_end_text(r)}, ": ");
     }},
    {"rejected", what_rejected},
    {"server_started",
     [](const Record& r) {
       const std::string version = r.text("version");
       return version.empty() ? "" : "version " + version;
     }},
    {"server_stopped",
     [](const Record& r) {
       return joined(
           {count_of(r, "expired", "expired"), count_of(r, "killed", "killed"), r.text("reason")});
     }},
    {"incident",
     [](const Record& r) {
       return joined({count_of(r, "expired", "expired"), count_of(r, "workers", "workers")});
     }},
    {"evidence", [](const Record& r) {
       return joined({r.text("state_name"), r.text("wchan")}, " in ");
     }}};

// Returns "11-21 03:15:53".
std::string short_time(const Integer& time_us) {
  return time_us ? time_text(*time_us).substr(5, 14) : "";
}

}  // namespace

std::string in_few_words(const Record& record) {
  for (const Wording& wording : kWordings) {
    if (record.event == wording.event) {
      return wording.of(record);
    }
  }
  return joined({record.text("name"), record.text("reason")});
}

std::span<const std::string_view> known_events() {
  return kEvents;
}

bool LogFilter::is_in_time(const Record& record) const {
  return (!since_us || (record.time_us && *record.time_us >= *since_us)) &&
         (!until_us || (record.time_us && *record.time_us <= *until_us));
}

bool LogFilter::admits(const Record& record) const {
  if (events.empty() ? is_detail(record.event) && !with_details
                     : std::find(events.begin(), events.end(), record.event) == events.end()) {
    return false;
  }
  // The record of a name that was too long shows it cut and marked.
  return (!scope || record.scope == *scope || record.scope == bounded_scope_name(*scope)) &&
         (!rank || record.rank == rank) && (!pid || record.pid == pid) &&
         (!host || record.host == *host) && is_in_time(record);
}

LogTable::LogTable(Output& out)
    : out_(out),
      table_({{.title = fmt::format("TIME ({})", zone_text(ClockReading::now().wall_ns / 1000)),
               .min_width = 14},
              {.title = "EVENT", .min_width = 13},
              {.title = "HOST", .is_left_out_if_same = true, .min_width = 8},
              {.title = "RANK", .align = Align::kRight, .min_width = 4},
              {.title = "PID", .align = Align::kRight, .min_width = 7},
              {.title = "SCOPE", .is_text = true, .min_width = 8},
              {.title = "ID", .min_width = 8},
              {.title = "WHAT", .is_text = true, .min_width = 4}},
             screen_of(out.fd())) {}

bool LogTable::add(const Record& record) {
  const std::string time = short_time(record.time_us);
  const std::string rank = number_text(record.rank);
  const std::string pid = number_text(record.pid);
  const std::string what = in_few_words(record);
  const Cell row[] = {{time},
                      {record.event, colour_of(record)},
                      {record.host},
                      {rank},
                      {pid},
                      {record.scope},
                      {record.id.empty() ? record.incident : record.id},
                      {what}};
  if (has_begun_) {
    line_.clear();
    table_.add_line(row, line_);
    return out_.write(line_);
  }
  table_.add(row);
  if (++rows_ == kRowsFitted) {
    begin();
  }
  return true;
}

void LogTable::begin() {
  if (!std::exchange(has_begun_, true)) {
    out_.write(table_.text(Rows::kMoreCome));
  }
}

void LogTable::end() {
  if (!std::exchange(has_begun_, true)) {
    out_.write(table_.text());
  }
}

}  // namespace filetimer::cli
