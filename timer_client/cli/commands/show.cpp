// `timer_client show`: one expiry, whole.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <memory>
#include <string>

#include "timer_client/cli/commands/chosen_expiry.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

struct ShowOptions {
  ExpiryOptions expiry;
  bool json = false;
};

int run_show(const ShowOptions& options) {
  const ChosenExpiry chosen = chosen_expiry(options.expiry, false);
  if (!chosen.records) {
    return chosen.code;
  }
  Output out;
  if (options.json) {
    chosen.records->each([&](const Record& record) {
      if (chosen.key.is_of(record)) {
        out.write(std::string(record.line) + "\n");
      }
    });
  } else {
    out.write(expiry_page(chosen.key, *chosen.records, read_incident(*chosen.records, chosen.key),
                          {.has_colour = wants_colour(out.fd())}));
  }
  return std::max(chosen.code, out.finish());
}

}  // namespace

Command add_show(CLI::App& root) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* app =
      root.add_subcommand("show", "One expiry: its scope, worker, ranks, evidence and kill");
  add_expiry_options(*app, options->expiry);
  app->add_flag("--json", options->json, "Its records, a JSON object a line");
  app->footer(
      "Examples:\n"
      "  timer_client show last\n"
      "  timer_client show cst2jd-1 /shared/logs\n"
      "  timer_client show /shared/logs\n"
      "  zcat old.jsonl.gz | timer_client show last -\n\n"
      "Exit codes: 0 done, 1 failed (also for an unknown ID, and when one of the logs\n"
      "could not be read), 2 usage.");
  return {app, [options] { return run_show(*options); }};
}

}  // namespace filetimer::cli
