// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "common/log_level.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"
#include "timer_client/client/environment.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer::cli {
namespace {

constexpr int kLastSignal = 64;
constexpr int kLastNamedSignal = 31;

// How many folders are examined. Servers that were killed leave theirs behind.
constexpr int kMostLookedAt = 1024;

std::vector<std::string> live_servers_below(const std::string& dir) {
  std::vector<std::string> live;
  int looked_at = 0;
  Directory folders(dir);
  while (const char* const name = folders.next()) {
    const std::string path = fmt::format("{}/{}", dir, name);
    if (std::string_view(name).starts_with(kFreshFolderPrefix) && looked_at++ < kMostLookedAt &&
        look_for_server(path).is_there) {
      live.push_back(path);
    }
  }
  std::sort(live.begin(), live.end());
  return live;
}

}  // namespace

std::string is_name(const std::string& word) {
  return word.empty() ? "'': expected a name" : std::string();
}

std::function<std::string(const std::string&)> is_one_of(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& word) {
    return std::ranges::find(words, word) != words.end()
               ? std::string()
               : fmt::format("'{}': expected one of {}", word, fmt::join(words, ", "));
  };
}

void add_place_options(CLI::App& app, Place& place) {
  // `--dir "$UNSET"` must not mean the default directory, where another server may be.
  add_name_option(app, "--dir", place.dir, "DIR",
                  "The runtime directory [$FILETIMER_DIR, else\n"
                  "$XDG_RUNTIME_DIR/filetimer, else /dev/shm/filetimer-UID]");
  add_name_option(app, "--fifo", place.fifo, "PATH",
                  "The request pipe, where it is not in that directory");
  app.add_option_function<std::string>(
         "--log-level",
         [](const std::string& word) {
           const auto level = client_messages::parse_log_level(word);
           if (!level) {
             throw CLI::ValidationError("--log-level", level.error().message);
           }
           client_messages::set_level(*level);
         },
         "What to write to standard error: error, warning, info or\n"
         "debug [$FILETIMER_LOG_LEVEL, else only errors]")
      ->type_name("LEVEL");
}

void add_directory_options(CLI::App& app, Place& place, std::function<bool()> has_files) {
  add_place_options(app, place);
  app.parse_complete_callback([&place, has_files = std::move(has_files)] {
    if (place.fifo.empty() || (has_files && has_files())) {
      return;
    }
    const std::string folder = locate_server(place.dir, place.fifo).run_folder;
    if (folder.empty()) {
      throw CLI::ValidationError(
          "--fifo", fmt::format("the runtime directory of '{}' is not known: expected --dir DIR",
                                place.fifo));
    }
    if (folder != locate_server(place.dir).run_folder) {
      place.dir = folder;
    }
  });
}

std::string dir_of_server(const Place& place) {
  if (!place.dir.empty() || !place.fifo.empty() || !environment_word(kDirVariable).empty()) {
    return place.dir;
  }
  const std::string dir = resolve_run_folder("").dir;
  const std::vector<std::string> live = live_servers_below(dir);
  if (live.size() != 1 || look_for_server(dir).is_there) {
    return place.dir;
  }
  complain(fmt::format("no timer server in '{}': asking the one in '{}'", dir, live[0]));
  return live[0];
}

std::string servers_below(const std::string& dir) {
  const std::vector<std::string> live = live_servers_below(dir);
  if (live.empty()) {
    return {};
  }
  return fmt::format(
      "; one is running in '{}'{}: name it with --dir or ${}", live[0],
      live.size() == 1 ? std::string() : fmt::format(", and {} more beside it", live.size() - 1),
      kDirVariable);
}

CLI::Option* add_duration_option(CLI::App& app, const std::string& flag,
                                 std::optional<Duration>& value, const std::string& description) {
  const auto parse = [](const std::string& word) {
    return parse_duration(word, EndlessDuration::kAllowed);
  };
  return add_parsed_option(app, flag, value, parse, "DUR", description);
}

void add_time_options(CLI::App& app, TimeSpan& span) {
  const auto parse = [](const std::string& word) {
    return parse_since(word, ClockReading::now().wall_ns / 1000);
  };
  add_parsed_option(app, "--since", span.since_us, parse, "TIME",
                    "Only records since that time: 2026-11-21T03:15:53Z,\n"
                    "'2026-11-21 03:15' in local time, or 10m for ten minutes ago");
  add_parsed_option(app, "--until", span.until_us, parse, "TIME", "Only records until that time");
}

void add_utc_option(CLI::App& app) {
  app.add_flag_callback(
      "--utc",
      [] {
        ::setenv("TZ", "UTC0", 1);
        ::tzset();
      },
      "Times in UTC, not in local time");
}

void add_timeout_options(CLI::App& app, TimerOptions& options, const std::string& description) {
  CLI::Option* const option = add_duration_option(app, "--timeout", options.timeout, description);
  CLI::Option* const after = add_duration_option(app, "--after", options.timeout, {})->group("");
  app.parse_complete_callback([option, after] {
    if (option->count() > 0 && after->count() > 0) {
      throw CLI::ValidationError("expected one of --timeout and --after");
    }
  });
  add_duration_option(app, "--warn-after", options.warn_after,
                      "When to record a warning, before it expires\n[the server's --warn-at]");
}

CLI::Option* add_signal_option(CLI::App& app, int& signal) {
  return add_parsed_option(
      app, "--signal", signal, parse_signal, "SIG",
      "The first signal, by name or number [KILL];\n0: record the expiry, kill no process");
}

Result<int> parse_signal(std::string_view word) {
  if (const auto number = number_from<int>(word);
      number && *number >= 0 && *number <= kLastSignal) {
    return *number;
  }
  std::string name(word);  // in either case, as GNU timeout
  name.erase(0, ::strncasecmp(name.c_str(), "SIG", 3) == 0 ? 3 : 0);
  for (int signal = 1; signal <= kLastNamedSignal; ++signal) {
    const char* const known = ::sigabbrev_np(signal);
    if (known != nullptr && ::strcasecmp(name.c_str(), known) == 0) {
      return signal;
    }
  }
  return failure(fmt::format(
      "'{}' is not a signal: expected a name such as TERM or SIGTERM, or a number from 0 to {}",
      word, kLastSignal));
}

}  // namespace filetimer::cli
