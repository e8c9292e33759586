// `timer_client list`: every open scope, or how long scopes took. It sends no request: what is
// shown stands in the files of the runtime directory, and of ended workers in the server's log. So
// it is shown also when the server hangs or is gone.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "common/run_folder.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/list_view.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/commands/scope_pages.hpp"
#include "timer_client/cli/commands/servers_below.hpp"
#include "timer_client/cli/log/ended_workers.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer::cli {
namespace {

struct ListOptions {
  Place place;
  bool json = false;
  bool statistics = false;
};

void print_scopes(Output& out, const std::vector<ListedScope>& scopes, bool json) {
  // Read after the pages: nothing in them was acquired later.
  const Instant now = Instant::now();
  if (!json) {
    out.write(scopes_table(scopes, now, wants_colour(out.fd())));
    return;
  }
  for (const ListedScope& scope : scopes) {
    out.write(scope_json(scope, now));
  }
}

void print_statistics(Output& out, const StatisticsByName& statistics, bool json) {
  if (!json) {
    out.write(statistics_table(statistics, wants_colour(out.fd())));
    return;
  }
  for (const auto& [scope, sums] : statistics) {
    out.write(statistics_json(scope, sums));
  }
}

int run_list(const ListOptions& options) {
  const RunFolder folder = resolve_run_folder(options.place.dir);
  const ServerSeen server = look_for_server(folder.dir);
  auto reading = read_pages(folder.dir, server.max_timeout,
                            options.statistics ? ReadStatistics::kYes : ReadStatistics::kNo);
  if (!reading) {
    complain(reading.error().message);
    return kExitFailed;
  }
  const EndedWorkers ended =
      options.statistics ? read_ended_workers(folder, server.boot) : EndedWorkers{};
  for (const auto& [scope, sums] : ended.statistics) {
    reading->statistics[scope].add(sums);
  }
  Output out;
  const bool is_empty = options.statistics ? reading->statistics.empty() : reading->scopes.empty();
  if (is_empty) {
    if (server.is_there) {
      complain(fmt::format("no {} in '{}'", options.statistics ? "statistics" : "open scopes",
                           folder.dir));
    }
  } else if (options.statistics) {
    print_statistics(out, reading->statistics, options.json);
  } else {
    print_scopes(out, reading->scopes, options.json);
  }
  const int code = std::max(out.finish(), ended.problems.empty() ? kExitDone : kExitFailed);
  complain_of_all(ended.problems);
  if (const std::string skipped = skipped_text(*reading); !skipped.empty()) {
    complain(skipped);
  }
  if (reading->cut_short) {
    complain(fmt::format("there are more than {} files in '{}/{}': the others were not looked at",
                         kMaxPageFilesRead, folder.dir, kPagesName));
  }
  if (!server.is_there) {
    complain(server.why_not + servers_below(folder.dir));
  }
  return code != kExitDone || server.is_there ? code : kExitNoServer;
}

}  // namespace

Command add_list(CLI::App& root) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* app = root.add_subcommand("list", "Every open scope: whose it is and what is left");
  app->add_flag("--json", options->json, "A JSON object a line");
  app->add_flag("--stats", options->statistics,
                "Instead, how long scopes took, by name, with those of\n"
                "workers that have ended, as far as the log has them");
  add_place_options(*app, options->place);
  app->footer(
      "Examples:\n"
      "  timer_client list\n"
      "  timer_client list --json | jq 'select(.overdue)'\n"
      "  timer_client list --stats\n\n"
      "It sends no request and reads the runtime directory itself, so it also shows what is open\n"
      "when the server hangs or is gone. REMAINING: -1.2 s is overdue by that much; expired: the\n"
      "server has judged it. TIMEOUT: 5 s of 1 h was asked for as 1 h. MEDIAN and P99 are\n"
      "estimates, right to an eighth; MARGIN is the least time that was ever left at a\n"
      "release. --stats reads the server's log, too.\n\n"
      "Exit codes: 0 done (also when nothing is open), 1 failed, 2 usage, 4 no server (open\n"
      "scopes are shown all the same).");
  return {app, [options] { return run_list(*options); }};
}

}  // namespace filetimer::cli
