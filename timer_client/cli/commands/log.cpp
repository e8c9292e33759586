// `timer_client log`: the records of the log as a table, or as the JSON lines that they are.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>

#include "common/clock.hpp"
#include "common/duration_text.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/log/hang_page.hpp"
#include "timer_client/cli/log/hangs.hpp"
#include "timer_client/cli/log/log_file.hpp"
#include "timer_client/cli/log/log_merge.hpp"
#include "timer_client/cli/log/log_view.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/record_time.hpp"

namespace filetimer::cli {
namespace {

using std::chrono::microseconds;

// How often a followed log is looked at. A look, not a notification: logs on shared file systems
// grow without one, and one stat() four times a second is nothing.
constexpr int kLookIntervalMs = 250;

struct LogOptions {
  Place place;
  std::vector<std::string> files;
  LogFilter filter;
  std::optional<Duration> clock_difference;
  bool json = false;
  bool follow = false;
};

// So many records decide how wide the columns of the table are; what comes later has to fit in.
constexpr std::size_t kRowsFitted = 10'000;

// Prints as soon as the widths are known, and keeps no record after that.
class GrowingTable {
 public:
  GrowingTable(Output& out, const TableUse& use) : out_(out), use_(use) {}

  bool add(Record&& record) {
    if (table_) {
      return out_.write(table_->line(record));
    }
    record.raw = {};
    records_.push_back(std::move(record));
    if (records_.size() == kRowsFitted) {
      use_.followed = true;
      begin();
    }
    return true;
  }

  // All that is to decide the widths is there.
  void begin() {
    if (!table_) {
      table_.emplace(records_, use_);
      out_.write(table_->text());
      records_ = {};
    }
  }

 private:
  Output& out_;
  TableUse use_;
  std::vector<Record> records_;
  std::optional<LogTable> table_;
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

// A log that cannot be read is complained of once and left; the others are followed on.
int follow_logs(std::vector<LogFile>& logs, Output& out, const RecordReader::Sink& print) {
  end_on_signals();
  std::size_t left = logs.size();
  while (left > 0 && wait_for_next_look(out)) {
    left = 0;
    for (LogFile& log : logs) {
      if (log.is_broken()) {
        continue;
      }
      if (const auto read = log.read_news(print); !read) {
        complain(read.error().message);
      } else {
        ++left;
      }
    }
  }
  return out.finish();
}

int run_log(LogOptions& options) {
  // Programs that read the JSON choose for themselves.
  options.filter.with_details = options.json;
  OpenedLogs opened = open_logs(options.place.dir, options.files);
  std::vector<LogFile>& logs = opened.logs;
  complain_of_all(opened.notes);
  complain_of_all(opened.problems);
  if (logs.empty()) {
    return kExitFailed;
  }
  Output out;
  GrowingTable table(out, {.followed = options.follow,
                           .several_files = logs.size() > 1,
                           .colour = wants_colour(out.fd())});
  const auto print = [&](Record&& record) {
    return options.json ? out.write(record.raw) && out.write("\n") : table.add(std::move(record));
  };
  const bool tells_hangs = !options.json && !options.follow && !options.filter.is_narrow();
  HangFinder hangs(
      duration_cast<microseconds>(options.clock_difference.value_or(microseconds(kClocksUs)))
          .count());
  std::size_t seen = 0;
  std::size_t shown = 0;
  const Merged merged = read_merged(logs, options.follow, [&](Record&& record) {
    ++seen;
    if (tells_hangs && options.filter.is_late_enough(record)) {
      hangs.take(record);
    }
    if (!options.filter.admits(record)) {
      return true;
    }
    ++shown;
    return print(std::move(record));
  });
  complain_of_all(merged.problems);
  if (!options.json && (shown > 0 || options.follow)) {
    table.begin();
  }
  const auto exit_code = [&](int code) {
    const bool is_complete =
        opened.problems.empty() &&
        std::none_of(logs.begin(), logs.end(), [](const LogFile& log) { return log.is_broken(); });
    return code == kExitDone && !is_complete ? kExitFailed : code;
  };
  if (options.follow) {
    out.flush();
    const int code = follow_logs(logs, out, [&](Record&& record) {
      return !options.filter.admits(record) ||
             (print(std::move(record)) && out.flush());  // each line as it comes
    });
    say_skipped(logs);
    return exit_code(code);
  }
  hangs.finish();
  if (hangs.hosts() > 1) {
    out.write(hangs_page(hangs, wants_colour(out.fd())));
  }
  out.flush();
  if (shown == 0) {
    complain(seen == 0 ? fmt::format("no records in {}", names_of(logs))
                       : fmt::format("no record in {} matches, of {}", names_of(logs), seen));
  }
  if (merged.repeated > 0) {
    complain(fmt::format("{} of {} records are in several of {}: each is told once",
                         merged.repeated, seen + merged.repeated, names_of(logs)));
  }
  say_skipped(logs);
  return exit_code(out.finish());
}

}  // namespace

Command add_log(CLI::App& root) {
  auto options = std::make_shared<LogOptions>();
  CLI::App* app = root.add_subcommand("log", "What happened: the records of the server's log");
  app->add_option("FILE", options->files,
                  "Logs to read, merged by time: files, folders with those of\n"
                  "many hosts, or patterns such as 'logs/*.jsonl' [the server's]");
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
         "Only this event; may be repeated [all but incident, evidence\n"
         "and worker_ended]")
      ->type_name("EVENT")
      ->delimiter(',')
      ->allow_extra_args(false);  // what follows is a FILE
  app->add_option("--scope", options->filter.scope, "Only scopes of this name")
      ->type_name("NAME")
      ->check(is_name);
  add_number_option(*app, "--rank", options->filter.rank, "RANK", "Only this rank");
  add_number_option(*app, "--pid", options->filter.pid, "PID", "Only this process");
  app->add_option_function<std::string>(
         "--since",
         [options](const std::string& word) {
           const auto since = parse_since(word, ClockReading::now().wall_ns / 1000);
           if (!since) {
             throw CLI::ValidationError("--since", since.error().message);
           }
           options->filter.since_us = *since;
         },
         "Only what happened since then: 2026-11-21T03:15:53Z,\n"
         "or 10m for ten minutes ago")
      ->type_name("TIME");
  app->add_option("--host", options->filter.host, "Only this host")
      ->type_name("HOST")
      ->check(is_name);
  add_duration_option(*app, "--clock-difference", options->clock_difference,
                      "How far the clocks of two hosts may be apart; who of two hosts\n"
                      "was first by less than this is not said [1s]",
                      EndlessDuration::kRefused);
  app->add_flag("-f,--follow", options->follow, "Wait for more until interrupted");
  add_place_options(*app, options->place);
  app->footer(
      "Examples:\n"
      "  timer_client log --since 1h --rank 3\n"
      "  timer_client log --event expired,killed --json | jq .scope\n"
      "  timer_client log --follow\n"
      "  timer_client log /shared/logs '/scratch/*/expired.jsonl'\n\n"
      "Of several hosts it tells below the table who hung first over all of them.\n\n"
      "Exit codes: 0 done (also when nothing matches), 1 failed (also when one of\n"
      "the logs could not be read), 2 usage.");
  return {app, [options] { return run_log(*options); }};
}

}  // namespace filetimer::cli
