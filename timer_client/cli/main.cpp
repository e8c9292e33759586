// The command line of filetimer's client: parses the arguments, runs the subcommand, and returns
// its exit code. The subcommands are in commands/.
// SPDX-License-Identifier: MIT
#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/parse_error.hpp"
#include "common/text.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"
#include "timer_client/client/messages.hpp"

namespace {

using namespace filetimer::cli;

constexpr const char* kRun = "run";
constexpr std::string_view kReadFiles[] = {"log", "show", "report", "suggest"};

struct CommandLine {
  std::vector<std::string> ours;
  std::vector<std::string> command;  // behind the first `--` of `run`
};

// Splits off COMMAND before the parser runs, so that the parser never sees an option of COMMAND.
CommandLine split(int argc, char** argv) {
  CommandLine words{{argv + 1, argv + argc}, {}};
  const auto first = std::find_if(words.ours.begin(), words.ours.end(),
                                  [](const std::string& word) { return !word.starts_with('-'); });
  const auto dashes = std::find(words.ours.begin(), words.ours.end(), "--");
  const bool has_dashes = first < dashes && dashes != words.ours.end();
  if (has_dashes && *first == kRun) {
    words.command.assign(dashes + 1, words.ours.end());
    words.ours.erase(dashes, words.ours.end());
  } else if (has_dashes && std::ranges::find(kReadFiles, *first) != std::end(kReadFiles)) {
    // CLI11 takes no FILE behind a `--` that follows another word, as in `show last -- FILE`.
    for (auto word = words.ours.erase(dashes); word != words.ours.end(); ++word) {
      word->insert(0, word->size() > 1 && word->starts_with('-') ? "./" : "");
    }
  }
  return words;
}

// Returns the words that no part of the parser took. A `--` among them is not at fault.
std::vector<std::string> unexpected_words(const CLI::App& app) {
  std::vector<std::string> words = app.remaining();
  std::erase(words, "--");
  return words;
}

// Returns a message about the first unexpected word; empty: every word is expected.
std::string unexpected_word(const CLI::App& root) {
  for (const CLI::App* app : root.get_subcommands()) {
    if (const auto words = unexpected_words(*app); !words.empty()) {
      const bool is_command = app->get_name() == kRun && !words[0].starts_with('-');
      return "unexpected '" + words[0] + "': " +
             (is_command ? "expected '-- COMMAND [ARG...]' at the end"
                         : "see timer_client " + app->get_name() + " --help");
    }
  }
  if (const auto words = unexpected_words(root); !words.empty()) {
    if (const auto parsed = root.get_subcommands(); !parsed.empty()) {
      const std::string name = parsed[0]->get_name();
      return "unexpected '" + words[0] + "': " +
             (words[0].starts_with('-') ? "expected options after '" + name + "'"
                                        : "see timer_client " + name + " --help");
    }
    const std::vector<std::string> names =
        filetimer::mapped(root.get_subcommands([](const CLI::App*) { return true; }),
                          [](const CLI::App* app) { return app->get_name(); });
    const std::string meant = meant_by(words[0], names);
    return "unexpected '" + words[0] + "': " +
           (meant.empty() ? "expected one of " + joined(names, " ")
                          : "did you mean '" + meant + "'?");
  }
  return {};
}

int usage_error(const CLI::App& root, const std::string& message) {
  const auto parsed = root.get_subcommands();
  const bool is_run = !parsed.empty() && parsed[0]->get_name() == kRun;
  complain(!parsed.empty() ? parsed[0]->get_name() + ": " + message : message);
  return is_run ? kExitRunFailed : kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine words = split(argc, argv);
  CLI::App root("Client of timer_server, which kills processes that miss their deadlines.");
  root.name("timer_client");
  root.option_defaults()->take_last();  // as timer_server and GNU's programs
  root.set_version_flag("--version", "timer_client " FILETIMER_VERSION);
  root.footer(
      "Examples:\n"
      "  timer_client run --timeout 2h -- python train.py\n"
      "  timer_client list\n"
      "  timer_client show last\n\n"
      "Environment: FILETIMER_DIR names the runtime directory, FILETIMER_RPC_TIMEOUT is the\n"
      "default of --rpc-timeout, FILETIMER_LOG_LEVEL of --log-level.\n"
      "Exit codes: 0 done, 1 failed, 2 usage, 4 no server, 5 timed out, 6 refused; `run` has its\n"
      "own (timer_client run --help).");
  root.require_subcommand(0, 1);  // a file may have the name of a subcommand
  constexpr const char* kWatch = "Watch";
  constexpr const char* kNow = "See what is going on";
  constexpr const char* kPast = "Find out what happened";
  constexpr const char* kControl = "Control the server";
  const std::pair<const char*, Command> commands[] = {{kWatch, add_run(root, words.command)},
                                                      {kWatch, add_acquire(root)},
                                                      {kWatch, add_release(root)},
                                                      {kNow, add_list(root)},
                                                      {kNow, add_dump(root)},
                                                      {kNow, add_status(root)},
                                                      {kPast, add_show(root)},
                                                      {kPast, add_report(root)},
                                                      {kPast, add_log(root)},
                                                      {kPast, add_suggest(root)},
                                                      {kControl, add_ping(root)},
                                                      {kControl, add_drain(root)},
                                                      {kControl, add_shutdown(root)},
                                                      {kControl, add_rendezvous(root)}};
  for (const auto& [group, command] : commands) {
    command.app->group(group);
  }
  try {
    root.parse(filetimer::words_for_parser(words.ours));
  } catch (const CLI::Success& help_or_version) {
    std::ostringstream text;
    root.exit(help_or_version, text, text);
    Output out;
    out.write(text.str());
    return out.finish();
  } catch (const CLI::ParseError& error) {
    // Name an unexpected word rather than the missing option: the option may be misspelt.
    const std::string word = unexpected_word(root);
    return usage_error(root, word.empty() ? filetimer::what_is_wrong(error) : word);
  }
  if (const auto level = filetimer::client_messages::take_level_of_environment(); !level) {
    return usage_error(root, level.error().message);
  }
  for (const auto& [group, command] : commands) {
    if (command.app->parsed()) {
      return command.run();
    }
  }
  return usage_error(root, "no subcommand: see timer_client --help");
}
