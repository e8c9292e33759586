// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// --- where the workers were ---

// So much fits on a screen.
constexpr std::size_t kGroupsShown = 8;  // the largest is among them
constexpr std::size_t kWorkersNamed = 8;
constexpr std::size_t kScopesNamed = 4;  // of one worker
constexpr std::size_t kHostsNamed = 8;
// Times that differ by less are printed as one.
constexpr double kSameTimeShare = 0.005;

// Returns "in `forward`"; "in no scope" if it is empty.
std::string in_scope(const std::string& scope) {
  return scope.empty() ? "in no scope" : "in " + backquoted(scope);
}

// Returns " for 29.6 s", or " for 12.0 s to 29.6 s" if the workers entered the scope apart; empty:
// it is not known.
std::string time_in_scope(const ScopeGroup& group) {
  if (!group.shortest_s) {
    return {};
  }
  const std::string longest = seconds_text(*group.longest_s);
  const bool is_range = *group.longest_s - *group.shortest_s > kSameTimeShare * *group.longest_s;
  return is_range ? fmt::format(" for {} to {}", seconds_text(*group.shortest_s), longest)
                  : " for " + longest;
}

// Returns "ranks 0, 1, 3 in `exchange` for 29.6 s, this one among them".
std::string group_text(const Incident& incident, const ScopeGroup& group) {
  const bool is_one = group.workers.size() == 1;
  const bool is_odd = &group == incident.groups.data() && incident.has_odd_group();
  return joined({fmt::format("{} {}{}", workers_text(group.workers), in_scope(group.scope),
                             time_in_scope(group)),
                 !is_among(group.workers, incident.shown.worker) ? ""
                 : is_one                                        ? "this one"
                                                                 : "this one among them",
                 !is_odd  ? ""
                 : is_one ? "the odd one out"
                          : "the odd ones out"});
}

// The expiries of one worker, which expires once for each scope that is over its time.
using Expiries = std::vector<ExpiredWorker>;

// Returns "rank 2 (pid 12, t), in `load` (a-3), this one, in `step` (a-4)".
std::string expiries_text(const Incident& incident, const Expiries& expiries) {
  const auto scopes = mapped(expiries, [&](const ExpiredWorker& one) {
    return fmt::format("{} ({}){}", in_scope(one.scope), one.id,
                       incident.is_shown(one.machine, one.id) ? ", this one" : "");
  });
  return joined({worker_text(expiries[0].worker), listed(scopes, kScopesNamed)});
}

// Adds the groups, and what is not in them.
void add_groups(Page& page, const Incident& incident) {
  std::size_t shown = 0;
  std::size_t workers = 0;  // in the groups that are left out
  const ScopeGroup* const largest = incident.groups.empty() ? nullptr : &incident.largest_group();
  for (const ScopeGroup& group : incident.groups) {
    if (incident.groups.size() <= kGroupsShown || shown + 1 < kGroupsShown || &group == largest) {
      ++shown;
      page.item(2, group_text(incident, group));
    } else {
      workers += group.workers.size();
    }
  }
  if (shown < incident.groups.size()) {
    page.item(
        2, fmt::format("and {} more in {} other places", workers, incident.groups.size() - shown));
  }
  if (incident.missing.size() == incident.machines) {
    page.item(2, "The incident record is not in these logs.");
  } else if (!incident.missing.empty()) {
    page.item(2, fmt::format("The incident records of these hosts are not in these logs: {}.",
                             listed(incident.missing, kHostsNamed)));
  }
  if (incident.may_be_two_jobs) {
    page.item(2,
              "Two workers have one rank, and no record says which job they are of: none is "
              "called the odd one out.");
  }
  if (incident.omitted_scopes > 0) {
    page.item(2, fmt::format("{} did not fit into the record",
                             counted(incident.omitted_scopes, "more scope")));
  }
  if (incident.omitted_workers > 0) {
    page.item(2, fmt::format("{}, of unknown job or not listed in the record",
                             counted(incident.omitted_workers, "more worker")));
  }
}

// Adds where the workers were, and which expired in which order.
void add_ranks_at_expiry(Page& page, const Incident& incident) {
  page.heading("Ranks at time of expiry");
  add_groups(page, incident);
  const auto worker_of = [](const ExpiredWorker& one) {
    return std::tuple(std::string_view(one.machine), one.worker.pid, one.worker.rank);
  };
  std::vector<std::string> texts =
      mapped(grouped(incident.expired, worker_of),
             [&](const Expiries& expiries) { return expiries_text(incident, expiries); });
  if (!texts.empty()) {
    page.item(2, fmt::format("First to expire: {}.", texts[0]));
    texts.erase(texts.begin());
  }
  if (!texts.empty()) {
    page.item(2, fmt::format("Expired, too: {}.", listed(texts, kWorkersNamed, "; ")));
  }
  if (incident.machines > 1) {
    page.item(2,
              fmt::format("Order and times are those of the clocks of {} hosts, which may differ.",
                          incident.machines));
  }
}

// --- the other sections ---

// The page shows so much of the output of an evidence command.
constexpr std::size_t kOutputLinesShown = 40;
constexpr std::size_t kOutputCharactersShown = 8000;

// Adds the output of an evidence command, all of it if it is `whole`. Its heading names the host
// and the incident unless they are empty.
void add_command_output(Page& page, const std::string& host, std::string_view incident,
                        const Record& command, bool is_whole) {
  const std::string name = joined({"Evidence command", host.empty() ? "" : "on " + host,
                                   incident.empty() ? "" : fmt::format("of {}", incident)},
                                  " ");
  page.heading(cut_text(fmt::format("{} ({})", name, in_few_words(command)), kPageWidth));
  const std::string text = command.text("output");
  const std::string_view most = is_whole ? text : prefix_of_width(text, kOutputCharactersShown);
  std::size_t end = 0;
  for (std::size_t lines = 0; end < most.size() && (is_whole || lines < kOutputLinesShown);
       ++lines) {
    const std::size_t newline = std::min(most.find('\n', end), most.size());
    page.item(2, most.substr(end, newline - end));
    end = newline + 1;
  }
  if (std::min(end, most.size()) < text.size()) {
    page.item(2, "... the report and the record have more.");
  }
  // The text may be longer than what was written: bytes that are no UTF-8 are escaped.
  const std::int64_t bytes = command.integer("output_bytes").value_or(0);
  if (bytes > static_cast<std::int64_t>(kMaxCommandOutputBytes)) {
    page.item(2, fmt::format("It wrote {} bytes, of which the record has the first {}.", bytes,
                             kMaxCommandOutputBytes));
  } else if (text.empty()) {
    page.item(2, "It wrote nothing.");
  }
}

// Returns "killed with SIGTERM, then SIGKILL, dead after 2.50 ms".
std::string outcome_of(const Record& killed) {
  std::vector<std::string> names = mapped(objects_at(killed.fields, "signals"), signal_text);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const bool is_dead = killed.text("verdict") == "dead";
  const std::string verb = is_dead ? "killed" : names.empty() ? "not signalled" : "sent";
  return joined(
      {joined({verb, joined(names, ", then ")}, is_dead ? " with " : " "), in_few_words(killed)});
}

struct ParsedRecord {
  dom::parser parser;  // has what the record views
  Record record;
};

// The records of one expiry, and what they say.
class Expiry {
 public:
  Expiry(const IncidentRecords& records, const Incident& incident) : incident_(incident) {
    records.each([&](const Record& record) {
      if (records.key().is_of(record)) {
        ParsedRecord& own = own_.emplace_back();
        own.record = parse_record(own.parser, record.line).value_or(Record{});
      }
    });
    const WorkerName& name = incident.shown.worker;
    for (const Worker& worker : incident.workers) {
      if (worker.name.host == name.host && worker.name.pid == name.pid) {
        worker_ = &worker;
      }
    }
    verdict_ = find("expired");
    is_of_warning_ = find("warned") != nullptr;
    const auto has_scopes = [](const Record& record) {
      return !objects_at(record.fields, "open_scopes").empty() ||
             count_at(record.fields, "omitted") > 0;
    };
    scopes_line_ = verdict_ != nullptr && has_scopes(*verdict_) ? verdict_->line : "";
    records.each([&](const Record& record) {
      if (verdict_ != nullptr && scopes_line_.empty() && record.event == "expired" &&
          !record.incident.empty() && record.incident == verdict_->incident &&
          record.pid == verdict_->pid && machine_of(record) == machine_of(*verdict_) &&
          has_scopes(record)) {
        scopes_line_ = record.line;
      }
      const Integer status = record.integer("command_status");
      // In a container a server that was started again has the pid of the one before.
      if (status && record.event == "server_stopped" && !own_.empty() && end_of_command_.empty() &&
          record.mono_ns >= base().mono_ns && machine_of(record) == machine_of(base()) &&
          record.integer("server_pid") == base().integer("server_pid")) {
        end_of_command_ = fmt::format("COMMAND of the server ended with status {}", *status);
      }
    });
  }

  [[nodiscard]] std::string page(const PageStyle& style) const {
    Page page(style.has_colour);
    if (own_.empty()) {
      return {};
    }
    add_headline(page);
    if (is_of_warning_) {
      add_evidence(page);
      return std::move(page).text();
    }
    add_open_scopes(page);
    add_ranks_at_expiry(page, incident_);
    add_merged_stacks(page, incident_);
    add_evidence(page);
    add_command_outputs(page, style.has_all_outputs);
    add_timeline(page);
    add_outcome(page);
    return std::move(page).text();
  }

 private:
  [[nodiscard]] const Record* find(std::string_view event) const {
    const auto found = std::ranges::find_if(
        own_, [&](const ParsedRecord& kept) { return kept.record.event == event; });
    return found == own_.end() ? nullptr : &found->record;
  }

  [[nodiscard]] const Record& base() const {
    return verdict_ != nullptr ? *verdict_ : own_[0].record;
  }

  [[nodiscard]] std::string headline() const {
    const bool has_times = verdict_ != nullptr || is_of_warning_;
    const Number elapsed_s = has_times ? base().number("elapsed_s") : Number{};
    const Number timeout_s = has_times ? base().number("timeout_s") : Number{};
    const auto named = std::ranges::find_if(
        own_, [](const ParsedRecord& kept) { return !kept.record.scope.empty(); });
    return fmt::format(
        "{} {} in {}: {}.", worker_text(incident_.shown.worker),
        is_of_warning_ ? "was late" : "hung",
        named == own_.end() ? "a scope that no record names" : backquoted(named->record.scope),
        joined({joined({elapsed_s || timeout_s ? "open" : "",
                        elapsed_s ? "for " + seconds_text(*elapsed_s) : "",
                        timeout_s ? "of " + seconds_text(*timeout_s) : ""},
                       " "),
                outcome()}));
  }

  [[nodiscard]] std::string outcome() const {
    if (is_of_warning_) {
      const Integer signal = base().integer("signal");
      return signal ? fmt::format("a warning, and signal {}", *signal) : "a warning, and no signal";
    }
    if (const Record* const killed = find("killed")) {
      return outcome_of(*killed);
    }
    const Record* const released = find("released_late");
    return released != nullptr ? "released before any signal, " + in_few_words(*released)
                               : "and no record says how it ended";
  }

  // Returns a sentence that names the odd one out; empty: there is none, this worker is the odd
  // one, or it is not known where this one was.
  [[nodiscard]] std::string whom_it_may_have_waited_for() const {
    const auto group = std::ranges::find_if(incident_.groups, [&](const ScopeGroup& one) {
      return is_among(one.workers, incident_.shown.worker);
    });
    if (is_of_warning_ || !incident_.has_odd_group() || group == incident_.groups.begin() ||
        group == incident_.groups.end()) {
      return {};
    }
    const ScopeGroup& odd = incident_.groups[0];
    const bool is_one = odd.workers.size() == 1;
    const ExpiredWorker* const cause = incident_.cause();
    return fmt::format(
        "The odd {} out: {}, {}. This worker may have waited for {}{}.", is_one ? "one" : "ones",
        workers_text(odd.workers), in_scope(odd.scope), is_one ? "it" : "them",
        cause != nullptr && is_among(odd.workers, cause->worker)
            ? fmt::format("; `timer_client show {}` with the same logs has more", cause->id)
            : "");
  }

  void add_headline(Page& page) const {
    page.paragraph(headline());
    if (const std::string whom = whom_it_may_have_waited_for(); !whom.empty()) {
      page.paragraph(whom);
    }
    if (verdict_ == nullptr && !is_of_warning_) {
      page.paragraph(
          "Its `expired` record is not in these logs: it was rotated away or lost. What follows is "
          "from the records that came after it.");
    }
    page.heading(verdict_ != nullptr ? "Expiry" : is_of_warning_ ? "Warning" : "Worker");
    // The sentence at the top of the page, another field or another section has these, or they say
    // nothing to a reader.
    const std::vector<std::string_view> hidden{
        "acquired_mono_ns", "boot_id",   "cancelled",      "children",   "comm",    "dead_after_ms",
        "deadline_mono_ns", "dir",       "elapsed_s",      "event",      "mono_ns", "omitted",
        "open_scopes",      "pid",       "python_threads", "rank",       "schema",  "scope",
        "server_pid",       "signals",   "soft_mono_ns",   "start_time", "state",   "syscall_nr",
        "threads",          "timeout_s", "verdict"};
    add_fields(page, base().fields, hidden);
  }

  // Adds the scopes that the worker had open at the verdict.
  void add_open_scopes(Page& page) const {
    const auto verdict = parse_record(scopes_line_);
    if (!verdict) {
      return;
    }
    page.heading("Open scopes of the worker");
    for (const dom::object each : objects_at(verdict->fields, "open_scopes")) {
      const double elapsed_s = number_at(each, "elapsed_s").value_or(0);
      const Scope scope{.end_s = elapsed_s,
                        .known_s = elapsed_s,
                        .name = text_at(each, "scope"),
                        .timeout_s = number_at(each, "timeout_s"),
                        .kind = Scope::Kind::kOpen,
                        .is_paused = flag_at(each, "paused")};
      page.field(backquoted(scope.name),
                 joined({times_text(scope),
                         number_at(each, "remaining_s").value_or(1) > 0 ? "" : "expired"}));
    }
    if (const std::int64_t omitted = count_at(verdict->fields, "omitted"); omitted > 0) {
      page.item(2, counted(omitted, "more scope") + " did not fit into the record");
    }
  }

  // Adds the outputs of the incident that is shown, or those of all incidents of the hang.
  void add_command_outputs(Page& page, bool has_all) const {
    std::map<std::string_view, std::set<std::string_view>> incidents;  // by host
    for (const CommandOutput& output : incident_.outputs) {
      incidents[output.host].insert(output.incident);
    }
    const ExpiredWorker& shown = incident_.shown;
    for (const CommandOutput& output : incident_.outputs) {
      const bool is_wanted =
          has_all || (output.host == shown.worker.host && output.incident == shown.incident);
      const auto command = is_wanted ? parse_record(output.line) : std::nullopt;
      if (command) {
        add_command_output(page, output.host,
                           has_all && incidents[output.host].size() > 1 ? output.incident : "",
                           *command, has_all);
      }
    }
  }

  void add_evidence(Page& page) const {
    const Record* own = find("evidence");
    own = own != nullptr ? own : find("warned");
    const std::string_view line = own != nullptr       ? own->line
                                  : worker_ != nullptr ? worker_->evidence
                                                       : std::string_view();
    const auto evidence = parse_record(line);
    if (!evidence) {
      page.heading("Evidence");
      page.item(2, "There is no evidence record: gathering was off, or the server ended first.");
      return;
    }
    add_python_stacks(page, evidence->fields);
    if (!is_of_warning_) {  // which has its fields above
      page.heading("Evidence");
      add_new_fields(
          page, *evidence,
          {"threads_omitted", "python_threads_omitted", "threads", "python_threads", "children",
           "state", "syscall_nr"});  // state_name and syscall say them in words
    }
    add_threads_and_children(page, evidence->fields);
  }

  // Adds the fields that the first record has not.
  void add_new_fields(Page& page, const Record& record,
                      std::vector<std::string_view> hidden) const {
    hidden.insert(hidden.end(), {"schema", "event", "time", "mono_ns"});
    for (const auto& [key, value] : own_[0].record.fields) {
      if (&record != &own_[0].record) {
        hidden.push_back(key);
      }
    }
    add_fields(page, record.fields, hidden);
  }

  // Adds all that happened to the worker, also in other scopes that expired with this one.
  void add_timeline(Page& page) const {
    if (worker_ == nullptr || worker_->moments.empty()) {
      return;
    }
    const double verdict_s =
        static_cast<double>(incident_.shown.time_us.value_or(incident_.zero_us) -
                            incident_.zero_us) /
        1e6;
    page.heading(verdict_ != nullptr ? "Timeline (times after the verdict)"
                                     : "Timeline (times after the first record)");
    for (const Moment& moment : worker_->moments) {
      const double after_s = moment.at_s - verdict_s;
      page.field((after_s < 0 ? "-" : "+") + seconds_text(std::abs(after_s)), moment.text);
    }
  }

  void add_outcome(Page& page) const {
    page.heading("Outcome");
    const Record* outcome = find("killed");
    outcome = outcome != nullptr ? outcome : find("released_late");
    if (outcome == nullptr) {
      page.item(
          2,
          "No record says. The server was killed before it could write one, it is still at it, "
          "or the record is in a log that was not read.");
    } else {
      add_new_fields(page, *outcome, {"signals", "kernel_stack"});
      page.field("kernel stack", kernel_stack_text(texts_at(outcome->fields, "kernel_stack")));
    }
    page.field("exit", end_of_command_);
  }

  const Incident& incident_;
  std::deque<ParsedRecord> own_;     // the records of this expiry
  const Record* verdict_ = nullptr;  // the `expired` record of own_
  // The `expired` record with the open scopes: where several scopes of the worker expired together,
  // only the first one's has them.
  std::string_view scopes_line_;
  bool is_of_warning_ = false;
  const Worker* worker_ = nullptr;  // the one that expired
  std::string end_of_command_;      // how COMMAND of its server ended; empty: it had none, or runs
};

}  // namespace

std::string expiry_page(const IncidentRecords& records, const Incident& incident,
                        const PageStyle& style) {
  return Expiry(records, incident).page(style);
}

}  // namespace filetimer::cli
