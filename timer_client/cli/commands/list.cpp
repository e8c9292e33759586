// `timer_client list`: every open scope, or how long scopes took. It sends no request and reads the
// files of the runtime directory, so it works also when the server hangs or is gone.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/run_folder.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/scope_pages.hpp"
#include "timer_client/cli/commands/stragglers.hpp"
#include "timer_client/cli/commands/views.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer::cli {
namespace {

struct ListOptions {
  Place place;
  bool json = false;
  bool statistics = false;
  bool stragglers = false;
  bool watches = false;
};

constexpr std::chrono::seconds kWatchPeriod{2};

// Compares the workers that are of a job. If none is a straggler, writes why on standard error,
// unless there is neither a worker nor a server.
std::vector<Straggler> stragglers_among(const std::vector<ListedWorker>& workers, bool is_served) {
  std::vector<RankScopes> ranks;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].owner.job_id.empty() || !workers[i].owner.rank.empty()) {
      ranks.push_back({i, workers[i].owner.job_id, workers[i].ended});
    }
  }
  const StragglerSearch search = search_stragglers(ranks);
  if (search.stragglers.empty() && (is_served || !workers.empty())) {
    complain(
        !search.compared.empty()
            ? fmt::format("no stragglers among {} ranks", search.compared.size())
            : fmt::format("too few ranks or scopes: expected {} scopes that have ended, of one "
                          "name, in each of at least {} ranks of a job",
                          kLeastScopesCompared, kLeastRanksCompared));
  }
  return search.stragglers;
}

// Returns what is printed of the pages; empty: nothing is open, or has statistics.
std::string text_of(const FolderReading& reading, const ListOptions& options, Screen screen) {
  if (options.stragglers) {
    const std::vector<Straggler> found = stragglers_among(reading.workers, reading.server.is_there);
    return options.json ? stragglers_json(found, reading.workers)
                        : stragglers_table(found, reading.workers, screen);
  }
  if (options.statistics) {
    return options.json ? statistics_json(reading.statistics)
                        : statistics_table(reading.statistics, screen);
  }
  // Read after the pages, so no scope in them was acquired later.
  const Instant now = Instant::now();
  return options.json ? scopes_json(reading.scopes, now)
                      : scopes_table(reading.scopes, now, screen);
}

int run_list(const ListOptions& options) {
  if (options.statistics && options.stragglers) {
    return failed("list: --stats and --stragglers: expected one of them", kExitUsage);
  }
  const RunFolder folder = resolve_run_folder(dir_of_server(options.place));
  const auto reading = read_pages(folder.dir, options.statistics   ? ReadStatistics::kYes
                                              : options.stragglers ? ReadStatistics::kOfEachWorker
                                                                   : ReadStatistics::kNo);
  if (!reading) {
    return failed(reading.error().message, kExitFailed);
  }
  const ServerSeen& server = reading->server;
  Output out;
  const std::string text = text_of(*reading, options, screen_of(out.fd()));
  out.write(text);
  if (text.empty() && reading->skipped.empty() && !options.stragglers && server.is_there) {
    complain(fmt::format("no {} in '{}'", options.statistics ? "statistics" : "open scopes",
                         folder.dir));
  }
  const int code = out.finish();
  complain_of_all({skipped_text(*reading)});
  if (server.is_there) {
    return code;
  }
  complain(server.why_not + servers_below(folder.dir));
  return code == kExitDone ? kExitNoServer : code;
}

// Prints the list again and again, until the user or the reader ends that. A terminal shows the
// latest list only.
int watch(const ListOptions& options) {
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  for (;;) {
    Output screen;
    screen.write(is_terminal ? "\x1b[H\x1b[2J" : "");
    if (const int code = screen.finish(); code != kExitDone || screen.is_closed()) {
      return code;
    }
    if (const int code = run_list(options); code != kExitDone && code != kExitNoServer) {
      return code;
    }
    std::this_thread::sleep_for(kWatchPeriod);
  }
}

}  // namespace

Command add_list(CLI::App& root) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* app =
      root.add_subcommand("list", "Every open scope: its worker and its remaining time");
  app->add_flag("--json", options->json, "A JSON object a line");
  app->add_flag("--watch", options->watches, "Again every two seconds, until Ctrl-C");
  app->add_flag("--stats", options->statistics,
                "Instead, how long the scopes of these workers took, by name\n"
                "(`suggest` has those of workers that have ended)");
  app->add_flag("--stragglers", options->stragglers,
                "Instead, the ranks that are slow in a scope, or for which\n"
                "the others wait in one, by the last scopes of each rank");
  add_directory_options(*app, options->place);
  app->footer(
      "Examples:\n"
      "  timer_client list\n"
      "  timer_client list --json | jq 'select(.overdue)'\n"
      "  timer_client list --stats\n"
      "  timer_client list --stragglers\n\n"
      "It sends no request and reads the runtime directory itself, so it also shows what is open\n"
      "when the server hangs or is gone. REMAINING: -1.2 s is overdue by that much; expired: the\n"
      "server has judged it. TIMEOUT: 5 s of 1 h was requested as 1 h. MEDIAN and P99 are\n"
      "estimates, right to a sixteenth; MARGIN is the least time that was ever left at a\n"
      "release. --stragglers compares at least 3 ranks of a job by the medians of their last 8 to\n"
      "16 scopes of a name; OTHERS is the median of the other ranks.\n\n"
      "Exit codes: 0 done (also when nothing is open), 1 failed, 2 usage, 4 no server (open\n"
      "scopes are shown nevertheless).");
  return {app, [options] { return options->watches ? watch(*options) : run_list(*options); }};
}

}  // namespace filetimer::cli
