// SPDX-License-Identifier: MIT
#include "timer_server/settings.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/numbers.hpp"
#include "common/parse_error.hpp"

namespace filetimer {
namespace {

// What CLI11 throws for a word that an option can't take; `what` quotes it.
[[noreturn]] void refuse(const std::string& option, const std::string& what) {
  throw CLI::ValidationError(option, what);
}

Duration duration_of(const std::string& option, const std::string& word) {
  const auto duration = parse_duration(word);
  if (!duration) {
    refuse(option, duration.error().message);
  }
  return *duration;
}

std::uint64_t size_of(const std::string& option, const std::string& word) {
  std::string_view unit = word;
  const auto number = take_number<std::uint64_t>(unit);
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  constexpr std::uint64_t kSmallest = 4096;
  if (!number || shift < 0 || *number > (std::uint64_t{1} << 33) ||
      (*number << shift) < kSmallest) {
    refuse(option, fmt::format("'{}' is not a size: expected a number of at least 4K with an "
                               "optional unit (K, M, G), such as 64M",
                               word));
  }
  return *number << shift;
}

std::size_t worker_count_of(const std::string& option, const std::string& word) {
  const auto number = number_from<std::size_t>(word);
  if (!number || *number < 1 || *number > kMaxWorkers) {
    refuse(option,
           fmt::format("'{}': expected a number of workers from 1 to {}", word, kMaxWorkers));
  }
  return *number;
}

double fraction_of(const std::string& option, const std::string& word) {
  const auto number = number_from<double>(word);
  if (!number || !(*number > 0 && *number < 1)) {
    refuse(option,
           fmt::format("'{}' is not a fraction: expected a number over 0 and below 1, such as 0.5",
                       word));
  }
  return *number;
}

template <class Value>
Value one_of(const std::string& option, const std::string& word,
             const std::vector<std::pair<std::string, Value>>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (word == name) {
      return value;
    }
    names += names.empty() ? name : ", " + name;
  }
  refuse(option, fmt::format("'{}': expected one of {}", word, names));
}

// One option that takes a word; given twice (in the config file and on the command line), the last
// one counts.
void add(CLI::App& app, const std::string& name, const std::string& value_name,
         const std::string& help, std::function<void(const std::string&)> take) {
  const auto take_word = [name, take = std::move(take)](const std::string& word) {
    if (word.empty()) {
      refuse(name, "'': expected a value");
    }
    take(word);
  };
  app.add_option_function<std::string>(name, take_word, help)->type_name(value_name)->take_last();
}

void add_options(CLI::App& app, Settings& settings) {
  const auto add_duration = [&app](const std::string& name, Duration& target,
                                   const std::string& help) {
    add(app, name, "DUR", help + " [" + duration_text(target) + "]",
        [name, &target](const std::string& word) { target = duration_of(name, word); });
  };
  add(app, "--dir", "DIR", "run folder [$FILETIMER_DIR or the user's own]",
      [&](const std::string& word) { settings.dir = word; });
  add(app, "--fifo", "PATH", "pipe for requests [DIR/requests]",
      [&](const std::string& word) { settings.fifo = word; });
  add(app, "--log", "PATH", "log of expiries [DIR/expired.jsonl]",
      [&](const std::string& word) { settings.log = word; });
  add(app, "--log-max", "SIZE", "size at which it is renamed to PATH.1 [64M]",
      [&](const std::string& word) { settings.log_max_bytes = size_of("--log-max", word); });
  app.add_flag("--detach", settings.detach, "return when ready; serve in an own session");
  add(app, "--default-timeout", "DUR", "timeout of a job that is started without one [none]",
      [&](const std::string& word) {
        settings.default_timeout = duration_of("--default-timeout", word);
      });
  add(app, "--max-timeout", "DUR", "longest timeout that is granted [none]",
      [&](const std::string& word) { settings.max_timeout = duration_of("--max-timeout", word); });
  add(app, "--warn-at", "FRACTION", "part of a timeout after which a warning is recorded [none]",
      [&](const std::string& word) { settings.warn_at = fraction_of("--warn-at", word); });
  add_duration("--max-wait", settings.max_wait, "longest time that a question may take");
  add_duration("--max-interval", settings.max_interval, "longest time between housekeeping sweeps");
  add(app, "--grace", "DUR|off", "from signal to SIGKILL [own clients 10s, else off]",
      [&](const std::string& word) {
        settings.grace = word == "off" ? std::optional<Duration>{} : duration_of("--grace", word);
      });
  add(app, "--kill", "tree|group|process", "signalled with the worker [tree]",
      [&](const std::string& word) {
        settings.kill.mode = one_of<KillMode>("--kill", word,
                                              {{"tree", KillMode::kTree},
                                               {"group", KillMode::kGroup},
                                               {"process", KillMode::kProcess}});
      });
  add(app, "--stopped", "defer|kill", "who is stopped or traced at its deadline [defer]",
      [&](const std::string& word) {
        settings.stopped = one_of<Settings::Stopped>(
            "--stopped", word,
            {{"defer", Settings::Stopped::kDefer}, {"kill", Settings::Stopped::kKill}});
      });
  add(app, "--evidence", "none|proc|stacks", "recorded before the signal [stacks, else proc]",
      [&](const std::string& word) {
        settings.kill.evidence = one_of<EvidenceLevel>("--evidence", word,
                                                       {{"none", EvidenceLevel::kNone},
                                                        {"proc", EvidenceLevel::kProc},
                                                        {"stacks", EvidenceLevel::kStacks}});
      });
  add_duration("--evidence-timeout", settings.kill.evidence_timeout,
               "longest delay of a signal for evidence");
  add_duration("--kill-wait", settings.kill.kill_wait, "time to die in, else unkillable");
  add(app, "--expect-workers", "N", "workers that should show up [none]",
      [&](const std::string& word) {
        settings.expect_workers = worker_count_of("--expect-workers", word);
      });
  add(app, "--join-timeout", "DUR", "within this time after the start",
      [&](const std::string& word) {
        settings.join_timeout = duration_of("--join-timeout", word);
      });
  add(app, "--missing", "report|stop", "what to do if they don't: stop COMMAND [report]",
      [&](const std::string& word) {
        settings.missing = one_of<Settings::Missing>(
            "--missing", word,
            {{"report", Settings::Missing::kReport}, {"stop", Settings::Missing::kStop}});
      });
  add(app, "--on-expiry", "CMD", "shell command for each worker whose kill has ended",
      [&](const std::string& word) { settings.on_expiry = word; });
  app.add_flag("--dry-run", settings.kill.dry_run, "record expiries, signal nobody");
  app.add_flag("--realtime", settings.realtime, "run above ordinary work (SCHED_RR)");
  const auto take_level = [&](const std::string& word) {
    const auto level = parse_log_level(word);
    if (!level) {
      refuse("--log-level", level.error().message);
    }
    settings.log_level = *level;
  };
  add(app, "--log-level", "LEVEL", "error, warning, info or debug [info]", take_level);
}

// CLI11 knows nothing of what stands behind --.
class Help final : public CLI::Formatter {
 public:
  Help() { column_width(31); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: timer_server [OPTIONS] [-- COMMAND [ARG...]]\n";
  }
};

std::unique_ptr<CLI::App> make_app(Settings& settings, std::string& config) {
  auto app = std::make_unique<CLI::App>(
      "Watches the workers of one host and kills those whose timer scope expired.", "timer_server");
  app->set_help_flag("-h,--help", "show this");
  app->set_version_flag("--version", std::string("timer_server ") + FILETIMER_VERSION);
  app->formatter(std::make_shared<Help>());
  add(*app, "--config", "FILE", "these names in TOML; the command line wins",
      [&](const std::string& word) { config = word; });
  add_options(*app, settings);
  app->footer(
      "Durations: 30, 30s, 1.5, 500ms, 250us, 10m, 2h, 1d; seconds without a unit.\n"
      "$FILETIMER_LOG_LEVEL stands for --log-level.\n\n"
      "Examples:\n"
      "  timer_server --dir /run/user/1000/job\n"
      "  timer_server --grace 30s -- torchrun --nproc-per-node 8 train.py\n\n"
      "Exit status: 0 stopped; 1 failed; 2 usage; 3 another server has the folder;\n"
      "8 stopped, and a worker was left unkillable. With COMMAND: its own status\n"
      "(128+N when signal N ended it); 125 the server failed or bad usage;\n"
      "126 COMMAND can't be executed; 127 COMMAND not found.");
  return app;
}

// The arguments that say the same as the config file.
Result<std::vector<std::string>> read_config(const std::string& path) {
  const auto text = read_small_file(path, std::size_t{1} << 20);
  if (!text) {
    return tl::unexpected<Error>(text.error());
  }
  std::vector<std::string> arguments;
  try {
    for (const auto& [key, value] : toml::parse(*text, path)) {
      const std::string option = fmt::format("--{}", std::string_view(key.str()));
      if (option == "--help" || option == "--version" || option == "--config") {
        return failure(
            fmt::format("'{}': '{}' is not expected in a file", path, std::string_view(key.str())));
      }
      if (const auto* flag = value.as_boolean()) {
        const bool is_flag =
            option == "--detach" || option == "--dry-run" || option == "--realtime";
        if (!is_flag) {
          return failure(fmt::format("'{}': the value of '{}' is {}: expected a string or a number",
                                     path, std::string_view(key.str()), flag->get()));
        }
        if (flag->get()) {
          arguments.push_back(option);
        }
      } else if (const auto* string = value.as_string()) {
        arguments.push_back(option + "=" + string->get());
      } else if (const auto* integer = value.as_integer()) {
        arguments.push_back(fmt::format("{}={}", option, integer->get()));
      } else if (const auto* number = value.as_floating_point()) {
        arguments.push_back(fmt::format("{}={}", option, number->get()));
      } else {
        return failure(fmt::format("'{}': the value of '{}' is no string, number or boolean", path,
                                   std::string_view(key.str())));
      }
    }
  } catch (const toml::parse_error& error) {
    return failure(fmt::format("'{}', line {}: {}", path, error.source().begin.line,
                               std::string_view(error.description())));
  }
  return arguments;
}

void parse(CLI::App& app, std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  app.parse(std::move(arguments));
}

}  // namespace

std::variant<Settings, EarlyExit> read_settings(int argc, char** argv) {
  // COMMAND's own options are not ours: what stands behind the first -- is never looked at.
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const char* level = std::getenv(kLogLevelVariable); level != nullptr && *level != '\0') {
    arguments.insert(arguments.begin(), fmt::format("--log-level={}", level));
  }
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  const bool has_separator = separator != arguments.end();
  std::vector<std::string> command(has_separator ? separator + 1 : separator, arguments.end());
  arguments.erase(separator, arguments.end());

  const auto usage = [&](const std::string& line) {
    fmt::print(stderr, "timer_server: error: {} (see timer_server --help)\n", line);
    return EarlyExit{has_separator ? exit_status::kServerFailed : exit_status::kUsage};
  };
  if (has_separator && command.empty()) {
    return usage("'--' ends the line: expected a COMMAND behind it");
  }
  Settings settings;
  std::string config;
  std::string reading;  // what an error is about
  try {
    const auto app = make_app(settings, config);
    try {
      parse(*app, arguments);
    } catch (const CLI::Success& early) {
      return EarlyExit{app->exit(early)};
    }
    if (!config.empty()) {
      const auto from_file = read_config(config);
      if (!from_file) {
        return usage("--config: " + from_file.error().message);
      }
      reading = fmt::format("--config '{}': ", config);
      settings = {};
      parse(*make_app(settings, config), *from_file);
      reading.clear();
      std::vector<std::string> all = *from_file;
      all.insert(all.end(), arguments.begin(), arguments.end());
      settings = {};
      parse(*make_app(settings, config), all);
    }
  } catch (const CLI::ParseError& error) {
    return usage(reading + what_is_wrong(error));
  }
  if (settings.max_interval < Settings::kLeastInterval) {
    return usage(fmt::format("--max-interval: '{}' is too short: expected at least {}",
                             duration_text(settings.max_interval),
                             duration_text(Settings::kLeastInterval)));
  }
  if ((settings.expect_workers != 0) != settings.join_timeout.has_value()) {
    return usage("--expect-workers and --join-timeout: expected both or none");
  }
  settings.command = std::move(command);
  if (settings.missing == Settings::Missing::kStop &&
      (settings.command.empty() || settings.expect_workers == 0)) {
    return usage("--missing stop: expected --expect-workers and a COMMAND with it");
  }
  if (settings.detach && !settings.command.empty()) {
    return usage("--detach: expected no COMMAND with it (a COMMAND is served until it ends)");
  }
  return settings;
}

}  // namespace filetimer
