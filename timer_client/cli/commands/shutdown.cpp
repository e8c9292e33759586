// `timer_client shutdown`: ends the server, and returns when it has ended. Whoever waits is told
// for whom.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <memory>

#include "common/json_fields.hpp"
#include "timer_client/cli/commands/ask.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

struct ShutdownArguments {
  AskOptions ask;
  std::string graceful;  // "scopes", "workers", empty: not asked for
  bool force = false;
  std::optional<Duration> timeout;
};

std::string workers_text(const Obstacles& obstacles) {
  std::string text;
  for (const auto& worker : obstacles.workers) {
    text += fmt::format("{}{} (pid {})", text.empty() ? "" : ", ", worker.comm, worker.pid);
  }
  return text;
}

// One line, when it is another than the last one was.
class Progress {
 public:
  void tell(std::string_view answer) {
    const Obstacles obstacles = obstacles_in(answer);
    const std::string scopes = open_scopes_text(obstacles);
    const std::string workers = workers_text(obstacles);
    if (scopes.empty() && workers.empty()) {
      return;  // `granted`, and what is not known
    }
    std::string line = "waiting for " + (scopes.empty() ? workers : scopes);
    if (line != last_) {
      complain(line);
      last_ = std::move(line);
    }
  }

 private:
  std::string last_;
};

int run_shutdown(const ShutdownArguments& options) {
  ShutdownOptions wanted;
  wanted.graceful = !options.graceful.empty();
  wanted.workers = options.graceful == "workers";
  wanted.force = options.force;
  wanted.timeout = options.timeout.value_or(wanted.timeout);
  Progress progress;
  return ask_and_tell(
      options.ask, question_of(wanted),
      [](const Reply& reply) {
        const std::size_t open = obstacles_in(reply.answer).open_scope_count;
        if (open > 0) {
          complain(fmt::format("{} left open", open == 1 ? std::string("1 scope was")
                                                         : fmt::format("{} scopes were", open)));
        }
        return kExitDone;
      },
      [&](std::string_view answer) { progress.tell(answer); });
}

}  // namespace

Command add_shutdown(CLI::App& root) {
  auto options = std::make_shared<ShutdownArguments>();
  CLI::App* app = root.add_subcommand("shutdown", "End the server, unless scopes are open");
  app->add_option_function<std::string>(
         "--graceful",
         [options = options.get()](const std::string& word) {
           // Without a value the parser gives "".
           options->graceful = word.empty() ? "scopes" : word;
           if (options->graceful != "scopes" && options->graceful != "workers") {
             throw CLI::ValidationError("--graceful",
                                        fmt::format("'{}': expected scopes or workers", word));
           }
         },
         "Wait until open scopes have ended; with `workers`:\nuntil the workers have, too")
      ->expected(0, 1)
      ->type_name("[=scopes|workers]");
  app->add_flag("--force", options->force,
                "End whatever is open; with --graceful once the time is up");
  add_duration_option(*app, "--timeout", options->timeout, "How long to wait [30s]");
  add_ask_options(*app, options->ask);
  app->footer(std::string("Examples:\n"
                          "  timer_client shutdown                          # refused while scopes "
                          "are open\n"
                          "  timer_client shutdown --graceful --timeout 10m\n"
                          "  timer_client shutdown --graceful=workers --force --timeout 1h\n\n"
                          "No worker is killed for it: scopes that stay open are watched no "
                          "longer. But a\nserver with a COMMAND ends by ending it: SIGTERM, and "
                          "with --force SIGKILL to all\nthat it started. A shutdown that waits "
                          "goes on when this command is interrupted;\n`timer_client drain --off` "
                          "takes it back.\n\n") +
              kAskExits);
  return {app, [options] { return run_shutdown(*options); }};
}

}  // namespace filetimer::cli
