// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/list_view.hpp"

#include <fmt/format.h>

#include "common/duration_text.hpp"
#include "common/json_writer.hpp"
#include "common/numbers.hpp"
#include "timer_client/cli/text/table.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// --- open scopes ---

// Returns "30s", or "5s of 1h" if the server grants less than was requested. If a file of timeouts
// replaced the timeout in the code, adds the latter.
std::string timeout_of(const ListedScope& scope) {
  const std::string in_code =
      scope.slot.code_timeout
          ? fmt::format(" (code: {})", duration_for_reading(*scope.slot.code_timeout))
          : "";
  const std::string asked = duration_for_reading(scope.slot.asked);
  const std::string granted = duration_for_reading(scope.granted());
  return (scope.granted() < scope.slot.asked && granted != asked
              ? fmt::format("{} of {}", granted, asked == "none" ? "no limit" : asked)
              : asked) +
         in_code;
}

// Returns the remaining time and its colour.
std::pair<std::string, std::string_view> remaining_of(const ListedScope& scope, Instant now) {
  if (scope.is_expired()) {
    return {"expired", kRed};
  }
  if (slot_word::is_paused(scope.slot.word) && scope.slot.left != kForever) {
    return {"paused, " + duration_for_reading(scope.slot.left), {}};
  }
  if (scope.due.is_never()) {
    return {"none", {}};
  }
  return {duration_for_reading(scope.due - now),
          scope.is_overdue(now) ? kYellow : std::string_view{}};
}

Duration elapsed_of(const ListedScope& scope, Instant now) {
  return std::max(now - scope.slot.acquired, Duration::zero());
}

std::string_view name_of(ServedBy transport) {
  return transport == ServedBy::kPage ? "page" : "pipe";
}

// Adds the rank as a number if it is one.
void add_rank(JsonWriter& json, std::string_view key, const std::string& rank) {
  if (const auto number = number_from<std::int64_t>(rank)) {
    json.field(key, *number);
  } else {
    json.given(key, rank);
  }
}

}  // namespace

std::string scopes_table(std::span<const ListedScope> scopes, Instant now, Screen screen) {
  Table table({{.title = "RANK", .align = Align::kRight},
               {.title = "PID", .align = Align::kRight},
               {.title = "WORKER", .is_text = true},
               {.title = "SCOPE", .is_text = true},
               {.title = "ELAPSED", .align = Align::kRight},
               {.title = "REMAINING", .align = Align::kRight},
               {.title = "TIMEOUT", .align = Align::kRight},
               {.title = "NOTE"}},
              screen);
  for (const ListedScope& scope : scopes) {
    const ScopeOwner& owner = *scope.owner;
    const auto [remaining, remaining_colour] = remaining_of(scope, now);
    const bool thread_ended = scope.slot.has(slot_flag::kThreadEnded);
    table.add({{owner.rank},
               {owner.pid ? fmt::format("{}", *owner.pid) : "?"},
               {owner.comm},
               {scope.slot.name},
               {duration_for_reading(elapsed_of(scope, now))},
               {remaining, remaining_colour},
               {timeout_of(scope)},
               {joined({owner.transport == ServedBy::kPipe ? "pipe" : "",
                        thread_ended ? "thread ended" : ""})}});
  }
  return table.text();
}

std::string scope_json(const ListedScope& scope, Instant now) {
  const ScopeOwner& owner = *scope.owner;
  const SlotReading& slot = scope.slot;
  JsonWriter json;
  json.field("pid", owner.pid);
  json.given("start_time", owner.start_time);
  json.given("comm", owner.comm);
  add_rank(json, "rank", owner.rank);
  add_rank(json, "local_rank", owner.local_rank);
  json.given("job_id", owner.job_id);
  json.field("scope", slot.name);
  json.given("tid", std::max(slot.tid, 0));
  json.field("acquired_mono_ns", slot.acquired.ns);
  if (scope.due.is_never()) {
    json.null("deadline_mono_ns");
  } else {
    json.field("deadline_mono_ns", scope.due.ns);
  }
  json.seconds("elapsed_s", elapsed_of(scope, now));
  json.seconds("remaining_s", scope.due.is_never() ? kForever : scope.due - now);
  json.seconds("asked_s", slot.asked);
  json.seconds("granted_s", scope.granted());
  if (slot.code_timeout) {
    json.seconds("code_timeout_s", *slot.code_timeout);
  }
  json.field("overdue", scope.is_overdue(now));
  json.field("expired", scope.is_expired());
  const bool is_paused = slot_word::is_paused(scope.slot.word);
  json.field("paused", is_paused);
  if (is_paused) {
    json.seconds("left_s", scope.slot.left);
  }
  json.field("transport", name_of(owner.transport));
  json.field("whole_process", slot.has(slot_flag::kWholeProcess));
  json.field("thread_ended", slot.has(slot_flag::kThreadEnded));
  json.field("signal", slot.signal);
  if (slot.grace_ms == kNoSigkill) {
    json.null("grace_s");
  } else if (slot.grace_ms) {
    json.fixed("grace_s", *slot.grace_ms / 1e3, 3);
  }
  return std::move(json).finish() + "\n";
}

std::string statistics_table(const StatisticsByName& statistics, Screen screen) {
  Table table({{.title = "SCOPE", .is_text = true},
               {.title = "COUNT", .align = Align::kRight},
               {.title = "MEAN", .align = Align::kRight},
               {.title = "MEDIAN", .align = Align::kRight},
               {.title = "P99", .align = Align::kRight},
               {.title = "LONGEST", .align = Align::kRight},
               {.title = "LAST", .align = Align::kRight},
               {.title = "MARGIN", .align = Align::kRight}},
              screen);
  for (const auto& [scope, sums] : statistics) {
    table.add({{scope},
               {fmt::format("{}", sums.count)},
               {duration_for_reading(sums.mean())},
               {"~" + duration_for_reading(sums.quantile(0.5))},
               {"~" + duration_for_reading(sums.quantile(0.99))},
               {duration_for_reading(sums.longest)},
               {duration_for_reading(sums.last)},
               {duration_for_reading(sums.smallest_margin),
                sums.smallest_margin < Duration::zero() ? kYellow : std::string_view{}}});
  }
  return table.text();
}

std::string statistics_json(const std::string& scope, const ScopeStatistics& statistics) {
  JsonWriter json;
  json.field("scope", scope).field("count", statistics.count);
  json.seconds("total_s", statistics.total);
  json.seconds("mean_s", statistics.mean());
  json.seconds("median_s", statistics.quantile(0.5));
  json.seconds("p99_s", statistics.quantile(0.99));
  json.seconds("longest_s", statistics.longest);
  json.seconds("last_s", statistics.last);
  json.seconds("smallest_margin_s", statistics.smallest_margin);
  json.seconds("first_s", statistics.longest_first);
  json.seconds("timeout_s", statistics.timeout);
  write_histogram(json, "histogram_ns", statistics.histogram);
  return std::move(json).finish() + "\n";
}

std::string stragglers_table(std::span<const Straggler> stragglers,
                             std::span<const ListedWorker> workers, Screen screen) {
  Table table({{.title = "SCOPE", .is_text = true},
               {.title = "RANK", .align = Align::kRight},
               {.title = "PID", .align = Align::kRight},
               {.title = "MEDIAN", .align = Align::kRight},
               {.title = "OTHERS", .align = Align::kRight},
               {.title = "FACTOR", .align = Align::kRight},
               {.title = "WHY"}},  // not is_text, so that a long scope name is cut instead
              screen);
  for (const Straggler& straggler : stragglers) {
    const ScopeOwner& owner = workers[straggler.rank].owner;
    table.add({{straggler.scope},
               {owner.rank},
               {owner.pid ? fmt::format("{}", *owner.pid) : "?"},
               {duration_for_reading(straggler.median)},
               {duration_for_reading(straggler.others)},
               {fmt::format("{:.2f}", straggler.factor)},
               {straggler.kind == StragglerKind::kSlower ? "slower than the others"
                                                         : "the others wait for it"}});
  }
  return table.text();
}

std::string straggler_json(const Straggler& straggler, const ScopeOwner& owner,
                           std::string_view host) {
  JsonWriter json;
  json.field("scope", straggler.scope).field("kind", name_of(straggler.kind));
  add_rank(json, "rank", owner.rank);
  add_rank(json, "local_rank", owner.local_rank);
  json.given("job_id", owner.job_id);
  json.field("host", host);
  json.field("pid", owner.pid);
  json.given("comm", owner.comm);
  json.seconds("median_s", straggler.median);
  json.seconds("others_median_s", straggler.others);
  json.fixed("factor", straggler.factor, 3)
      .field("ranks", straggler.ranks)
      .field("scopes", straggler.scopes);
  return std::move(json).finish() + "\n";
}

}  // namespace filetimer::cli
