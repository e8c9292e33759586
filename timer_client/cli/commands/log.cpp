// `timer_client log`: the records of the log as a table, or as the JSON lines that they are.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/log/reader.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// How often a followed log is checked. Logs on shared file systems grow without a notification, and
// stat() four times a second costs nothing.
constexpr int kLookIntervalMs = 250;

struct LogOptions {
  Place place;
  std::vector<std::string> files;
  std::vector<std::string> events;  // none: all, in the table without those that are is_detail
  std::optional<std::string> scope;
  std::optional<std::int64_t> rank;
  std::optional<std::int64_t> pid;
  std::optional<std::string> host;
  TimeSpan time;
  bool json = false;
  bool follow = false;
};

bool is_chosen(const Record& record, const LogOptions& options) {
  // Programs that read the JSON filter the events themselves.
  if (options.events.empty() ? event_of(record).is_detail && !options.json
                             : std::ranges::count(options.events, record.event) == 0) {
    return false;
  }
  // The record of a name that was too long shows it cut and marked, and bytes that are no UTF-8
  // escaped.
  return (!options.scope || record.scope == *options.scope ||
          record.scope == bounded_scope_name(valid_utf8(*options.scope))) &&
         (!options.rank || record.rank == options.rank) &&
         (!options.pid || record.pid == options.pid) &&
         (!options.host || record.host == *options.host) && options.time.has(record.time_us);
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

// The table of the records. Its first rows are kept until they are enough to decide how wide the
// columns are, or until print(); the rest is printed at once.
class LogTable {
 public:
  explicit LogTable(Output& out)
      : out_(out),
        zone_(zone_text(ClockReading::now().wall_ns / 1000)),
        table_({{.title = fmt::format("TIME ({})", zone_), .min_width = 14},
                {.title = "EVENT", .min_width = 14},  // "server_stopped"
                {.title = "HOST", .is_left_out_if_same = true, .min_width = 8},
                {.title = "RANK", .align = Align::kRight, .min_width = 4},
                {.title = "PID", .align = Align::kRight, .min_width = 7},
                {.title = "SCOPE", .is_text = true, .min_width = 8},
                {.title = "ID", .min_width = 8},
                {.title = "WHAT", .is_text = true, .min_width = 4}},
               screen_of(out.fd())) {}

  // Return false if no process reads the output any more.
  bool add(const Record& record) {
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

  // Prints what was not printed yet. If more may come, the columns have room for it.
  bool print(Rows rows) {
    rows_ = kRowsFitted;
    return out_.write(table_.text(rows));
  }

 private:
  static constexpr std::size_t kRowsFitted = 1'000;

  Output& out_;
  const std::string zone_;  // of now
  Table table_;
  std::size_t rows_ = 0;
};

// A log that cannot be read is complained of once and left; the others are followed on.
void follow(std::vector<LogReader>& logs, KnownRecords& known, Output& out,
            const std::function<bool(const Record&)>& print) {
  const auto can_be_read = [](const LogReader& log) { return log.problem().empty(); };
  while (std::ranges::any_of(logs, can_be_read) && !out.is_closed(kLookIntervalMs)) {
    for (LogReader& log : logs) {
      if (can_be_read(log)) {
        while (const Record* const record = log.next()) {
          if (is_new(*record, known)) {
            print(*record);
          }
        }
        complain_of_all({log.problem()});
      }
    }
  }
}

int run_log(const LogOptions& options) {
  OpenedLogs opened = open_logs(options.place.dir, options.files);
  std::vector<LogReader>& logs = opened.logs;
  complain_of_all(opened.problems);
  if (logs.empty()) {
    return kExitFailed;
  }
  Output out;
  LogTable table(out);
  // The records of a pipe are printed as they come: it may be that of `tail -F`.
  const bool is_piped =
      !std::all_of(logs.begin(), logs.end(), [](LogReader& log) { return log.rewind(); });
  std::size_t seen = 0;
  std::size_t shown = 0;
  const auto take = [&](const Record& record) {
    ++seen;
    if (!is_chosen(record, options)) {
      return true;
    }
    ++shown;
    return (options.json ? out.write(record.line) && out.write("\n") : table.add(record)) &&
           (!is_piped || out.flush());
  };
  if (is_piped && !options.json) {
    table.print(Rows::kMoreCome);
    out.flush();
  }
  if (options.follow) {
    std::for_each(logs.begin(), logs.end(), [](LogReader& log) { log.follow(); });
  }
  KnownRecords known = read_merged(logs, take);
  complain_of_all(problems_of(logs));
  if (!options.json) {
    table.print(options.follow ? Rows::kMoreCome : Rows::kAll);
  }
  out.flush();
  if (options.follow) {
    follow(logs, known, out, [&](const Record& record) { return take(record) && out.flush(); });
  } else if (shown == 0) {
    complain(seen == 0 ? fmt::format("no records in {}", names_of(logs))
                       : fmt::format("no record in {} matches, of {}", names_of(logs), seen));
  }
  complain_of_all({skipped_text(logs)});
  const int code = out.finish();
  const bool is_complete = opened.problems.empty() && problems_of(logs).empty();
  return code == kExitDone && !is_complete ? kExitFailed : code;
}

}  // namespace

Command add_log(CLI::App& root) {
  auto options = std::make_shared<LogOptions>();
  CLI::App* app = root.add_subcommand("log", "The records of the server's log");
  app->add_option("FILE", options->files,
                  "Logs to read, merged by time: files, folders with those of\n"
                  "many hosts, or - for standard input [the server's]");
  app->add_flag("--json", options->json, "The records themselves, a JSON object a line");
  app->add_option("--event", options->events,
                  "Only this event; may be repeated [all; in the table: all but\n"
                  "incident, evidence, evidence_command, peer_evidence and\n"
                  "worker_ended]")
      ->type_name("EVENT")
      ->delimiter(',')
      ->allow_extra_args(false)  // what follows is a FILE
      ->check([](const std::string& event) {
        const auto names =
            mapped(known_events(), [](const Event& known) { return std::string(known.name); });
        const std::string meant = meant_by(event, names);
        return std::ranges::find(names, event) != names.end() ? std::string()
               : meant.empty()
                   ? fmt::format("unknown event '{}': expected one of {}", event, joined(names))
                   : fmt::format("unknown event '{}': did you mean '{}'?", event, meant);
      });
  add_name_option(*app, "--scope", options->scope, "NAME", "Only scopes of this name");
  add_number_option(*app, "--rank", options->rank, "RANK", "Only this rank");
  add_number_option(*app, "--pid", options->pid, "PID", "Only this process");
  add_utc_option(*app);  // before the times that it concerns
  add_time_options(*app, options->time);
  add_name_option(*app, "--host", options->host, "HOST", "Only this host");
  app->add_flag("-f,--follow", options->follow, "Wait for more records until interrupted");
  add_directory_options(*app, options->place, [&files = options->files] { return !files.empty(); });
  app->footer(
      "Examples:\n"
      "  timer_client log --since 1h --rank 3\n"
      "  timer_client log --event expired,killed --json | jq .scope\n"
      "  timer_client log --follow\n"
      "  timer_client log /shared/logs /scratch/*/expired.jsonl\n\n"
      "Exit codes: 0 done (also when nothing matches), 1 failed (also when one of\n"
      "the logs could not be read), 2 usage.");
  return {app, [options] { return run_log(*options); }};
}

}  // namespace filetimer::cli
