// The subcommands of timer_client, and the options that several of them share.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>
#include <signal.h>

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/duration_text.hpp"
#include "common/result.hpp"
#include "common/text.hpp"

namespace filetimer::cli {

// Exit codes, for every subcommand but `run`.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoServer = 4;
inline constexpr int kExitTimedOut = 5;
inline constexpr int kExitRefused = 6;

// Exit codes of `run`, as GNU timeout has them; 128+N for a signal, else COMMAND's own.
inline constexpr int kExitExpired = 124;
inline constexpr int kExitRunFailed = 125;  // also for bad usage
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;
inline constexpr int kExitSignalBase = 128;

struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;  // called after parsing; returns the exit code
};

// --- the subcommands ---

// Each function adds a subcommand with its options to the root application, and returns what to
// call after they are parsed. Only main.cpp calls these.

// `command`: the words after `--`. The parser does not get them: it would parse COMMAND's options
// as those of timer_client.
Command add_run(CLI::App& root, const std::vector<std::string>& command);
Command add_acquire(CLI::App& root);
Command add_release(CLI::App& root);
Command add_list(CLI::App& root);
Command add_log(CLI::App& root);
Command add_report(CLI::App& root);
Command add_show(CLI::App& root);
Command add_suggest(CLI::App& root);
Command add_ping(CLI::App& root);
Command add_status(CLI::App& root);
Command add_dump(CLI::App& root);
Command add_drain(CLI::App& root);
Command add_shutdown(CLI::App& root);
Command add_rendezvous(CLI::App& root);

// --- options ---

// Each option checks its value while the command line is parsed, so a wrong value is a usage error
// that quotes it.

// Where the server is.
struct Place {
  std::string dir;
  std::string fifo;
};
// Also adds --log-level, which applies to the whole process.
void add_place_options(CLI::App& app, Place& place);
// Likewise for a command that reads the runtime directory and needs no pipe, or the files that are
// named. Unless `has_files` returns true, `place.dir` becomes the directory of the pipe's server;
// --fifo is refused if that is not known.
void add_directory_options(CLI::App& app, Place& place, std::function<bool()> has_files = nullptr);

// Returns the directory that was named. If none was, no server runs in the default one, and one
// runs below it, returns that server's, after a line that says so.
std::string dir_of_server(const Place& place);

// Returns text to append to "no timer server in 'DIR'": that a server runs below `dir`, where
// clients of `dir` do not find it. `timer_server -- COMMAND` makes a new folder there. Empty: none
// runs.
std::string servers_below(const std::string& dir);

// Returns a line that says that the process belongs to another user than the server. Empty: it does
// not, or one of the two cannot be seen.
std::string why_of_other_user(pid_t pid, pid_t server);

// Adds an option whose word `parse` reads: it returns a Result, whose error quotes the word.
template <class Value, class Parse>
CLI::Option* add_parsed_option(CLI::App& app, const std::string& flag, Value& value, Parse parse,
                               const std::string& type, const std::string& description) {
  return app
      .add_option_function<std::string>(
          flag,
          [flag, &value, parse](const std::string& word) {
            const auto parsed = parse(word);
            if (!parsed) {
              throw CLI::ValidationError(flag, parsed.error().message);
            }
            value = *parsed;
          },
          description)
      ->type_name(type);
}

CLI::Option* add_duration_option(CLI::App& app, const std::string& flag,
                                 std::optional<Duration>& value, const std::string& description);

// Adds an option for a number of 0 or more.
template <class Number>
CLI::Option* add_number_option(CLI::App& app, const std::string& flag, std::optional<Number>& value,
                               const std::string& type, const std::string& description) {
  const auto parse = [](const std::string& word) -> Result<Number> {
    const auto number = number_from<Number>(word);
    if (!number || *number < 0) {
      return failure(fmt::format("'{}': expected a whole number from 0 to {}", word,
                                 std::numeric_limits<Number>::max()));
    }
    return *number;
  };
  return add_parsed_option(app, flag, value, parse, type, description);
}

// The times of the first and the last record, in microseconds since the epoch.
struct TimeSpan {
  std::optional<std::int64_t> since_us;
  std::optional<std::int64_t> until_us;

  [[nodiscard]] bool has(const std::optional<std::int64_t>& time_us) const {
    return (!since_us || time_us >= since_us) && (!until_us || (time_us && time_us <= until_us));
  }
};
// Adds `--since` and `--until`.
void add_time_options(CLI::App& app, TimeSpan& span);
// Adds `--utc`, which makes UTC the local time of this process.
void add_utc_option(CLI::App& app);

// For check(): refuses an empty name.
std::string is_name(const std::string& word);
// Adds an option for a name that is not empty: `--host "$UNSET"` must not select records.
template <class Text>
CLI::Option* add_name_option(CLI::App& app, const std::string& flag, Text& value,
                             const std::string& type, const std::string& description) {
  return app.add_option(flag, value, description)->type_name(type)->check(is_name);
}
// Returns a check that refuses all but these words.
std::function<std::string(const std::string&)> is_one_of(std::vector<std::string> words);

// The options of acquire, release and run, which have some of them each.
struct TimerOptions {
  Place place;
  std::string scope;
  std::optional<pid_t> pid;  // none: the parent
  std::optional<Duration> timeout;
  std::optional<Duration> warn_after;
  std::optional<Duration> grace;
  int signal = SIGKILL;
};
// Adds `--timeout`, which may be written --after, and `--warn-after`, whose value the caller checks
// with is_warn_after().
void add_timeout_options(CLI::App& app, TimerOptions& options, const std::string& description);

// Adds `--signal`: `TERM`, `SIGTERM`, `15`; 0 kills no process.
CLI::Option* add_signal_option(CLI::App& app, int& signal);
Result<int> parse_signal(std::string_view word);

}  // namespace filetimer::cli
