// `timer_client suggest`: timeouts computed from how long scopes took.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "common/json_writer.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/scope_pages.hpp"
#include "timer_client/cli/log/reader.hpp"
#include "timer_client/cli/suggest/suggestion.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer::cli {
namespace {

constexpr double kLeastFactor = 1;
constexpr double kMostFactor = 1000;
// For logs in which no scope has a duration.
constexpr const char* kNoDurations =
    "no scope has a duration: workers write theirs when they exit, and workers on the pipe, such "
    "as those of PyTorch's own client, have none; use filetimer's clients, such as "
    "filetimer.torch.FileTimerClient";

struct SuggestOptions {
  Place place;
  std::vector<std::string> files;
  std::string format = "table";
  SuggestionRules rules;
  TimeSpan time;
};

// --- output ---

using Suggestions = std::vector<SuggestedScope>;

// Returns "3 expired, 3 spared, 2 released up to 4 s late"; empty: no deadline was missed.
std::string missed_text(const MissedDeadlines& missed) {
  const auto if_any = [](std::uint64_t count, const std::string& what) {
    return count > 0 ? fmt::format("{} {}", count, what) : std::string();
  };
  return joined({if_any(missed.expired, "expired"), if_any(missed.killed, "killed"),
                 if_any(missed.spared, "spared"),
                 if_any(missed.released_late,
                        fmt::format("released up to {} late", duration_for_reading(missed.latest))),
                 if_any(missed.warned, "warned")});
}

std::string timeout_text(std::optional<Duration> timeout) {
  return timeout ? duration_for_reading(*timeout) : "";
}

// Returns a table of the names with durations and, below it, lines for those that missed deadlines.
std::string suggestions_table(const Suggestions& suggestions, Screen screen) {
  Table table({text_column("SCOPE"), number_column("COUNT"), number_column("MEDIAN"),
               number_column("P99.9"), number_column("LONGEST"), number_column("TODAY"),
               number_column("SUGGESTED"), number_column("FIRST"), text_column("WHY")},
              screen);
  std::string below;
  for (const SuggestedScope& one : suggestions) {
    const Durations& durations = one.durations;
    const Suggestion& suggestion = one.suggestion;
    if (const std::string missed = missed_text(one.history->missed); !missed.empty()) {
      below += fmt::format("{}: {}\n", printable(one.scope), missed);
    }
    if (one.history->statistics.count == 0) {
      continue;
    }
    const bool is_too_short = suggestion.timeout && one.today() < *suggestion.timeout;
    const auto read = [&](Duration duration) {
      return durations.count == 0 ? std::string() : duration_for_reading(duration);
    };
    table.add({{one.scope},
               {fmt::format("{}", durations.count)},
               {read(durations.median)},
               {read(durations.p999)},
               {read(durations.longest)},
               {duration_for_reading(one.today()), is_too_short ? kYellow : std::string_view{}},
               {timeout_text(suggestion.timeout)},
               {timeout_text(suggestion.first_timeout)},
               {suggestion.timeout ? suggestion.why : "too few"}});
  }
  const std::string text = table.text();
  return text + (text.empty() || below.empty() ? "" : "\n") + below;
}

// Returns "2.7s", or of less than a millisecond "150us".
std::string toml_duration(Duration duration) {
  return duration < std::chrono::milliseconds{1} ? duration_text(duration)
                                                 : fmt::format("{}s", in_seconds(duration));
}

// Returns a file that ConnectOptions::timeouts takes. Names without a suggestion are comments.
// `sources` names what was read.
std::string suggestions_toml(const Suggestions& suggestions, const std::string& sources) {
  // A comment is one line whatever the text holds.
  const auto comment = [](std::string_view text) { return "# " + printable(text) + "\n"; };
  std::string text = comment("Timeouts that `timer_client suggest` computed from " + sources);
  for (const SuggestedScope& one : suggestions) {
    const Durations& durations = one.durations;
    const Suggestion& suggestion = one.suggestion;
    std::string key;  // quoted as in JSON, each escape of which is one of TOML
    append_json_string(key, one.scope);
    text += "\n";
    text += comment(fmt::format("{}: {}", one.scope, suggestion.why));
    if (const std::string missed = missed_text(one.history->missed); !missed.empty()) {
      text += comment(missed);
    }
    if (suggestion.timeout) {
      text += comment(fmt::format(
          "{} scopes: median {}, P99.9 {}, longest {}; first {}; today {}", durations.count,
          duration_for_reading(durations.median), duration_for_reading(durations.p999),
          duration_for_reading(durations.longest), duration_for_reading(durations.longest_first),
          duration_for_reading(one.today())));
      text += fmt::format("[{}]\ntimeout = \"{}\"\n", key, toml_duration(*suggestion.timeout));
    }
    if (suggestion.first_timeout) {
      text += fmt::format("first_timeout = \"{}\"\n", toml_duration(*suggestion.first_timeout));
    }
  }
  return text;
}

// Returns one object a line.
std::string suggestions_json(const Suggestions& suggestions) {
  std::string text;
  for (const SuggestedScope& one : suggestions) {
    const Durations& durations = one.durations;
    const MissedDeadlines& missed = one.history->missed;
    JsonWriter json;
    json.field("scope", one.scope);
    json.field("count", durations.count).field("firsts", durations.firsts);
    json.seconds("median_s", durations.median);
    json.seconds("p999_s", durations.p999);
    json.seconds("longest_s", durations.longest);
    json.seconds("first_s", durations.longest_first);
    json.seconds("timeout_s", one.today());
    json.seconds("suggested_s", one.suggestion.timeout.value_or(kForever));
    json.seconds("suggested_first_s", one.suggestion.first_timeout.value_or(kForever));
    json.field("why", one.suggestion.why).field("expired", missed.expired);
    json.field("killed", missed.killed).field("spared", missed.spared);
    json.field("released_late", missed.released_late);
    json.seconds("released_late_s", missed.latest);
    json.field("warned", missed.warned);
    text += std::move(json).finish() + "\n";
  }
  return text;
}

// --- the command ---

// Adds the statistics of the workers that are alive. Called only if no logs are named: other logs
// are of other servers.
int add_living_workers(const Place& place, ScopeHistories& histories) {
  const RunFolder folder = resolve_run_folder(place.dir);
  const auto reading = read_pages(folder.dir, ReadStatistics::kYes);
  if (!reading) {
    return failed(reading.error().message, kExitFailed);
  }
  histories.add(reading->statistics);
  complain_of_all({skipped_text(*reading)});
  const std::string below = servers_below(folder.dir);
  if (!reading->server.is_there && !below.empty()) {
    complain(reading->server.why_not + below);
  }
  return kExitDone;
}

int run_suggest(const SuggestOptions& options) {
  ScopeHistories histories;
  OpenedLogs opened = open_logs(options.place.dir, options.files);
  complain_of_all(opened.problems);
  read_merged(opened.logs, [&](const Record& record) {
    histories.take(record, options.time.has(record.time_us));
    return true;
  });
  const std::vector<std::string> unread = problems_of(opened.logs);
  complain_of_all(unread);
  complain_of_all({skipped_text(opened.logs)});
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
  if (std::ranges::all_of(suggestions, [](const SuggestedScope& one) {
        return one.history->statistics.count == 0;
      })) {
    complain(kNoDurations);
  }
  if (const std::uint64_t waiting = histories.waiting_workers(); waiting > 0) {
    complain(fmt::format(
        "{} ended within two minutes after an expiry of the same job: the longest scopes of these "
        "are left out",
        counted(waiting, "worker")));
  }
  if (histories.omitted() > 0) {
    complain(fmt::format("more than {} names of scopes: the others are omitted",
                         ScopeHistories::kMaxNames));
  }
  if (const std::uint64_t names = histories.unrecorded(); names > 0) {
    complain(fmt::format("the records of ended workers had no room for {}: these are left out",
                         counted(names, "name")));
  }
  return std::max(code, out.finish());
}

Result<double> parse_factor(const std::string& word) {
  const auto number = number_from<double>(word);
  if (!number || !(*number >= kLeastFactor && *number <= kMostFactor)) {  // not nan either
    return failure(
        fmt::format("'{}': expected a number from {:g} to {:g}", word, kLeastFactor, kMostFactor));
  }
  return *number;
}

}  // namespace

Command add_suggest(CLI::App& root) {
  auto options = std::make_shared<SuggestOptions>();
  CLI::App* app = root.add_subcommand("suggest", "Timeouts, computed from how long scopes took");
  app->add_option("FILE", options->files,
                  "Logs to read: files, folders with those of many hosts, or -\n"
                  "for standard input [the server's, and the workers that are\n"
                  "alive]");
  app->add_option("--format", options->format,
                  "table; json: an object a line; toml: a file of timeouts\n"
                  "that $FILETIMER_TIMEOUTS names [table]")
      ->type_name("FORMAT")
      ->check(is_one_of({"table", "json", "toml"}));
  add_parsed_option(*app, "--factor", options->rules.factor, parse_factor, "NUMBER",
                    "How many times the 99.9th percentile a timeout is [3]");
  const auto parse_floor = [](const std::string& word) { return parse_duration(word); };
  add_parsed_option(*app, "--floor", options->rules.floor, parse_floor, "DUR",
                    "No timeout is shorter [1s]");
  add_time_options(*app, options->time);
  add_directory_options(*app, options->place, [&files = options->files] { return !files.empty(); });
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
  return {app, [options] { return run_suggest(*options); }};
}

}  // namespace filetimer::cli
