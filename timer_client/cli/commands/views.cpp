// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/views.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/duration_text.hpp"
#include "common/json_fields.hpp"
#include "common/json_writer.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "timer_client/cli/log/incident.hpp"
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

// Adds the rank as a number if it is one.
void add_rank(JsonWriter& json, std::string_view key, const std::string& rank) {
  if (const auto number = number_from<std::int64_t>(rank)) {
    json.field(key, *number);
  } else {
    json.given(key, rank);
  }
}

// --- workers of a dump ---

// The workers of one place.
using Group = std::vector<dom::object>;

// Returns the job of a worker, its scopes, and the frames of its main thread.
std::vector<std::string> place_of(dom::object worker) {
  std::vector<std::string> place = python_frames_of_main_thread(worker);
  std::ranges::move(native_frames_of_main_thread(worker), std::back_inserter(place));
  for (const dom::object scope : objects_at(worker, "open_scopes")) {
    place.push_back(text_at(scope, "scope"));
    place.emplace_back(flag_at(scope, "paused") ? "paused" : "");
  }
  place.push_back(text_at(worker, "job_id"));
  place.push_back(std::to_string(objects_at(worker, "open_scopes").size()));
  return place;
}

// Returns "for 12.1 s of 30 s, paused"; of several workers that of the one that is longest in it.
std::string scope_text(const Group& group, std::size_t index) {
  dom::object scope;
  double longest_s = -1;
  for (const dom::object worker : group) {
    const dom::object its = objects_at(worker, "open_scopes")[index];
    const double elapsed_s = std::max(number_at(its, "elapsed_s").value_or(0), 0.0);
    if (elapsed_s > longest_s) {
      longest_s = elapsed_s;
      scope = its;
    }
  }
  const Number timeout_s = number_at(scope, "timeout_s");
  return fmt::format("`{}` for {}{}{}", text_at(scope, "scope"), seconds_text(longest_s),
                     timeout_s ? " of " + seconds_text(*timeout_s) : "",
                     flag_at(scope, "paused") ? ", paused" : "");
}

void add_group(Page& page, const Group& group) {
  const dom::object first = group[0];
  const bool is_one = group.size() == 1;
  const std::vector<WorkerName> workers = mapped(group, worker_in);
  page.heading(is_one ? worker_text(workers[0]) : workers_text(workers));
  page.field("job", text_at(first, "job_id"));
  std::string scopes;
  const std::vector<dom::object> open = objects_at(first, "open_scopes");
  for (std::size_t i = 0; i < open.size(); ++i) {
    const bool is_inside = i > 0 && integer_at(open[i], "tid") == integer_at(open[i - 1], "tid");
    scopes.append(i == 0 ? "" : is_inside ? ", in it " : ", and ").append(scope_text(group, i));
  }
  page.field("scopes", scopes.empty() ? "none" : scopes);
  page.field("doing", text_at(first, "doing"));
  page.field("missing", text_at(first, "missing"));
  page.field("shown", is_one ? "" : worker_text(workers[0]));
  add_python_stacks(page, first);
  add_threads_and_children(page, first);
}

}  // namespace

std::string scopes_table(std::span<const ListedScope> scopes, Instant now, Screen screen) {
  Table table({number_column("RANK"), number_column("PID"), text_column("WORKER"),
               text_column("SCOPE"), number_column("ELAPSED"), number_column("REMAINING"),
               number_column("TIMEOUT"), Column{"NOTE"}},
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

std::string scopes_json(std::span<const ListedScope> scopes, Instant now) {
  std::string text;
  for (const ListedScope& scope : scopes) {
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
    json.field("deadline_mono_ns",
               scope.due.is_never() ? std::nullopt : std::optional(scope.due.ns));
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
    json.field("transport", owner.transport == ServedBy::kPage ? "page" : "pipe");
    json.field("whole_process", slot.has(slot_flag::kWholeProcess));
    json.field("thread_ended", slot.has(slot_flag::kThreadEnded));
    json.field("signal", slot.signal);
    if (slot.grace_ms == kNoSigkill) {
      json.null("grace_s");
    } else if (slot.grace_ms) {
      json.fixed("grace_s", *slot.grace_ms / 1e3, 3);
    }
    text += std::move(json).finish() + "\n";
  }
  return text;
}

std::string statistics_table(const StatisticsByName& statistics, Screen screen) {
  Table table({text_column("SCOPE"), number_column("COUNT"), number_column("MEAN"),
               number_column("MEDIAN"), number_column("P99"), number_column("LONGEST"),
               number_column("LAST"), number_column("MARGIN")},
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

std::string statistics_json(const StatisticsByName& statistics) {
  std::string text;
  for (const auto& [scope, sums] : statistics) {
    JsonWriter json;
    json.field("scope", scope).field("count", sums.count);
    json.seconds("total_s", sums.total);
    json.seconds("mean_s", sums.mean());
    json.seconds("median_s", sums.quantile(0.5));
    json.seconds("p99_s", sums.quantile(0.99));
    json.seconds("longest_s", sums.longest);
    json.seconds("last_s", sums.last);
    json.seconds("smallest_margin_s", sums.smallest_margin);
    json.seconds("first_s", sums.longest_first);
    json.seconds("timeout_s", sums.timeout);
    write_histogram(json, "histogram_ns", sums.histogram);
    text += std::move(json).finish() + "\n";
  }
  return text;
}

std::string stragglers_table(std::span<const Straggler> stragglers,
                             std::span<const ListedWorker> workers, Screen screen) {
  Table table({text_column("SCOPE"), number_column("RANK"), number_column("PID"),
               number_column("MEDIAN"), number_column("OTHERS"), number_column("FACTOR"),
               Column{"WHY"}},  // not is_text, so that a long scope name is cut instead
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

std::string stragglers_json(std::span<const Straggler> stragglers,
                            std::span<const ListedWorker> workers) {
  const std::string host = host_name();
  std::string text;
  for (const Straggler& straggler : stragglers) {
    const ScopeOwner& owner = workers[straggler.rank].owner;
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
    text += std::move(json).finish() + "\n";
  }
  return text;
}

std::string status_page(dom::object answer) {
  Page page;
  std::vector<std::pair<std::string_view, dom::object>> groups;
  std::vector<std::string_view> hidden{"answer"};
  if (integer_at(answer, "command_pid") == 0) {
    hidden.emplace_back("command_pid");  // the server runs no COMMAND
  }
  for (const auto& [key, value] : answer) {
    if (const auto group = value_as<dom::object>(value)) {
      groups.emplace_back(key, *group);
      hidden.push_back(key);
    }
  }
  add_fields(page, answer, hidden, 0);
  for (const auto& [name, group] : groups) {
    page.heading(with_spaces(name));
    add_fields(page, group);
  }
  return std::move(page).text();
}

std::string dump_page(dom::object answer, bool colour) {
  Page page(colour);
  std::vector<Group> groups = grouped(objects_at(answer, "workers"), place_of);
  std::ranges::stable_sort(groups, {}, &Group::size);
  for (const Group& group : groups) {
    add_group(page, group);
  }
  if (const std::int64_t omitted = count_at(answer, "omitted"); omitted > 0) {
    page.heading(counted(omitted, "more worker") + " omitted: see --rank and --pid");
  }
  return std::move(page).text();
}

}  // namespace filetimer::cli
