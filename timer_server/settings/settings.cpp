// SPDX-License-Identifier: MIT
#include "timer_server/settings/settings.hpp"

#include <fmt/format.h>

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "common/duration_text.hpp"
#include "common/parse_error.hpp"
#include "common/proc_files.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

CLI::ConfigError error_at(const toml::source_region& place, std::string_view what) {
  return CLI::ConfigError(fmt::format("line {}: {}", place.begin.line, what));
}

std::optional<std::string> text_of(const toml::node& value, bool is_flag) {
  if (is_flag || value.is_boolean()) {
    return is_flag && value.is_boolean() ? std::optional(value.ref<bool>() ? "true" : "false")
                                         : std::nullopt;
  }
  if (const auto* const number = value.as_integer()) {  // which a double may not hold
    return fmt::format("{}", number->get());
  }
  return value.is_floating_point() ? std::optional(fmt::format("{}", *value.value<double>()))
                                   : value.value<std::string>();
}

// Returns the words for which a TOML table of options stands: the key is an option of `app` without
// its dashes, the value a number or a string, or for a flag true or false. Throws an error with the
// number of its line for anything else.
std::vector<std::string> words_of(std::string_view table, const CLI::App& app) {
  const toml::parse_result parsed = toml::parse(table);
  if (!parsed) {
    throw error_at(parsed.error().source(), parsed.error().description());
  }
  std::vector<std::string> words;
  for (const auto& [key, value] : parsed.table()) {
    const CLI::Option* const option = app.get_option_no_throw(fmt::format("--{}", key.str()));
    if (option == nullptr || !option->get_configurable()) {
      throw error_at(value.source(),
                     fmt::format("'{}' is not a setting: expected the name of an option",
                                 printable(key.str())));
    }
    const bool is_flag = option->get_expected_min() == 0;
    const auto text = text_of(value, is_flag);
    if (!text) {
      throw error_at(value.source(),
                     fmt::format("'{}': expected {}", printable(key.str()),
                                 is_flag ? "true or false" : "a number or a string"));
    }
    words.push_back(fmt::format("--{}={}", key.str(), *text));
  }
  return words;
}

constexpr const char* kLogLevelOption = "--log-level";

// Returns `rule` with a message that quotes the word and says what was expected.
CLI::Validator expecting(const std::string& what, const CLI::Validator& rule) {
  const auto apply = [what, rule](std::string& word) {
    const std::string given = word;
    try {
      if (rule(word).empty()) {
        return std::string();
      }
    } catch (const CLI::ValidationError&) {  // AsSizeValue throws, other validators return
    }
    return fmt::format("'{}': expected {}", given, what);
  };
  return {apply, ""};
}

std::string why_no_fraction(std::string& word) {
  double number = 0;  // CLI::Range takes "nan"
  return CLI::detail::lexical_cast(word, number) && number > 0 && number < 1 ? "" : "no fraction";
}

// `--dir "$UNSET"` must not mean the default directory, which another server may have.
std::string why_empty(const std::string& word) {
  return word.empty() ? "'': expected a value" : "";
}

Duration duration_of(const std::string& option, const std::string& word,
                     Duration least = Duration{1},
                     EndlessDuration endless = EndlessDuration::kRefused,
                     const char* otherwise = "") {
  const auto duration = parse_duration(word, endless);
  if (!duration) {
    throw CLI::ValidationError(option, duration.error().message + otherwise);
  }
  if (*duration < least) {
    throw CLI::ValidationError(
        option, fmt::format("'{}' is too short: expected at least {}", word, duration_text(least)));
  }
  return *duration;
}

CLI::Option* add_text(CLI::App& app, const std::string& name, const std::string& type,
                      std::string& value, const std::string& help) {
  return app.add_option(name, value, help)->type_name(type)->check(why_empty);
}

// `value` is a Duration, or optional: then "inf" is none.
template <class Value>
void add_duration(CLI::App& app, const std::string& name, Value& value, const std::string& help,
                  Duration least = Duration{1}) {
  constexpr auto kEndless =
      std::is_same_v<Value, Duration> ? EndlessDuration::kRefused : EndlessDuration::kAllowed;
  const auto take = [&value, name, least](const std::string& word) {
    const Duration duration = duration_of(name, word, least, kEndless);
    value = duration == kForever ? Value{} : Value{duration};
  };
  app.add_option_function<std::string>(name, take, help)->type_name("DUR");
}

template <class Choice>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Choice& value,
                        const std::vector<std::pair<std::string, Choice>>& choices,
                        const std::string& help) {
  const auto names = [&](const char* between) {
    return CLI::detail::join(
        choices, [](const auto& choice) { return choice.first; }, between);
  };
  // A Transformer alone would accept the numbers of the enum, too.
  return app.add_option(name, value, help)
      ->type_name(names("|"))
      ->transform(
          expecting("one of " + names(", "), CLI::IsMember(choices) & CLI::Transformer(choices)));
}

void add_place_options(CLI::App& app, Settings& settings) {
  add_text(app, "--dir", "DIR", settings.dir,
           "runtime directory [$FILETIMER_DIR or the user's own]");
  add_text(app, "--fifo", "PATH", settings.fifo, "request pipe [DIR/requests]");
  add_text(app, "--log", "PATH", settings.log,
           "log [expired.jsonl in a named DIR, else in ~/.local/state/filetimer]");
  constexpr std::uint64_t kSmallest = 4096;
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 60;
  app.add_option("--log-max", settings.log_max_bytes,
                 "size at which the log is renamed to PATH.1 [64M]")
      ->type_name("SIZE")
      ->transform(expecting("a size of at least 4K with an optional unit (K, M, G), such as 64M",
                            CLI::AsSizeValue(false) & CLI::Range(kSmallest, kLargest)));
  add_text(app, "--metrics", "FILE", settings.metrics,
           "metrics for Prometheus, replaced at each sweep [none]");
  app.add_flag("--detach", settings.detach, "return when ready; run on in a session of its own");
}

void add_time_options(CLI::App& app, Settings& settings) {
  add_duration(app, "--default-timeout", settings.default_timeout,
               "timeout of a scope that is started without one [none]");
  add_duration(app, "--max-timeout", settings.max_timeout,
               "longest timeout that is granted [none]");
  app.add_option("--warn-at", settings.warn_at,
                 "part of a timeout after which a warning is recorded [none]")
      ->type_name("FRACTION")
      ->check(expecting("a number over 0 and below 1, such as 0.5", {why_no_fraction, ""}));
  add_duration(app, "--max-wait", settings.max_wait,
               "longest time that a control request may take [1h]");
  add_duration(app, "--max-interval", settings.max_interval,
               "longest time between housekeeping sweeps [10s]", Settings::kLeastInterval);
}

void add_kill_options(CLI::App& app, Settings& settings) {
  const auto take_grace = [&settings](const std::string& word) {
    settings.grace = word == "off" ? kForever
                                   : duration_of("--grace", word, Duration{1},
                                                 EndlessDuration::kRefused, ", or off");
  };
  app.add_option_function<std::string>("--grace", take_grace,
                                       "from first signal to SIGKILL [own clients 10s, else off]")
      ->type_name("DUR|off");
  add_choice<KillMode>(app, "--kill", settings.kill.mode,
                       {{"tree", KillMode::kTree}, {"process", KillMode::kProcess}},
                       "kill targets: the worker with its descendants, or alone [tree]");
  add_choice<Settings::Stopped>(
      app, "--stopped", settings.stopped,
      {{"defer", Settings::Stopped::kDefer}, {"kill", Settings::Stopped::kKill}},
      "a worker that is stopped, frozen or traced at its deadline [defer]");
  add_choice<EvidenceLevel>(app, "--evidence", settings.kill.evidence,
                            {{"none", EvidenceLevel::kNone},
                             {"proc", EvidenceLevel::kProc},
                             {"stacks", EvidenceLevel::kStacks}},
                            "evidence recorded before the signal [stacks, else proc]");
  add_duration(app, "--evidence-timeout", settings.kill.evidence_timeout,
               "longest delay of a signal for evidence [2s]");
  add_duration(app, "--kill-wait", settings.kill.kill_wait,
               "time from SIGKILL until a worker is unkillable [30s]");
}

void add_other_options(CLI::App& app, Settings& settings) {
  add_text(app, "--on-expiry", "CMD", settings.on_expiry,
           "shell command for each worker whose kill has ended");
  add_text(app, "--on-warning", "CMD", settings.on_warning,
           "shell command for each worker whose soft deadline has passed");
  add_text(app, "--evidence-command", "CMD", settings.evidence_command,
           "shell command for each incident, before the signals");
  add_text(app, "--evidence-dir", "DIR", settings.evidence_dir,
           "drop-ins, or none [those installed and in /etc/filetimer/evidence.d]")
      ->check(expecting("a directory, or none",
                        CLI::ExistingDirectory | CLI::IsMember(std::vector<std::string>{"none"})));
  app.add_flag("--dry-run", settings.kill.dry_run, "record expiries and send no signal");
  app.add_flag("--realtime", settings.realtime, "run with real-time priority (SCHED_RR)");
  std::vector<std::pair<std::string, LogLevel>> levels;
  for (const auto& [level, name] : kLogLevels) {
    levels.emplace_back(name, level);
  }
  add_choice(app, kLogLevelOption, settings.log_level, levels,
             "error, warning, info or debug [info]")
      ->option_text("LEVEL");
}

// The usage line names COMMAND, which CLI11 does not know.
class Help final : public CLI::Formatter {
 public:
  Help() { column_width(31); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: timer_server [OPTIONS] [-- COMMAND [ARG...]]\n";
  }
};

// Not by envname(): from CLI11 2.4 on that passes over a wrong value.
void take_variable(CLI::App& app) {
  CLI::Option& option = *app.get_option(kLogLevelOption);
  const char* const level = std::getenv(kLogLevelVariable);
  if (option.count() == 0 && level != nullptr && *level != '\0') {
    option.add_result(level);
    option.run_callback();
  }
}

void set_up(CLI::App& app, Settings& settings, std::string& config) {
  app.set_help_flag("-h,--help", "show this");
  app.set_version_flag("--version", std::string("timer_server ") + FILETIMER_VERSION);
  app.formatter(std::make_shared<Help>());
  app.option_defaults()->take_last();
  add_text(app, "--config", "FILE", config, "options in TOML; the command line wins")
      ->configurable(false);
  add_place_options(app, settings);
  add_time_options(app, settings);
  add_kill_options(app, settings);
  add_other_options(app, settings);
  app.footer(
      "Durations: 30, 30s, 1.5, 500ms, 250us, 10m, 2h, 1d; seconds without a unit.\n"
      "$FILETIMER_LOG_LEVEL stands for --log-level.\n\n"
      "Examples:\n"
      "  timer_server --dir /run/user/1000/job\n"
      "  timer_server --grace 30s -- torchrun --nproc-per-node 8 train.py\n\n"
      "Exit status: 0 stopped; 1 failed; 2 usage; 3 another server has the directory;\n"
      "8 stopped, and a worker was left unkillable. With COMMAND: its own status\n"
      "(128+N if signal N ended it); 125 the server failed or bad usage;\n"
      "126 COMMAND cannot be executed; 127 COMMAND not found.");
}

}  // namespace

tl::expected<Settings, int> read_settings(int argc, char** argv) {
  // The words after the first -- are COMMAND's, and are not parsed.
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  const bool has_separator = separator != arguments.end();
  Settings settings;
  settings.command.assign(has_separator ? separator + 1 : separator, arguments.end());
  arguments.erase(separator, arguments.end());

  const auto usage = [&](const std::string& line) {
    std::fputs(
        fmt::format("timer_server: error: {} (see timer_server --help)\n", printable(line)).c_str(),
        stderr);
    return tl::unexpected<int>(has_separator ? exit_status::kServerFailed : exit_status::kUsage);
  };
  if (has_separator && settings.command.empty()) {
    return usage("'--' ends the line: expected a COMMAND after it");
  }
  CLI::App app("Watches the workers of one host and kills those with an expired scope.",
               "timer_server");
  std::string config;
  set_up(app, settings, config);
  const auto parse_line = [&] { app.parse(words_for_parser(arguments)); };
  std::string reading;  // the source that an error names
  try {
    parse_line();
    if (!config.empty()) {
      constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;
      const auto text = read_small_file(config, kMaxConfigBytes + 1);
      if (!text) {
        return usage("--config: " + text.error().message);
      }
      if (text->size() > kMaxConfigBytes) {
        return usage(
            fmt::format("--config '{}': expected at most {} bytes", config, kMaxConfigBytes));
      }
      reading = fmt::format("--config '{}': ", config);
      app.parse(words_for_parser(words_of(*text, app)));
      reading.clear();
      parse_line();  // over the values of the file
    }
    reading = fmt::format("${}: ", kLogLevelVariable);
    take_variable(app);
  } catch (const CLI::Success& early) {
    (void)app.exit(early);
    if (!std::cout.flush()) {
      std::fputs("timer_server: error: cannot write to standard output\n", stderr);
      return tl::unexpected<int>(exit_status::kFailed);
    }
    return tl::unexpected<int>(exit_status::kStopped);
  } catch (const CLI::ExtrasError&) {
    const std::string word = app.remaining().front();
    return usage(word.starts_with('-')
                     ? fmt::format("unknown option '{}'", word)
                     : fmt::format("unexpected '{}': expected an option, or '-- COMMAND [ARG...]' "
                                   "at the end",
                                   word));
  } catch (const CLI::ParseError& error) {
    return usage(reading + what_is_wrong(error));
  }
  if (settings.detach && !settings.command.empty()) {
    return usage("--detach: expected no COMMAND with it (the server ends with its COMMAND)");
  }
  // Then it would be /dev/null, or another file of the server, which has closed those of its
  // caller.
  constexpr std::array kDescriptors{"/dev/std", "/dev/fd/", "/proc/self/fd/"};
  if (settings.detach && std::ranges::any_of(kDescriptors, [&](const char* descriptors) {
        return settings.log.starts_with(descriptors);
      })) {
    return usage(fmt::format("--detach: expected another --log with it than '{}'", settings.log));
  }
  return settings;
}

}  // namespace filetimer
