// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "common/text.hpp"
#include "timer_client/cli/log/evidence_page.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/log/log_table.hpp"
#include "timer_client/cli/text/page.hpp"
#include "timer_client/cli/text/table.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

// The page shows so much of the output of an evidence command.
constexpr std::size_t kOutputLinesShown = 40;
constexpr std::size_t kOutputCharactersShown = 8000;

// The sentence at the top of the page or another section has these fields.
constexpr std::array<std::string_view, 24> kShownElsewhere{"schema",
                                                           "event",
                                                           "mono_ns",
                                                           "boot_id",
                                                           "server_pid",
                                                           "pid",
                                                           "comm",
                                                           "rank",
                                                           "scope",
                                                           "timeout_s",
                                                           "elapsed_s",
                                                           "acquired_mono_ns",
                                                           "deadline_mono_ns",
                                                           "soft_mono_ns",
                                                           "dir",
                                                           "open_scopes",
                                                           "omitted",
                                                           "signals",
                                                           "threads",
                                                           "python_threads",
                                                           "children",
                                                           "verdict",
                                                           "dead_after_ms",
                                                           "cancelled"};

std::string milliseconds_at(const Record& record, std::string_view key) {
  const Number ms = record.number(key);
  return ms ? seconds_text(*ms / 1e3) : "";
}

// Returns "2 s", "2 s (10 s in the code)".
std::string timeout_of(const Record& record) {
  const Number timeout_s = record.number("timeout_s");
  if (!timeout_s) {
    return {};
  }
  dom::element in_code;
  if (record.fields.at_key("code_timeout_s").get(in_code) != simdjson::SUCCESS) {
    return seconds_text(*timeout_s);
  }
  const Number code_s = as_number(in_code);
  return fmt::format("{} ({} in the code)", seconds_text(*timeout_s),
                     code_s ? seconds_text(*code_s) : "none");
}

const Record* find_in(const std::deque<ParsedRecord>& records, std::string_view event) {
  const auto found = std::ranges::find_if(
      records, [&](const ParsedRecord& kept) { return kept.record.event == event; });
  return found == records.end() ? nullptr : &found->record;
}

void add_command_output(Page& page, const CommandOutput& output) {
  page.heading(cut_text(fmt::format("{} ({})", output.name, output.end), kPageWidth));
  const std::string_view most = prefix_of_width(output.text, kOutputCharactersShown);
  std::size_t end = 0;
  for (std::size_t lines = 0; end < most.size() && lines < kOutputLinesShown; ++lines) {
    const std::size_t newline = std::min(most.find('\n', end), most.size());
    page.item(2, most.substr(end, newline - end));
    end = newline + 1;
  }
  if (std::min(end, most.size()) < output.text.size()) {
    page.item(2, fmt::format("... the record has more: `timer_client show {} --json` with "
                             "the same logs.",
                             output.id));
  }
  page.item(2, output.size);
}

// --- signals ---

// Returns "SIGTERM, then SIGKILL".
std::string signal_names(const Record& killed) {
  std::vector<std::string> names;
  for (const dom::object sent : objects_at(killed.fields, "signals")) {
    if (std::string name = signal_text(sent); names.empty() || names.back() != name) {
      names.push_back(std::move(name));
    }
  }
  return joined(names, ", then ");
}

std::string outcome_of(const Record& killed) {
  const std::string names = signal_names(killed);
  const std::string verdict = killed.text("verdict");
  const std::string reason = killed.text("reason");
  if (verdict == "dead") {
    const std::string after = milliseconds_at(killed, "dead_after_ms");
    return joined({names.empty() ? "killed" : "killed with " + names,
                   after.empty() ? "dead" : "dead after " + after});
  }
  if (verdict == "already_gone") {
    return "gone by itself before the signal";
  }
  if (verdict == "unkillable") {
    return joined({names.empty() ? "" : "sent " + names, "could not be killed"});
  }
  if (verdict == "spared") {
    const std::string how = names.empty() ? "not signalled" : "sent " + names + ", and spared";
    return reason.empty() ? how : fmt::format("{} ({})", how, reason);
  }
  return verdict.empty() ? "with a record of its end that gives no verdict" : verdict;
}

// The records of one expiry, and what they say.
class Expiry {
 public:
  Expiry(ExpiryKey key, const IncidentRecords& records, const Incident& incident)
      : key_(std::move(key)),
        incident_(incident),
        own_(records.chosen([this](const Record& record) { return key_.is_of(record); })) {
    const auto shown = std::ranges::find_if(incident_.workers, [this](const Worker& worker) {
      return worker.name.host.empty() && worker.name.pid == key_.pid;
    });
    worker_ = shown == incident_.workers.end() ? nullptr : &*shown;
    verdict_ = find("expired");
    const std::string_view id = own_.empty() ? "" : base().incident;
    const auto is_of_incident = [&](const Record& record) {
      return !id.empty() && record.incident == id && record.host == key_.host;
    };
    std::set<std::string, std::less<>> others;  // expiries of the worker in the incident
    records.each([&](const Record& record) {
      if (record.event == "expired" && is_of_incident(record) && record.pid == key_.pid) {
        others.emplace(record.id);
      }
    });
    shared_ = records.chosen([&](const Record& record) {
      return !key_.is_of(record) && record.host == key_.host &&
             (record.event == "server_stopped" ||
              (record.event == "peer_evidence" && is_of_incident(record)) ||
              ((record.event == "expired" || record.event == "evidence") &&
               record.pid == key_.pid && others.contains(record.id)));
    });
  }

  [[nodiscard]] std::string page(bool colour) const {
    Page page(colour);
    if (own_.empty()) {
      return {};
    }
    add_headline(page);
    if (is_of_warning()) {
      add_evidence(page);
      return std::move(page).text();
    }
    add_open_scopes(page);
    add_ranks_at_expiry(page, incident_, key_.id, worker_in(base().fields));
    add_evidence(page);
    add_peers_of_incident(page);
    add_command_outputs(page);
    add_timeline(page);
    add_outcome(page);
    return std::move(page).text();
  }

  [[nodiscard]] std::string headline() const {
    if (own_.empty()) {
      return {};
    }
    const bool has_times = verdict_ != nullptr || is_of_warning();
    const Number elapsed_s = has_times ? base().number("elapsed_s") : Number{};
    const Number timeout_s = has_times ? base().number("timeout_s") : Number{};
    const auto named = std::find_if(own_.begin(), own_.end(),
                                    [](const auto& kept) { return !kept.record.scope.empty(); });
    return fmt::format(
        "{} {} in {}: {}.", worker_text(worker_in(base().fields)),
        is_of_warning() ? "was late" : "hung",
        named == own_.end() ? "a scope that no record names" : backquoted(named->record.scope),
        joined({joined({elapsed_s || timeout_s ? "open" : "",
                        elapsed_s ? "for " + seconds_text(*elapsed_s) : "",
                        timeout_s ? "of " + seconds_text(*timeout_s) : ""},
                       " "),
                outcome()}));
  }

  [[nodiscard]] std::vector<std::pair<std::string, std::string>> facts() const {
    if (own_.empty()) {
      return {};
    }
    std::vector<std::pair<std::string, std::string>> facts{
        {"Expiry", std::string(base().id)},
        {"Time", base().time_us ? time_text(*base().time_us) : ""},
        {"Host", std::string(base().host)},
        {"Job", std::string(base().job_id)},
        {"Command", base().text("cmdline")},
        {"Scope", std::string(base().scope)},
        {"Timeout", timeout_of(base())},
        {"Outcome", outcome()},
        {"Exit", end_of_command()}};
    std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
    return facts;
  }

 private:
  [[nodiscard]] const Record* find(std::string_view event) const { return find_in(own_, event); }

  [[nodiscard]] const Record& base() const {
    return verdict_ != nullptr ? *verdict_ : own_[0].record;
  }

  // A warning or deferral names no expiry. It is of this one when it is of this scope (or of none),
  // and came while the scope was open.
  [[nodiscard]] bool is_in_timeline(const Moment& moment) const {
    switch (moment.kind) {
      case Moment::Kind::kSignal:
      case Moment::Kind::kHook:
      case Moment::Kind::kReleased:
        return moment.id == key_.id;
      case Moment::Kind::kWarning:
      case Moment::Kind::kDeferred:
        break;
      default:
        return false;
    }
    if (verdict_ == nullptr || !moment.mono_ns || !verdict_->mono_ns ||
        (!moment.scope.empty() && moment.scope != verdict_->scope)) {
      return false;
    }
    const double before_s = seconds_between(moment.mono_ns, verdict_->mono_ns);
    return before_s >= 0 && before_s <= verdict_->number("elapsed_s").value_or(-1);
  }

  [[nodiscard]] bool is_of_warning() const { return find("warned") != nullptr; }

  // Returns how COMMAND of the server that gave the verdict ended; empty: it had none, or runs.
  [[nodiscard]] std::string end_of_command() const {
    const Record& first = own_[0].record;
    for (const ParsedRecord& kept : shared_) {
      const Record& record = kept.record;
      const Integer status = record.integer("command_status");
      if (status && record.event == "server_stopped" && record.boot_id == first.boot_id &&
          record.integer("server_pid") == first.integer("server_pid")) {
        return fmt::format("COMMAND of the server ended with status {}", *status);
      }
    }
    return {};
  }

  [[nodiscard]] std::string outcome() const {
    if (is_of_warning()) {
      return "a warning, and no signal";
    }
    if (const Record* const killed = find("killed")) {
      return outcome_of(*killed);
    }
    if (const Record* const released = find("released_late")) {
      const std::string late = milliseconds_at(*released, "late_ms");
      return joined({"released", late, "late, before any signal"}, " ");
    }
    return "and no record says how it ended";
  }

  // Returns a sentence that names the odd one out; empty: there is none, or this worker is the odd
  // one.
  [[nodiscard]] std::string whom_it_may_have_waited_for() const {
    const Incident& incident = incident_;
    const WorkerName shown = worker_in(own_[0].record.fields);
    const bool is_elsewhere =
        std::any_of(incident.groups.begin(), incident.groups.end(),
                    [&](const ScopeGroup& group) { return is_among(group.workers, shown); }) &&
        !is_among(incident.groups[0].workers, shown);
    if (is_of_warning() || !incident.has_odd_group() || !is_elsewhere) {
      return {};
    }
    const ExpiredWorker* const cause = incident.cause();
    const bool has_expired =
        cause != nullptr && is_among(incident.groups[0].workers, cause->worker);
    return fmt::format(
        "{} This worker may have waited for {}{}.", odd_sentence(incident),
        incident.groups[0].workers.size() == 1 ? "it" : "them",
        has_expired ? fmt::format("; `timer_client show {}` with the same logs has more", cause->id)
                    : "");
  }

  void add_headline(Page& page) const {
    page.paragraph(headline());
    if (const std::string whom = whom_it_may_have_waited_for(); !whom.empty()) {
      page.paragraph(whom);
    }
    if (verdict_ == nullptr && !is_of_warning()) {
      page.paragraph(
          "Its `expired` record is not in these logs: it was rotated away or lost. What follows is "
          "from the records that came after it.");
    }
    page.heading(verdict_ != nullptr ? "Expiry" : is_of_warning() ? "Warning" : "Worker");
    add_fields(page, base().fields, {kShownElsewhere.begin(), kShownElsewhere.end()});
  }

  void add_open_scopes(Page& page) const {
    if (verdict_ == nullptr) {
      return;
    }
    std::vector<dom::object> scopes = objects_at(verdict_->fields, "open_scopes");
    if (const Record* const shared = find_in(shared_, "expired");
        scopes.empty() && shared != nullptr) {
      scopes = objects_at(shared->fields, "open_scopes");
    }
    if (scopes.empty()) {
      return;
    }
    page.heading("Open scopes of the worker");
    for (const dom::object scope : scopes) {
      const Number elapsed = number_at(scope, "elapsed_s");
      const Number timeout = number_at(scope, "timeout_s");
      const Number remaining = number_at(scope, "remaining_s");
      const Integer tid = integer_at(scope, "tid");
      page.field(backquoted(text_at(scope, "scope")),
                 joined({joined({elapsed ? "open for " + seconds_text(*elapsed) : "open",
                                 timeout ? "of " + seconds_text(*timeout) : ""},
                                " "),
                         !timeout ? "no deadline" : "",
                         !remaining       ? ""
                         : *remaining > 0 ? seconds_text(*remaining) + " left"
                                          : "over its time",
                         tid ? fmt::format("thread {}", *tid) : ""}));
    }
  }

  // Adds the outputs that all expiries of the incident share, by the names of the commands.
  void add_command_outputs(Page& page) const {
    std::map<std::string_view, const CommandOutput*> outputs;
    for (const CommandOutput& output : incident_.outputs) {
      if (output.host.empty() && output.id == key_.id) {
        outputs.try_emplace(output.name, &output);
      }
    }
    for (const CommandOutput& output : incident_.outputs) {
      if (output.host.empty() && output.incident == base().incident) {
        outputs.try_emplace(output.name, &output);
      }
    }
    for (const auto& [name, output] : outputs) {
      add_command_output(page, *output);
    }
  }

  // Adds the peers once for all expiries of an incident.
  void add_peers_of_incident(Page& page) const {
    std::vector<dom::object> peers;
    for (const ParsedRecord& kept : shared_) {
      if (kept.record.event == "peer_evidence") {
        peers.push_back(kept.record.fields);
      }
    }
    add_peers(page, peers);
  }

  void add_evidence(Page& page) const {
    const Record* evidence = find("evidence");
    evidence = evidence != nullptr ? evidence : find_in(shared_, "evidence");
    evidence = evidence != nullptr ? evidence : find("warned");
    if (evidence == nullptr) {
      page.heading("Evidence");
      page.item(2, "There is no evidence record: gathering was off, or the server ended first.");
      return;
    }
    add_python_stacks(page, evidence->fields);
    page.heading("Evidence");
    std::vector<std::string_view> hidden{"schema",  "event",           "time",
                                         "mono_ns", "threads_omitted", "python_threads_omitted",
                                         "threads", "python_threads",  "children"};
    for (const auto& [key, value] : own_[0].record.fields) {
      hidden.push_back(key);
    }
    add_fields(page, evidence->fields, hidden);
    add_threads(page, evidence->fields);
    add_children(page, evidence->fields);
  }

  // The warnings and deferrals before the verdict, the signals and hooks after it, in their order.
  void add_timeline(Page& page) const {
    constexpr auto kLast = std::numeric_limits<std::int64_t>::max();
    std::multimap<std::int64_t, std::string> entries;
    const Record* const killed = find("killed");
    if (worker_ != nullptr) {
      for (const Moment& moment : worker_->moments) {
        if (is_in_timeline(moment)) {
          entries.emplace(moment.mono_ns.value_or(kLast), moment.text);
        }
      }
    }
    page.heading("Timeline (times after the verdict)");
    for (const auto& [mono_ns, text] : entries) {
      const bool is_timed = verdict_ != nullptr && verdict_->mono_ns && mono_ns != kLast;
      const double after_s = is_timed ? seconds_between(verdict_->mono_ns, mono_ns) : 0;
      page.field(is_timed ? (after_s < 0 ? "-" : "+") + seconds_text(std::abs(after_s)) : "", text);
    }
    if (killed == nullptr || objects_at(killed->fields, "signals").empty()) {
      page.item(2, find("released_late") != nullptr ? "No signal was sent: it was released first."
                   : killed != nullptr              ? "No signal was sent."
                                                    : "No record says which signals were sent.");
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
      return;
    }
    std::vector<std::string_view> hidden{"schema", "event", "time", "mono_ns", "signals"};
    for (const auto& [key, value] : own_[0].record.fields) {
      if (&own_[0].record != outcome) {
        hidden.push_back(key);
      }
    }
    hidden.emplace_back("kernel_stack");
    add_fields(page, outcome->fields, hidden);
    page.field("kernel stack", kernel_stack_text(texts_at(outcome->fields, "kernel_stack")));
    page.field("exit", end_of_command());
  }

  ExpiryKey key_;
  const Incident& incident_;
  const Worker* worker_ = nullptr;   // the one that expired
  std::deque<ParsedRecord> own_;     // the records of this expiry
  const Record* verdict_ = nullptr;  // the `expired` record of own_
  // The `peer_evidence` records of its incident, the `server_stopped` records of its host, and,
  // where several scopes of the worker expired together, their other `expired` records and the
  // `evidence` record of the first: only the records of the first scope say what all share.
  std::deque<ParsedRecord> shared_;
};

}  // namespace

ExpirySummary summary_of(const ExpiryKey& key, const IncidentRecords& records,
                         const Incident& incident) {
  const Expiry expiry(key, records, incident);
  return {expiry.headline(), expiry.facts()};
}

std::string expiry_page(const ExpiryKey& key, const IncidentRecords& records,
                        const Incident& incident, bool colour) {
  return Expiry(key, records, incident).page(colour);
}

}  // namespace filetimer::cli
