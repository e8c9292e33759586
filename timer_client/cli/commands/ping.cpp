// `timer_client ping`: whether the server answers, and how fast.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <memory>

#include "common/json_fields.hpp"
#include "common/json_writer.hpp"
#include "timer_client/cli/commands/ask.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

struct PingOptions {
  AskOptions ask;
  bool json = false;
};

int show(const Reply& reply, bool json) {
  const double waited_ms = std::chrono::duration<double, std::milli>(reply.waited).count();
  simdjson::dom::parser parser;
  simdjson::dom::object answer;
  if (parser.parse(reply.answer).get_object().get(answer) != simdjson::SUCCESS) {
    return kExitFailed;
  }
  const std::int64_t pid = integer_at(answer, "server_pid").value_or(0);
  Output out;
  if (json) {
    JsonWriter line;
    line.field("server_pid", pid).field("server_version", text_at(answer, "server_version"));
    line.fixed("answered_ms", waited_ms, 3);
    out.write(std::move(line).finish() + "\n");
  } else {
    out.write(fmt::format("pid {} answered in {:.2f} ms\n", pid, waited_ms));
  }
  return out.finish();
}

}  // namespace

Command add_ping(CLI::App& root) {
  auto options = std::make_shared<PingOptions>();
  CLI::App* app = root.add_subcommand("ping", "Whether the server answers, and how fast");
  app->add_flag("--json", options->json, "A JSON object");
  add_ask_options(*app, options->ask);
  app->footer(std::string("Example:\n"
                          "  timer_client ping --rpc-timeout 2s || echo 'nobody watches'\n\n") +
              kAskExits);
  return {app, [options] {
            wire::Question question;
            question.request = "ping";
            return ask_and_tell(options->ask, question,
                                [&](const Reply& reply) { return show(reply, options->json); });
          }};
}

}  // namespace filetimer::cli
