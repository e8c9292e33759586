// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/log_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "common/scope_name.hpp"
#include "timer_client/cli/log/command_output.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::array<std::string_view, 17> kEvents = {
    "server_started",   "server_stopped",    "incident",     "expired", "evidence",
    "evidence_command", "peer_evidence",     "killed",       "warned",  "deferred",
    "released_late",    "left_open",         "worker_ended", "hook",    "rejected",
    "rendezvous",       "rendezvous_timeout"};

enum ColumnIndex { kTime, kEvent, kHost, kRank, kPid, kScope, kId, kWhat };

// Long, and of use elsewhere: beside the expiry that they belong to, where `show` puts them, and
// added up by `list --stats`.
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

// "29.6 s of 30 s"
std::string elapsed_of_timeout(const Record& record) {
  return joined({seconds_of(record, "elapsed_s"), seconds_of(record, "timeout_s")}, " of ");
}

// Of what a record counts, or lists.
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

std::string what_hook_did(const Record& record) {
  const std::string result = record.text("result");
  const Integer status = record.integer("exit_status");
  return joined({result == "exited" ? "" : with_spaces(result), record.text("name"),
                 status ? fmt::format("exit status {}", *status) : "", record.text("reason")});
}

std::string what_rejected(const Record& record) {
  const Integer count = record.integer("count");
  return count && *count != 1 ? fmt::format("{} x {}", *count, record.text("reason"))
                              : record.text("reason");
}

struct Words {
  std::string_view event;
  std::string (*of)(const Record&);
};
constexpr Words kWords[] = {
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
    {"hook", what_hook_did},
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

// --- times ---

constexpr std::int64_t kDayUs = 86'400'000'000;

// The day of a time before 1970 is the one that it is in, too.
std::int64_t day_of(std::int64_t time_us) {
  return (time_us - (time_us < 0 ? kDayUs - 1 : 0)) / kDayUs;
}

void write_integer(std::string& out, const Integer& number) {
  out.clear();
  if (number) {
    const fmt::format_int digits(*number);
    out.append(digits.data(), digits.size());
  }
}

}  // namespace

std::string in_few_words(const Record& record) {
  for (const Words& words : kWords) {
    if (record.event == words.event) {
      return words.of(record);
    }
  }
  return joined({record.text("name"), record.text("reason")});
}

std::span<const std::string_view> known_events() {
  return kEvents;
}

bool LogFilter::is_late_enough(const Record& record) const {
  return !since_us || (record.time_us && *record.time_us >= *since_us);
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

void LogTable::fill_row(const Record& record) {
  row_.day.reset();
  row_.time.clear();
  if (record.time_us) {
    row_.day = day_of(*record.time_us);
    if (row_.day != date_day_) {
      date_day_ = row_.day;
      date_ = time_text(*record.time_us).substr(5, 5);
    }
    const auto seconds = static_cast<int>((*record.time_us - *row_.day * kDayUs) / 1'000'000);
    row_.time = table_ ? date_ + ' ' : "";
    for (const int part : {seconds / 3600, seconds / 60 % 60, seconds % 60}) {
      row_.time += static_cast<char>('0' + part / 10);
      row_.time += static_cast<char>('0' + part % 10);
      row_.time += ':';
    }
    row_.time.pop_back();
  }
  row_.host = table_ ? short_host(record.host) : std::string(record.host);
  write_integer(row_.rank, record.rank);
  write_integer(row_.pid, record.pid);
  row_.what = in_few_words(record);
  row_.cells = {Cell{row_.time},
                {record.event, colour_of(record)},
                {row_.host},
                {row_.rank},
                {row_.pid},
                {record.scope},
                {record.id.empty() ? record.incident : record.id},
                {row_.what}};
}

bool LogTable::add(const Record& record) {
  fill_row(record);
  if (table_) {
    line_.clear();
    table_->add_line(row_.cells, line_);
    return out_.write(line_);
  }
  Kept& kept = kept_.emplace_back();
  std::transform(row_.cells.begin(), row_.cells.end(), kept.texts.begin(),
                 [](const Cell& cell) { return std::string(cell.text); });
  kept.texts[kTime].insert(0, row_.day ? date_ + ' ' : "");
  kept.colour = row_.cells[kEvent].colour;
  kept.day = row_.day;
  if (kept_.size() == kRowsFitted) {
    has_end_ = false;
    begin();
  }
  return true;
}

bool LogTable::are_of_one_day() const {
  return !kept_.empty() && kept_[0].day &&
         std::all_of(kept_.begin(), kept_.end(),
                     [&](const Kept& kept) { return kept.day == kept_[0].day; });
}

// Numbered hosts differ at the end of their names.
std::size_t LogTable::fit_hosts() {
  constexpr std::size_t kLongName = 12;
  constexpr std::size_t kWidestHost = 24;
  std::set<std::string_view> hosts;
  std::size_t longest = 0;
  for (const Kept& kept : kept_) {
    const std::string_view host = kept.texts[kHost];
    host_prefix_ = hosts.empty() ? host : host_prefix_;
    if (!host.empty() && hosts.insert(host).second) {
      longest = std::max(longest, host.size());
      host_prefix_.erase(std::ranges::mismatch(host_prefix_, host).in1, host_prefix_.end());
    }
  }
  // A number stays whole, and a short beginning is not worth its mark.
  host_prefix_.resize(host_prefix_.find_last_not_of("0123456789") + 1);
  if (longest <= kLongName || host_prefix_.size() <= kDots.size()) {
    host_prefix_.clear();
  }
  const std::size_t mark = host_prefix_.empty() ? 0 : kDots.size();
  return hosts.size() < 2 ? 0 : std::min(longest - host_prefix_.size() + mark, kWidestHost);
}

std::string LogTable::short_host(std::string_view host) const {
  return host_prefix_.empty() || !host.starts_with(host_prefix_)
             ? std::string(host)
             : std::string(kDots).append(host.substr(host_prefix_.size()));
}

std::vector<Column> LogTable::columns(std::size_t host_width) const {
  const auto room = [this](std::size_t width) { return has_end_ ? 0 : width; };
  const std::size_t host_room = std::max(host_width, several_files_ ? room(8) : 0);
  return {
      {.title = title_.empty() ? "TIME (UTC)" : std::string_view(title_), .min_width = room(14)},
      {.title = "EVENT", .min_width = room(13)},
      {.title = "HOST", .min_width = host_room},
      {.title = "RANK", .align = Align::kRight, .min_width = room(4)},
      {.title = "PID", .align = Align::kRight, .min_width = room(6)},
      {.title = "SCOPE", .is_text = true, .min_width = room(8)},
      {.title = "ID", .min_width = room(8)},
      {.title = "WHAT", .is_text = true, .min_width = room(4)}};
}

void LogTable::begin() {
  if (table_) {
    return;
  }
  // Where all are of one day, the day stands in the title and gives its room to the last column.
  title_ = has_end_ && are_of_one_day() ? kept_[0].texts[kTime].substr(0, 5) + " UTC" : "";
  const std::size_t host_width = fit_hosts();
  table_.emplace(columns(host_width), wants_colour(out_.fd()));
  for (Kept& kept : kept_) {
    kept.texts[kHost] = host_width > 0 ? short_host(kept.texts[kHost]) : "";
    std::array<Cell, kColumns> row;
    std::transform(kept.texts.begin(), kept.texts.end(), row.begin(),
                   [](const std::string& text) { return Cell{text}; });
    row[kTime].text.remove_prefix(title_.empty() ? 0 : 6);
    row[kEvent].colour = kept.colour;
    table_->add(row);
  }
  kept_ = {};
  out_.write(table_->text());
}

}  // namespace filetimer::cli
