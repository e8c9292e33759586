// `timer_client suggest`: timeouts computed from how long scopes took.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "common/numbers.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/commands/scope_pages.hpp"
#include "timer_client/cli/log/files.hpp"
#include "timer_client/cli/log/log_table.hpp"
#include "timer_client/cli/suggest/suggestion_text.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer::cli {
namespace {

constexpr double kLeastFactor = 1;
constexpr double kMostFactor = 1000;
constexpr std::size_t kPairsNamed = 4;

struct SuggestOptions {
  Place place;
  std::vector<std::string> files;
  std::string format = "table";
  SuggestionRules rules;
  std::optional<Duration> floor;
  LogFilter filter;
};

// Adds the statistics of the workers that are alive. Called only if no logs are named: other logs
// are of other servers.
int add_living_workers(const Place& place, ScopeHistories& histories) {
  const RunFolder folder = resolve_run_folder(place.dir);
  const ServerSeen server = look_for_server(folder.dir);
  const auto reading = read_pages(folder.dir, server.max_timeout, ReadStatistics::kYes);
  if (!reading) {
    complain(reading.error().message);
    return kExitFailed;
  }
  histories.add(reading->statistics);
  complain_of_all(skipped_text(*reading));
  if (const std::string below = servers_below(folder.dir); !server.is_there && !below.empty()) {
    complain(server.why_not + below);
  }
  return kExitDone;
}

int run_suggest(const SuggestOptions& options) {
  ScopeHistories histories;
  OpenedLogs opened = open_logs(options.place.dir, options.files);
  complain_of_all(opened.notes);
  complain_of_all(opened.problems);
  if (opened.logs.empty() && !options.files.empty()) {
    return kExitFailed;
  }
  read_merged(opened.logs, [&](const Record& record) {
    if (options.filter.is_in_time(record)) {
      histories.take(record);
    }
    return true;
  });
  const std::vector<std::string> unread = problems_of(opened.logs);
  complain_of_all(unread);
  complain_of_all(skipped_text(opened.logs));
  int code = opened.problems.empty() && unread.empty() ? kExitDone : kExitFailed;
  std::string sources = fmt::format("{} in {}", counted(histories.ended_workers(), "ended worker"),
                                    names_of(opened.logs));
  if (options.files.empty()) {
    code = std::max(code, add_living_workers(options.place, histories));
    sources += " and the workers that were alive";
  }
  if (histories.by_name().empty()) {
    if (code == kExitDone) {
      complain(fmt::format("no statistics of scopes in {}", sources));
    }
    return code;
  }
  const Suggestions suggestions = suggestions_for(histories, options.rules);
  Output out;
  out.write(options.format == "toml"   ? suggestions_toml(suggestions, sources)
            : options.format == "json" ? suggestions_json(suggestions)
                                       : suggestions_table(suggestions, screen_of(out.fd())));
  if (options.format == "json" && !suggestions.have_durations()) {
    complain(std::string(kNoDurations));  // each line of the output is of a name
  }
  if (const std::uint64_t waiting = histories.waiting_workers(); waiting > 0) {
    complain(
        fmt::format("the longest scope of each name is left out for {} that ended within two "
                    "minutes after an expiry of {} job",
                    counted(waiting, "worker"), waiting == 1 ? "its" : "their"));
  }
  if (!suggestions.lost_order.empty()) {
    complain(
        fmt::format("the order of today's timeouts is lost: {}; ranks that wait for others "
                    "need the longer timeout",
                    listed(suggestions.lost_order, kPairsNamed)));
  }
  if (histories.omitted() > 0) {
    complain(fmt::format("more than {} names of scopes: the others are omitted",
                         ScopeHistories::kMaxNames));
  }
  return std::max(code, out.finish());
}

std::string is_factor(const std::string& word) {
  const auto number = number_from<double>(word);
  return number && *number >= kLeastFactor && *number <= kMostFactor
             ? std::string()
             : fmt::format("'{}': expected a number from {:g} to {:g}", word, kLeastFactor,
                           kMostFactor);
}

std::string is_format(const std::string& word) {
  return word == "table" || word == "toml" || word == "json"
             ? std::string()
             : fmt::format("'{}': expected table, toml or json", word);
}

}  // namespace

Command add_suggest(CLI::App& root) {
  auto options = std::make_shared<SuggestOptions>();
  CLI::App* app = root.add_subcommand("suggest", "Timeouts, computed from how long scopes took");
  app->add_option("FILE", options->files,
                  "Logs to read: files, folders with those of many hosts,\n"
                  "patterns such as 'logs/*.jsonl', or - for standard input\n"
                  "[the server's, and the workers that are alive]");
  app->add_option("--format", options->format,
                  "table; json: an object a line; toml: a file of timeouts\n"
                  "that $FILETIMER_TIMEOUTS names [table]")
      ->type_name("FORMAT")
      ->check(is_format);
  app->add_option("--factor", options->rules.factor,
                  "How many times the 99.9th percentile a timeout is [3]")
      ->type_name("NUMBER")
      ->check(is_factor);
  add_duration_option(*app, "--floor", options->floor, "No timeout is shorter [1s]",
                      EndlessDuration::kRefused);
  add_since_option(*app, options->filter.since_us);
  add_until_option(*app, options->filter.until_us);
  add_place_options(*app, options->place);
  app->footer(
      "Examples:\n"
      "  timer_client suggest\n"
      "  timer_client suggest /shared/logs --format toml > timeouts.toml\n\n"
      "COUNT to LONGEST leave out the first scope of each thread, which often takes longer, and\n"
      "the longest scope of each worker that ended within two minutes after an expiry of its\n"
      "job. MEDIAN and P99.9 are estimates, right to a sixteenth. TODAY is the timeout of the\n"
      "worker that ended last, or of those that are alive. SUGGESTED is the 99.9th percentile\n"
      "times --factor, at least 1.5 times the longest and at least --floor. A name with a longer\n"
      "timeout today than another one gets 1.5 times the other's, as far as its own TODAY\n"
      "allows, so that ranks outlast the one that they wait for. FIRST is a timeout for the\n"
      "first scopes, if they need a longer one. Names with fewer than 100 scopes have too few.\n"
      "The lines below the table say which deadlines were missed.\n\n"
      "Exit codes: 0 done, 1 failed (also when one of the logs could not be read), 2 usage.");
  return {app, [options] {
            options->rules.floor = options->floor.value_or(options->rules.floor);
            return run_suggest(*options);
          }};
}

}  // namespace filetimer::cli
