// `timer_client list`: every open scope, or how long scopes took. It sends no request: it reads the
// files of the runtime directory and, for workers that have ended, the server's log. So it works
// also when the server hangs or is gone.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "common/boot.hpp"
#include "common/json_fields.hpp"
#include "common/run_folder.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/commands/scope_pages.hpp"
#include "timer_client/cli/commands/stragglers.hpp"
#include "timer_client/cli/commands/views.hpp"
#include "timer_client/cli/log/files.hpp"
#include "timer_client/cli/log/record.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer::cli {
namespace {

struct ListOptions {
  Place place;
  bool json = false;
  bool statistics = false;
  bool stragglers = false;
  std::optional<double> factor;  // only with `stragglers`
  bool watches = false;
};

constexpr std::chrono::seconds kWatchPeriod{2};

// Returns why the options contradict each other; empty: they do not.
std::string contradiction_in(const ListOptions& options) {
  if (options.statistics && options.stragglers) {
    return "--stats and --stragglers: expected one of them";
  }
  if (options.factor && !options.stragglers) {
    return "--factor: expected --stragglers with it";
  }
  return {};
}

ReadStatistics what_to_read(const ListOptions& options) {
  return options.statistics   ? ReadStatistics::kYes
         : options.stragglers ? ReadStatistics::kOfEachWorker
                              : ReadStatistics::kNo;
}

// How long the scopes of workers took that have ended, as `worker_ended` records tell it.
struct EndedWorkers {
  StatisticsByName statistics;
  std::vector<std::string> problems;  // logs that could not be read
};

// The same folder may be named by way of a symlink.
bool is_same_folder(const std::string& a, const std::string& b) {
  std::error_code none;
  return a == b || std::filesystem::equivalent(a, b, none);
}

// Returns what servers of `folder` have recorded in this boot, as far as it is still in the log of
// the last one. As `boot` the board has it: a container may show another one to this process.
EndedWorkers read_ended_workers(const RunFolder& folder, const BootId& boot) {
  EndedWorkers ended;
  OpenedLogs opened = open_own_logs(folder);
  const std::string boot_id = boot_id_text(boot);
  read_merged(opened.logs, [&](const Record& record) {
    if (record.event == "worker_ended" && record.boot_id == boot_id &&
        is_same_folder(record.text("dir"), folder.dir)) {
      for (const simdjson::dom::object scope : objects_at(record.fields, "scopes")) {
        const ScopeStatistics statistics = read_statistics(scope);
        ScopeStatistics& sums = ended.statistics[text_at(scope, "scope")];
        sums.add(statistics);
        sums.last = statistics.last;  // the log has an order
      }
    }
    return true;
  });
  ended.problems = std::move(opened.problems);
  const std::vector<std::string> unread = problems_of(opened.logs);
  ended.problems.insert(ended.problems.end(), unread.begin(), unread.end());
  return ended;
}

void print_scopes(Output& out, const std::vector<ListedScope>& scopes, bool json) {
  // Read after the pages, so no scope in them was acquired later.
  const Instant now = Instant::now();
  if (!json) {
    out.write(scopes_table(scopes, now, screen_of(out.fd())));
    return;
  }
  for (const ListedScope& scope : scopes) {
    out.write(scope_json(scope, now));
  }
}

void print_statistics(Output& out, const StatisticsByName& statistics, bool json) {
  if (!json) {
    out.write(statistics_table(statistics, screen_of(out.fd())));
    return;
  }
  for (const auto& [scope, sums] : statistics) {
    out.write(statistics_json(scope, sums));
  }
}

// Returns why there is nothing to print; empty: there are stragglers.
std::string why_no_stragglers(const StragglerSearch& search) {
  if (!search.stragglers().empty()) {
    return {};
  }
  if (search.compared_ranks() > 0) {
    return fmt::format("no stragglers among {} ranks", search.compared_ranks());
  }
  if (search.ranks() < kLeastRanksCompared) {
    return fmt::format("too few ranks: {} with scopes that have ended; expected at least {}{}",
                       search.ranks(), kLeastRanksCompared,
                       search.ranks() > 0 ? ""
                                          : " (timers on the pipe, as of PyTorch's own client, "
                                            "have no durations)");
  }
  return fmt::format(
      "too few scopes: expected {} that have ended, of one name, in each of at least {} ranks of "
      "a job",
      kLeastScopesCompared, kLeastRanksCompared);
}

// `is_served`: a server is running. If none is, the caller writes a message.
void print_stragglers(Output& out, const std::vector<ListedWorker>& workers, bool is_served,
                      double factor, bool json) {
  StragglerSearch search(factor);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].owner.job_id.empty() ||
        !workers[i].owner.rank.empty()) {  // else it is of no job
      search.add(i, workers[i].owner.job_id, workers[i].ended);
    }
  }
  search.compare();
  if (!workers.empty() || is_served) {
    complain_of_all(why_no_stragglers(search));
  }
  if (json) {
    const std::string host = host_name();
    for (const Straggler& straggler : search.stragglers()) {
      out.write(straggler_json(straggler, workers[straggler.rank].owner, host));
    }
  } else if (!search.stragglers().empty()) {
    out.write(stragglers_table(search.stragglers(), workers, screen_of(out.fd())));
  }
}

int run_list(const ListOptions& options) {
  if (const std::string wrong = contradiction_in(options); !wrong.empty()) {
    complain("list: " + wrong);
    return kExitUsage;
  }
  const RunFolder folder = resolve_run_folder(dir_of_server(options.place));
  const ServerSeen server = look_for_server(folder.dir);
  auto reading = read_pages(folder.dir, server.max_timeout, what_to_read(options));
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
  if (options.stragglers) {
    print_stragglers(out, reading->workers, server.is_there,
                     options.factor.value_or(kDefaultSlowFactor), options.json);
  } else if (is_empty) {
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
    complain(fmt::format("there are more than {} files in '{}/{}': the others were not read",
                         kMaxPageFilesRead, folder.dir, kPagesName));
  }
  if (!server.is_there) {
    complain(server.why_not + servers_below(folder.dir));
  }
  return code != kExitDone || server.is_there ? code : kExitNoServer;
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
                "Instead, how long scopes took, by name, with those of\n"
                "workers that have ended, if the log has them");
  app->add_flag("--stragglers", options->stragglers,
                "Instead, the ranks that are slow in a scope, or for which\n"
                "the others wait in one, by the last scopes of each rank");
  app->add_option_function<std::string>(
         "--factor",
         [options](const std::string& word) {
           const auto factor = parse_slow_factor(word);
           if (!factor) {
             throw CLI::ValidationError("--factor", factor.error().message);
           }
           options->factor = *factor;
         },
         fmt::format("With --stragglers: how many times the others' time makes a\n"
                     "rank a straggler [{}]",
                     kDefaultSlowFactor))
      ->type_name("F");
  add_place_options(*app, options->place);
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
      "release. --stats reads the server's log, too. --stragglers compares at least 3 ranks of a\n"
      "job by the medians of their last 8 to 16 scopes of a name; OTHERS is the median of the\n"
      "other ranks.\n\n"
      "Exit codes: 0 done (also when nothing is open), 1 failed, 2 usage, 4 no server (open\n"
      "scopes are shown nevertheless).");
  return {app, [options] { return options->watches ? watch(*options) : run_list(*options); }};
}

}  // namespace filetimer::cli
