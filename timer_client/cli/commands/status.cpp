// `timer_client status`: what the server says of itself.
// SPDX-License-Identifier: MIT
#include <memory>

#include "timer_client/cli/commands/ask.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/status_view.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

struct StatusOptions {
  AskOptions ask;
  bool json = false;
};

}  // namespace

Command add_status(CLI::App& root) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* app = root.add_subcommand("status", "What the server is, does and may do");
  app->add_flag("--json", options->json, "The server's answer, a JSON object");
  add_ask_options(*app, options->ask);
  app->footer(std::string("Examples:\n"
                          "  timer_client status\n"
                          "  timer_client status --json | jq .may\n\n") +
              kAskExits);
  return {app, [options] {
            wire::Question question;
            question.request = "status";
            return ask_and_tell(options->ask, question, [&](const Reply& reply) {
              Output out;
              out.write(options->json ? reply.answer + "\n" : status_page(reply.answer));
              return out.finish();
            });
          }};
}

}  // namespace filetimer::cli
