// `timer_client log`: the records of the log as a table, or as the JSON lines that they are.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/log/log_table.hpp"
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
  LogFilter filter;
  bool json = false;
  bool follow = false;
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

int run_log(LogOptions& options) {
  // Programs that read the JSON filter the events themselves.
  options.filter.with_details = options.json;
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
    if (!options.filter.admits(record)) {
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
  app->add_option("--event", options->filter.events,
                  "Only this event; may be repeated [all; in the table: all but\n"
                  "incident, evidence, evidence_command, peer_evidence and\n"
                  "worker_ended]")
      ->type_name("EVENT")
      ->delimiter(',')
      ->allow_extra_args(false)  // what follows is a FILE
      ->check([](const std::string& event) {
        const std::vector<std::string> names = known_events();
        const std::string meant = meant_by(event, names);
        return std::ranges::find(names, event) != names.end() ? std::string()
               : meant.empty()
                   ? fmt::format("unknown event '{}': expected one of {}", event, joined(names))
                   : fmt::format("unknown event '{}': did you mean '{}'?", event, meant);
      });
  add_name_option(*app, "--scope", options->filter.scope, "NAME", "Only scopes of this name");
  add_number_option(*app, "--rank", options->filter.rank, "RANK", "Only this rank");
  add_number_option(*app, "--pid", options->filter.pid, "PID", "Only this process");
  add_utc_option(*app);  // before the times that it concerns
  add_time_options(*app, options->filter.since_us, options->filter.until_us);
  add_name_option(*app, "--host", options->filter.host, "HOST", "Only this host");
  app->add_flag("-f,--follow", options->follow, "Wait for more records until interrupted");
  add_directory_options(*app, options->place, &options->files);
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
