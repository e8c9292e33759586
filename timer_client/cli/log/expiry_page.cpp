// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/expiry_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "timer_client/cli/log/evidence_page.hpp"
#include "timer_client/cli/log/whereabouts.hpp"
#include "timer_client/cli/log/whereabouts_page.hpp"
#include "timer_client/cli/text/page.hpp"
#include "timer_client/cli/text/phrases.hpp"
#include "timer_client/cli/text/record_time.hpp"

namespace filetimer::cli {
namespace {

// USER_HZ, the unit of start times in /proc, is 100 on every Linux a record comes from.
constexpr double kTicksPerSecond = 100;

std::string in_scope(const OpenScope& open) {
  return joined({open.elapsed_s ? "for " + seconds_text(*open.elapsed_s) : "",
                 open.timeout_s ? "of " + timeout_text(*open.timeout_s) : "no deadline"},
                open.timeout_s ? " " : ", ");
}

// "SIGTERM, then SIGKILL"
std::string signal_names(const Outcome& outcome) {
  std::vector<std::string> names;
  for (const SignalSent& sent : outcome.signals) {
    if (!sent.name.empty() && (names.empty() || names.back() != sent.name)) {
      names.push_back(sent.name);
    }
  }
  return joined(names, ", then ");
}

std::string outcome_in_short(const Expiry& expiry) {
  if (!expiry.outcome) {
    if (!expiry.late_release) {
      return "and no record says how it ended";
    }
    return expiry.late_release->late_ms
               ? fmt::format("released {} late, before any signal",
                             milliseconds_text(*expiry.late_release->late_ms))
               : "released late, before any signal";
  }
  const Outcome& outcome = *expiry.outcome;
  const std::string names = signal_names(outcome);
  if (outcome.verdict == "dead") {
    return joined({names.empty() ? "killed" : "killed with " + names,
                   outcome.dead_after_ms ? "dead after " + milliseconds_text(*outcome.dead_after_ms)
                                         : "dead"},
                  ", ");
  }
  if (outcome.verdict == "already_gone") {
    return "gone by itself before the signal";
  }
  if (outcome.verdict == "unkillable") {
    return joined({names.empty() ? "" : "sent " + names, "could not be killed"}, ", ");
  }
  if (outcome.verdict == "spared") {
    return outcome.reason.empty() ? "not signalled"
                                  : fmt::format("not signalled ({})", outcome.reason);
  }
  return outcome.verdict.empty() ? "with a record of its end that gives no verdict"
                                 : outcome.verdict;
}

void add_headline(Page& page, const Expiry& expiry) {
  const Worker& worker = expiry.worker;
  std::string open = expiry.elapsed_s ? "open for " + seconds_text(*expiry.elapsed_s) : "";
  if (expiry.timeout_s) {
    open = joined({open.empty() ? "open" : open, "of " + timeout_text(*expiry.timeout_s)}, " ");
  }
  page.paragraph(
      fmt::format("{} hung in {}: {}.", worker_text({{}, worker.pid, worker.rank, worker.comm}),
                  expiry.scope.empty() ? "a scope that no record names" : backquoted(expiry.scope),
                  joined({open, outcome_in_short(expiry)}, ", ")));
  if (!expiry.has_verdict) {
    page.paragraph(
        "Its `expired` record is not in these logs: it was rotated away or lost. What follows is "
        "from the records that came after it.");
  }
}

void add_expiry(Page& page, const Expiry& expiry) {
  page.heading("Expiry");
  page.field("id", expiry.incident_id.empty()
                       ? expiry.id
                       : fmt::format("{}, of incident {}", expiry.id, expiry.incident_id));
  const std::string late =
      expiry.overdue_ms ? milliseconds_text(*expiry.overdue_ms) + " after the deadline" : "";
  if (expiry.time_us) {
    page.field("when", joined({long_time(*expiry.time_us), late}, ", "));
  }
}

void add_worker(Page& page, const Expiry& expiry) {
  const Worker& worker = expiry.worker;
  page.heading("Worker");
  page.field("host", worker.host.empty() ? "unknown" : worker.host);
  page.field("process", joined({worker.pid ? fmt::format("pid {}", *worker.pid) : "pid unknown",
                                worker.comm, worker.uid ? fmt::format("user {}", *worker.uid) : ""},
                               ", "));
  const std::vector<std::string> rank = {
      worker.rank ? fmt::format("{}", *worker.rank) : "",
      worker.local_rank ? fmt::format("local rank {}", *worker.local_rank) : "",
      worker.job_id.empty() ? "" : "job " + worker.job_id,
      worker.step_id.empty() ? "" : "step " + worker.step_id};
  page.field("rank", joined(rank, ", "));
  page.field("command", worker.cmdline);
  if (worker.start_time) {
    const std::string ticks = fmt::format("start time {} in ticks since boot", *worker.start_time);
    const double age_s = expiry.mono_ns
                             ? static_cast<double>(*expiry.mono_ns) / 1e9 -
                                   static_cast<double>(*worker.start_time) / kTicksPerSecond
                             : 0;
    page.field("started",
               age_s > 0 ? fmt::format("{} before ({})", seconds_text(age_s), ticks) : ticks);
  }
}

void add_scopes(Page& page, const Expiry& expiry) {
  page.heading("Scopes it had open");
  page.field("expired",
             joined({joined({backquoted(expiry.scope),
                             expiry.elapsed_s ? "for " + seconds_text(*expiry.elapsed_s) : "",
                             expiry.timeout_s ? "of " + timeout_text(*expiry.timeout_s) : ""},
                            " "),
                     expiry.tid ? fmt::format("opened by thread {}", *expiry.tid) : ""},
                    ", "));
  // The list has the expired one too; of scopes of one name it is the one that is over its time.
  bool left_out = false;
  std::string label = "also open";
  for (const OpenScope& open : expiry.open_scopes) {
    if (!left_out && open.scope == expiry.scope && open.remaining_s && *open.remaining_s <= 0) {
      left_out = true;
      continue;
    }
    const std::string left = !open.remaining_s       ? ""
                             : *open.remaining_s > 0 ? seconds_text(*open.remaining_s) + " left"
                                                     : "over its time too";
    page.field(
        std::exchange(label, ""),
        joined({fmt::format("{} {}", backquoted(open.scope), in_scope(open)), left,
                open.tid && open.tid != expiry.tid ? fmt::format("thread {}", *open.tid) : ""},
               ", "));
  }
}

struct Deed {
  Integer mono_ns;
  std::string what;
};

// The warnings and deferrals before the verdict, the signals and hooks after it, in their order.
std::vector<Deed> deeds(const Expiry& expiry) {
  std::vector<Deed> all;
  if (expiry.outcome) {
    for (const SignalSent& sent : expiry.outcome->signals) {
      all.push_back(
          {sent.mono_ns,
           joined({sent.name, sent.pids.empty() ? "" : "to " + pids_text(sent.pids)}, " ")});
    }
  }
  for (const Step& step : expiry.steps) {
    all.push_back({step.mono_ns, joined({step.event, step.what}, ": ")});
  }
  const auto when = [](const Deed& deed) {
    return deed.mono_ns.value_or(std::numeric_limits<std::int64_t>::max());
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const Deed& a, const Deed& b) { return when(a) < when(b); });
  return all;
}

void add_deeds(Page& page, const Expiry& expiry) {
  page.heading("What was done (times after the verdict)");
  for (const Deed& deed : deeds(expiry)) {
    const bool timed = deed.mono_ns && expiry.mono_ns;
    const double after_s =
        timed ? (static_cast<double>(*deed.mono_ns) - static_cast<double>(*expiry.mono_ns)) / 1e9
              : 0;
    page.field(timed ? (after_s < 0 ? "-" : "+") + seconds_text(std::abs(after_s)) : "", deed.what);
  }
  if (!expiry.outcome) {
    page.item(2, expiry.late_release ? "No signal was sent: it was released first."
                                     : "No record says which signals were sent.");
    return;
  }
  const auto& signals = expiry.outcome->signals;
  if (signals.empty()) {
    page.item(2, "No signal was sent.");
  }
  if (expiry.grace_s && signals.size() == 1 && signals.front().name != "SIGKILL") {
    page.field("grace", fmt::format("{} before SIGKILL", timeout_text(*expiry.grace_s)));
  }
}

std::string ending(const Expiry& expiry) {
  if (expiry.outcome) {
    const Outcome& outcome = *expiry.outcome;
    if (outcome.verdict == "dead") {
      return outcome.dead_after_ms ? fmt::format("Dead {} after the first signal.",
                                                 milliseconds_text(*outcome.dead_after_ms))
                                   : "Dead.";
    }
    const std::string verdict = outcome.verdict == "already_gone"
                                    ? "It was already gone, nothing was left to signal"
                                : outcome.verdict == "unkillable" ? "Unkillable"
                                : outcome.verdict == "spared"     ? "Spared"
                                : outcome.verdict.empty() ? "Its `killed` record gives no verdict"
                                                          : outcome.verdict;
    return joined({verdict, outcome.reason}, ": ") + ".";
  }
  if (expiry.late_release) {
    return joined({"It released the scope after the deadline, but before a signal was sent",
                   expiry.late_release->reason},
                  ": ") +
           ".";
  }
  return "No record says. The server was killed before it could write one, it is still at it, or "
         "the record is in a log that was not read.";
}

void add_ending(Page& page, const Expiry& expiry) {
  page.heading("How it ended");
  page.item(2, ending(expiry));
  if (expiry.outcome) {
    const Stuck& stuck = expiry.outcome->stuck;
    page.field("state",
               joined({stuck.state, stuck.wchan.empty() ? "" : "in " + stuck.wchan}, ", "));
    page.field("stack", kernel_stack_text(stuck.kernel_stack));
    page.field("devices", joined(stuck.devices, ", "));
  }
  if (expiry.outcome && !expiry.outcome->cancelled.empty()) {
    std::vector<std::string> scopes;
    for (const std::string& scope : expiry.outcome->cancelled) {
      scopes.push_back(backquoted(scope));
    }
    page.item(2, "Dropped with it: " + joined(scopes, ", ") + ".");
  }
}

}  // namespace

std::string expiry_page(const Expiry& expiry, bool colour) {
  Page page(colour);
  add_headline(page, expiry);
  add_expiry(page, expiry);
  add_worker(page, expiry);
  add_scopes(page, expiry);
  add_whereabouts(page, expiry);
  add_evidence(page, expiry.evidence);
  add_deeds(page, expiry);
  add_ending(page, expiry);
  return page.text();
}

}  // namespace filetimer::cli
