// Options that several subcommands share. Each reads its word while the command line is parsed, so
// a wrong one is a usage error that quotes it.
// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.hpp"
#include "common/duration_text.hpp"
#include "common/result.hpp"

namespace filetimer::cli {

// Where the server is.
struct Place {
  std::string dir;
  std::string fifo;
};
// And --log-level, which counts for the whole process.
void add_place_options(CLI::App& app, Place& place);

CLI::Option* add_duration_option(CLI::App& app, const std::string& flag,
                                 std::optional<Duration>& value, const std::string& description,
                                 EndlessDuration endless = EndlessDuration::kAllowed);

// 0 or more.
CLI::Option* add_number_option(CLI::App& app, const std::string& flag, int& value,
                               const std::string& type, const std::string& description);
CLI::Option* add_number_option(CLI::App& app, const std::string& flag,
                               std::optional<std::int64_t>& value, const std::string& type,
                               const std::string& description);

// `--since`: microseconds since the epoch, from which on records count.
CLI::Option* add_since_option(CLI::App& app, std::optional<std::int64_t>& since_us);

// For check(): a name that is there. `--host "$UNSET"` must not choose no record.
std::string is_name(const std::string& word);

// `--warn-after`; is_warn_after() has to agree.
CLI::Option* add_warn_after_option(CLI::App& app, std::optional<Duration>& value);

// A scope's name: any bytes, at least one.
CLI::Option* add_scope_option(CLI::App& app, std::string& name, const std::string& description);

// `TERM`, `SIGTERM`, `15`, `RTMIN+1`; 0 kills no process.
CLI::Option* add_signal_option(CLI::App& app, int& signal);
Result<int> parse_signal(std::string_view word);

}  // namespace filetimer::cli
