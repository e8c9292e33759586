// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/log_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/scope_name.hpp"
#include "timer_client/cli/text/phrases.hpp"
#include "timer_client/cli/text/record_time.hpp"

namespace filetimer::cli {
namespace {

constexpr std::array<std::string_view, 15> kEvents = {
    "server_started", "server_stopped", "incident", "expired",       "evidence",
    "killed",         "warned",         "deferred", "released_late", "left_open",
    "worker_ended",   "hook",           "rejected", "rendezvous",    "rendezvous_timeout"};

// Long, and of use elsewhere: beside the expiry that they belong to, where `show` puts them, and
// added up by `list --stats`.
constexpr bool is_detail(std::string_view event) {
  return event == "incident" || event == "evidence" || event == "worker_ended";
}

std::string_view colour_of(const Record& record) {
  if (record.event == "expired") {
    return "1;33";
  }
  if (record.event == "killed") {
    return record.verdict == "dead" ? "31" : "1;31";
  }
  if (record.event.starts_with("server_")) {
    return "2";
  }
  return {};
}

// "30.0/30 s", "1.52/2 h": the unit is that of the timeout.
std::string elapsed_of_timeout(const Record& record) {
  if (!record.elapsed_s) {
    return record.timeout_s ? "of " + timeout_text(*record.timeout_s) : "";
  }
  if (!record.timeout_s) {
    return seconds_text(*record.elapsed_s);
  }
  const double timeout = as_asked(*record.timeout_s);
  const auto [unit, scale] = timeout >= 7200  ? std::pair("h", 3600.0)
                             : timeout >= 600 ? std::pair("min", 60.0)
                             : timeout >= 1   ? std::pair("s", 1.0)
                                              : std::pair("ms", 1e-3);
  const double elapsed = *record.elapsed_s / scale;
  const int places = elapsed >= 100 ? 0 : elapsed >= 10 ? 1 : 2;
  return fmt::format("{:.{}f}/{:.6g} {}", elapsed, places, timeout / scale, unit);
}

std::string counted(const std::optional<std::int64_t>& count, std::string_view what) {
  return count ? fmt::format("{} {}", *count, what) : std::string();
}

// Shorter than elsewhere: it shares the narrowest column with the elapsed time.
std::string late_text(const std::optional<double>& late_ms) {
  if (!late_ms) {
    return {};
  }
  return *late_ms < 10 && *late_ms >= 1 ? fmt::format("{:.1f} ms late", *late_ms)
                                        : seconds_text(*late_ms / 1e3) + " late";
}

// "already_gone" -> "already gone"
std::string with_spaces(std::string word) {
  std::replace(word.begin(), word.end(), '_', ' ');
  return word;
}

std::string what_killed(const Record& record) {
  if (record.verdict == "dead") {
    return record.dead_after_ms ? "dead after " + seconds_text(*record.dead_after_ms / 1e3)
                                : "dead";
  }
  return joined({with_spaces(record.verdict), record.reason}, ", ");
}

std::string what_warned(const Record& record) {
  if (!record.granted_s) {
    return joined({elapsed_of_timeout(record), record.reason}, ", ");
  }
  return fmt::format("asked {}, got {}",
                     record.asked_s ? timeout_text(*record.asked_s) : "no deadline",
                     timeout_text(*record.granted_s));
}

std::string what_deferred(const Record& record) {
  return joined({record.reason, record.late_s ? seconds_text(*record.late_s) + " late" : "",
                 record.given_s ? "given " + seconds_text(*record.given_s) : ""},
                ", ");
}

std::string what_hook_did(const Record& record) {
  return joined(
      {record.result == "exited" ? "" : with_spaces(record.result), record.name,
       record.exit_status ? fmt::format("exit status {}", *record.exit_status) : "", record.reason},
      ", ");
}

std::string integer_text(const std::optional<std::int64_t>& number) {
  return number ? fmt::format("{}", *number) : std::string();
}

// "11-21"
std::string month_and_day(std::int64_t time_us) {
  return day_of(time_us).substr(5);
}

bool are_of_one_day(std::span<const Record> records) {
  return !records.empty() && std::all_of(records.begin(), records.end(), [&](const Record& record) {
    return record.time_us && records[0].time_us &&
           day_of(*record.time_us) == day_of(*records[0].time_us);
  });
}

std::vector<Column> columns_for(const std::string& time_title, const TableUse& use) {
  const auto room = [&use](std::size_t width) { return use.followed ? width : 0; };
  const bool name_host = use.followed && use.several_files;
  return {{.title = time_title, .min_width = room(14)},
          {.title = "EVENT", .runs_over = true, .min_width = room(9)},
          {.title = "HOST",
           .free_text = true,
           .is_name = true,
           .hidden_if_same = !name_host,
           .min_width = name_host ? std::size_t{8} : 0},
          {.title = "RANK", .align = Align::kRight, .min_width = room(4)},
          {.title = "PID", .align = Align::kRight, .min_width = room(6)},
          {.title = "SCOPE", .free_text = true, .min_width = room(8)},
          {.title = "ID", .min_width = room(8)},
          {.title = "WHAT", .free_text = true, .starts_early = true, .min_width = room(4)}};
}

}  // namespace

std::string in_few_words(const Record& record) {
  const std::string& event = record.event;
  if (event == "expired") {
    return joined({elapsed_of_timeout(record), late_text(record.overdue_ms)}, ", ");
  }
  if (event == "killed") {
    return what_killed(record);
  }
  if (event == "left_open") {
    return joined({elapsed_of_timeout(record), "worker ended"}, ", ");
  }
  if (event == "worker_ended") {
    return counted(record.scopes, record.scopes == 1 ? "scope name" : "scope names");
  }
  if (event == "released_late") {
    return record.late_ms ? late_text(record.late_ms) : record.reason;
  }
  if (event == "warned") {
    return what_warned(record);
  }
  if (event == "deferred") {
    return what_deferred(record);
  }
  if (event == "hook") {
    return what_hook_did(record);
  }
  if (event == "rejected") {
    return record.count && *record.count != 1 ? fmt::format("{} x {}", *record.count, record.reason)
                                              : record.reason;
  }
  if (event == "server_started") {
    return record.version.empty() ? "" : "version " + record.version;
  }
  if (event == "server_stopped") {
    return joined(
        {counted(record.expired, "expired"), counted(record.killed, "killed"), record.reason},
        ", ");
  }
  if (event == "incident") {
    return joined({counted(record.expired, "expired"), counted(record.workers, "workers")}, ", ");
  }
  if (event == "evidence") {
    return record.wchan.empty() ? record.state_name
                                : fmt::format("{} in {}", record.state_name, record.wchan);
  }
  return joined({record.name, record.reason}, ", ");
}

std::span<const std::string_view> known_events() {
  return kEvents;
}

bool is_known_event(std::string_view event) {
  return std::find(kEvents.begin(), kEvents.end(), event) != kEvents.end();
}

bool LogFilter::is_late_enough(const Record& record) const {
  return !since_us || (record.time_us && *record.time_us >= *since_us);
}

bool LogFilter::is_narrow() const {
  return !events.empty() || scope || rank || pid || host;
}

bool LogFilter::admits(const Record& record) const {
  if (events.empty() ? is_detail(record.event) && !with_details
                     : std::find(events.begin(), events.end(), record.event) == events.end()) {
    return false;
  }
  // The record of a name that was too long shows it cut and marked.
  return (!scope || record.scope == *scope || record.scope == bounded_scope_name(*scope)) &&
         (!rank || record.rank == rank) && (!pid || record.pid == pid) &&
         (!host || record.host == *host) && is_late_enough(record);
}

LogTable::LogTable(std::span<const Record> records, const TableUse& use)
    : one_day_(!use.followed && are_of_one_day(records)),
      table_(
          columns_for(one_day_ ? month_and_day(*records[0].time_us) + " UTC" : "TIME (UTC)", use),
          use.colour) {
  for (const Record& record : records) {
    table_.add(row(record));
  }
}

Row LogTable::row(const Record& record) const {
  std::string time;
  if (record.time_us) {
    time = one_day_ ? time_of_day(*record.time_us)
                    : month_and_day(*record.time_us) + " " + time_of_day(*record.time_us);
  }
  return {{time},
          {record.event, colour_of(record)},
          {record.host},
          {integer_text(record.rank)},
          {integer_text(record.pid)},
          {record.scope},
          {record.id.empty() ? record.incident : record.id},
          {in_few_words(record)}};
}

}  // namespace filetimer::cli
