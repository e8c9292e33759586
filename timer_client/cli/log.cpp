// `timer_client log`: the records of the log as a table, or as the JSON lines that they are.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <poll.h>

#include <csignal>
#include <memory>
#include <utility>

#include "common/clock.hpp"
#include "timer_client/cli/commands.hpp"
#include "timer_client/cli/log_file.hpp"
#include "timer_client/cli/log_view.hpp"
#include "timer_client/cli/options.hpp"
#include "timer_client/cli/output.hpp"
#include "timer_client/cli/record_time.hpp"

namespace filetimer::cli {
namespace {

// How often a followed log is looked at. A look, not a notification: logs on shared file systems
// grow without one, and one stat() four times a second is nothing.
constexpr int kLookIntervalMs = 250;

struct LogOptions {
  Place place;
  std::vector<std::string> files;
  LogFilter filter;
  bool json = false;
  bool follow = false;
};

volatile std::sig_atomic_t g_stop = 0;

// SIGINT and SIGTERM end the following between two looks; a second one ends the process at once,
// also while it waits for whoever reads its output.
void end_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { g_stop = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) {
    ::sigaction(signal, &action, nullptr);
  }
}

// Until the next look is due. False when it is time to stop: a signal came, or whoever read our
// output has gone. A signal that comes just before the wait is noticed one interval later.
bool wait_for_next_look(const Output& out) {
  pollfd reader{out.fd(), 0, 0};
  ::poll(&reader, 1, g_stop != 0 ? 0 : kLookIntervalMs);
  return g_stop == 0 && !out.is_closed();
}

void say_skipped(const std::vector<LogFile>& logs) {
  if (const std::string skipped = skipped_text(logs); !skipped.empty()) {
    complain(skipped);
  }
}

int follow_logs(std::vector<LogFile>& logs, Output& out, const RecordReader::Sink& print) {
  end_on_signals();
  while (wait_for_next_look(out)) {
    for (LogFile& log : logs) {
      const auto read = log.read_news(print);
      if (!read) {
        complain(read.error().message);
        return kExitFailed;
      }
    }
  }
  return out.finish();
}

int run_log(LogOptions& options) {
  // Programs that read the JSON choose for themselves.
  options.filter.with_details = options.json;
  auto logs = open_logs(options.place.dir, options.files);
  if (!logs) {
    complain(logs.error().message);
    return kExitFailed;
  }
  Output out;
  std::vector<Record> records;  // for the table, whose widths they decide
  std::size_t seen = 0;
  std::size_t shown = 0;
  const Status read = read_merged(*logs, options.follow, [&](Record&& record) {
    ++seen;
    if (!options.filter.admits(record)) {
      return true;
    }
    ++shown;
    if (options.json) {
      return out.write(record.raw) && out.write("\n");
    }
    record.raw.clear();
    record.raw.shrink_to_fit();
    records.push_back(std::move(record));
    return true;
  });
  if (!read) {
    complain(read.error().message);
    return kExitFailed;
  }
  LogTable table(records, {.followed = options.follow,
                           .several_files = logs->size() > 1,
                           .colour = wants_colour(out.fd())});
  if (!options.json && (shown > 0 || options.follow)) {
    out.write(table.text());
  }
  out.flush();
  if (options.follow) {
    const int code = follow_logs(*logs, out, [&](Record&& record) {
      if (options.filter.admits(record)) {
        out.write(options.json ? record.raw + "\n" : table.line(record));
        return out.flush();  // each line as it comes
      }
      return true;
    });
    say_skipped(*logs);
    return code;
  }
  if (shown == 0) {
    complain(seen == 0 ? fmt::format("no records in {}", names_of(*logs))
                       : fmt::format("no record in {} matches, of {}", names_of(*logs), seen));
  }
  say_skipped(*logs);
  return out.finish();
}

}  // namespace

Command add_log(CLI::App& root) {
  auto options = std::make_shared<LogOptions>();
  CLI::App* app = root.add_subcommand("log", "What happened: the records of the server's log");
  app->add_option("FILE", options->files, "Logs to read, merged by time [the server's]");
  app->add_flag("--json", options->json, "The records themselves, a JSON object a line");
  app->add_option_function<std::vector<std::string>>(
         "--event",
         [options](const std::vector<std::string>& events) {
           for (const std::string& event : events) {
             if (!is_known_event(event)) {
               throw CLI::ValidationError(
                   "--event", fmt::format("unknown event '{}': expected one of {}", event,
                                          fmt::join(known_events(), ", ")));
             }
           }
           options->filter.events = events;
         },
         "Only this event; may be repeated [all but incident and evidence]")
      ->type_name("EVENT")
      ->delimiter(',')
      ->allow_extra_args(false);  // what follows is a FILE
  app->add_option("--scope", options->filter.scope, "Only scopes of this name")->type_name("NAME");
  app->add_option("--rank", options->filter.rank, "Only this rank")->type_name("RANK");
  app->add_option("--pid", options->filter.pid, "Only this process")->type_name("PID");
  app->add_option_function<std::string>(
         "--since",
         [options](const std::string& word) {
           const auto since = parse_since(word, ClockReading::now().wall_ns / 1000);
           if (!since) {
             throw CLI::ValidationError("--since", since.error().message);
           }
           options->filter.since_us = *since;
         },
         "Only what happened since then: 2026-11-21T03:15:53Z, or 10m for ten minutes ago")
      ->type_name("TIME");
  app->add_flag("-f,--follow", options->follow, "Wait for more until interrupted");
  add_place_options(*app, options->place);
  app->footer("Exit codes: 0 done (also when nothing matches), 1 failed, 2 usage.");
  return {app, [options] { return run_log(*options); }};
}

}  // namespace filetimer::cli
