// SPDX-License-Identifier: MIT
#include "timer_client/cli/suggest/suggestion_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "common/duration_text.hpp"
#include "common/json_writer.hpp"
#include "common/text.hpp"
#include "timer_client/cli/text/table.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// Returns "all were released" or "1 was released", and how late.
std::string released_text(const Delays& delays, std::uint64_t of) {
  const std::string least = duration_for_reading(delays.least);
  const std::string longest = duration_for_reading(delays.longest);
  return fmt::format("{} {} released {} late",
                     delays.count == of && of > 1 ? "all" : fmt::format("{}", delays.count),
                     delays.count == 1 ? "was" : "were",
                     least == longest ? least : fmt::format("{} to {}", least, longest));
}

std::string timeout_text(std::optional<Duration> timeout) {
  return timeout ? duration_for_reading(*timeout) : "";
}

// Returns a key of TOML, quoted as JSON quotes strings. Every escape of JSON is one of TOML.
std::string toml_key(std::string_view name) {
  std::string key;
  append_json_string(key, name);
  return key;
}

// Returns a comment, on one line whatever the text holds.
std::string toml_comment(std::string_view text) {
  return fmt::format("# {}\n", printable(text));
}

std::string times_text(const Durations& durations, const ScopeStatistics& statistics) {
  return fmt::format("{} scopes: median {}, P99.9 {}, longest {}; first {}; today {}",
                     durations.count, duration_for_reading(durations.median),
                     duration_for_reading(durations.p999), duration_for_reading(durations.longest),
                     duration_for_reading(durations.longest_first),
                     duration_for_reading(statistics.timeout));
}

}  // namespace

std::string missed_text(const MissedDeadlines& missed) {
  std::vector<std::string> parts;
  if (missed.expired > 0) {
    const std::uint64_t spared = missed.spared - missed.in_dry_run;
    const std::uint64_t others = missed.expired - missed.killed - missed.spared;
    parts.push_back(joined({
        missed.in_dry_run > 0
            ? fmt::format(
                  "would have been killed {}",
                  missed.in_dry_run == 1 ? "once" : fmt::format("{} times", missed.in_dry_run))
            : "",
        spared > 0 ? fmt::format("{} expired and {} spared", spared, spared == 1 ? "was" : "were")
                   : "",
        missed.killed > 0 ? fmt::format("{} expired and ended in a kill", missed.killed) : "",
        others > 0 ? fmt::format("{} expired", others) : "",
    }));
    if (missed.released_late.count > 0) {
      parts.push_back(released_text(missed.released_late, missed.expired));
    }
  }
  if (missed.warned > 0) {
    parts.push_back(fmt::format("{} had a warning", missed.warned));
  }
  return joined(parts, "; ");
}

bool Suggestions::have_durations() const {
  return std::any_of(scopes.begin(), scopes.end(),
                     [](const SuggestedScope& one) { return one.history->statistics.count > 0; });
}

Suggestions suggestions_for(const ScopeHistories& histories, const SuggestionRules& rules) {
  Suggestions suggestions;
  for (const auto& [scope, history] : histories.by_name()) {
    const Durations durations = durations_of(history.statistics);
    suggestions.scopes.push_back({scope, &history, durations, suggestion_for(durations, rules)});
  }
  std::vector<NamedSuggestion> names;
  for (SuggestedScope& one : suggestions.scopes) {
    names.push_back({one.scope, one.history->statistics.timeout, &one.suggestion});
  }
  suggestions.lost_order = keep_order_of_today(std::move(names));
  return suggestions;
}

std::string suggestions_table(const Suggestions& suggestions, Screen screen) {
  Table table({{.title = "SCOPE", .is_text = true},
               {.title = "COUNT", .align = Align::kRight},
               {.title = "MEDIAN", .align = Align::kRight},
               {.title = "P99.9", .align = Align::kRight},
               {.title = "LONGEST", .align = Align::kRight},
               {.title = "TODAY", .align = Align::kRight},
               {.title = "SUGGESTED", .align = Align::kRight},
               {.title = "FIRST", .align = Align::kRight},
               {.title = "WHY", .is_text = true}},
              screen);
  std::string below;
  for (const SuggestedScope& one : suggestions.scopes) {
    const ScopeHistory& history = *one.history;
    const Durations& durations = one.durations;
    const Suggestion& suggestion = one.suggestion;
    if (const std::string missed = missed_text(history.missed); !missed.empty()) {
      below += fmt::format("{}: {}\n", printable(one.scope), missed);
    }
    if (history.statistics.count == 0) {
      continue;
    }
    const bool is_too_short =
        suggestion.timeout && history.statistics.timeout < *suggestion.timeout;
    const auto read = [&](Duration duration) {
      return durations.count == 0 ? std::string() : duration_for_reading(duration);
    };
    table.add({{one.scope},
               {fmt::format("{}", durations.count)},
               {read(durations.median)},
               {read(durations.p999)},
               {read(durations.longest)},
               {duration_for_reading(history.statistics.timeout),
                is_too_short ? kYellow : std::string_view{}},
               {timeout_text(suggestion.timeout)},
               {timeout_text(suggestion.first_timeout)},
               {suggestion.timeout ? suggestion.why : "too few"}});
  }
  std::string text =
      suggestions.have_durations() ? table.text() : fmt::format("{}\n", kNoDurations);
  return below.empty() ? text : text + "\n" + below;
}

std::string suggestions_toml(const Suggestions& suggestions, const std::string& sources) {
  std::string text = toml_comment("Timeouts that `timer_client suggest` computed from " + sources);
  if (!suggestions.have_durations()) {
    text += toml_comment(kNoDurations);
  }
  for (const auto& [scope, history, durations, suggestion] : suggestions.scopes) {
    text += "\n";
    text +=
        toml_comment(suggestion.timeout ? fmt::format("{}: {}", suggestion.why,
                                                      times_text(durations, history->statistics))
                                        : fmt::format("{}: {}", toml_key(scope), suggestion.why));
    if (const std::string missed = missed_text(history->missed); !missed.empty()) {
      text += toml_comment(missed);
    }
    if (!suggestion.timeout) {
      continue;
    }
    text += fmt::format("[{}]\ntimeout = \"{}\"\n", toml_key(scope),
                        short_duration_text(*suggestion.timeout));
    if (suggestion.first_timeout) {
      text +=
          fmt::format("first_timeout = \"{}\"\n", short_duration_text(*suggestion.first_timeout));
    }
  }
  return text;
}

std::string suggestions_json(const Suggestions& suggestions) {
  std::string text;
  for (const auto& [scope, history, durations, suggestion] : suggestions.scopes) {
    const MissedDeadlines& missed = history->missed;
    JsonWriter json;
    json.field("scope", scope).field("count", durations.count).field("firsts", durations.firsts);
    json.seconds("median_s", durations.median);
    json.seconds("p999_s", durations.p999);
    json.seconds("longest_s", durations.longest);
    json.seconds("first_s", durations.longest_first);
    json.seconds("timeout_s", history->statistics.timeout);
    json.seconds("suggested_s", suggestion.timeout.value_or(kForever));
    json.seconds("suggested_first_s", suggestion.first_timeout.value_or(kForever));
    json.field("why", suggestion.why).field("expired", missed.expired);
    json.field("killed", missed.killed).field("spared", missed.spared);
    json.begin_object("released_late").field("count", missed.released_late.count);
    if (missed.released_late.count > 0) {
      json.seconds("least_s", missed.released_late.least);
      json.seconds("longest_s", missed.released_late.longest);
    }
    json.end_object().field("warned", missed.warned);
    text += std::move(json).finish() + "\n";
  }
  return text;
}

}  // namespace filetimer::cli
