// The subcommands of timer_client. Each has a function that adds its options to the root application
// and returns the function to call after they are parsed. Only main.cpp calls these.
// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

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

}  // namespace filetimer::cli
