// `timer_client drain`: the server watches no new scopes, as before a reboot of the machine.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <memory>

#include "timer_client/cli/commands/ask.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

struct DrainOptions {
  AskOptions ask;
  bool off = false;
};

int show(const Reply& reply) {
  const DrainResult result = drain_in(reply.answer);
  Output out;
  out.write(result.draining
                ? fmt::format("draining: {} open, new scopes are not watched\n",
                              result.open_scope_count == 1
                                  ? std::string("1 scope is")
                                  : fmt::format("{} scopes are", result.open_scope_count))
                : "not draining: new scopes are watched\n");
  return out.finish();
}

}  // namespace

Command add_drain(CLI::App& root) {
  auto options = std::make_shared<DrainOptions>();
  CLI::App* app = root.add_subcommand("drain", "Watch no new scopes; open ones go on");
  app->add_flag("--off", options->off, "Watch new scopes again");
  add_ask_options(*app, options->ask);
  app->footer(std::string("Examples:\n"
                          "  timer_client drain\n"
                          "  timer_client drain --off\n\n") +
              kAskExits);
  return {app, [options] {
            wire::Question question;
            question.request = "drain";
            question.off = options->off;
            return ask_and_tell(options->ask, question, show);
          }};
}

}  // namespace filetimer::cli
