// SPDX-License-Identifier: MIT
#include "timer_client/cli/expiry_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "timer_client/cli/page.hpp"
#include "timer_client/cli/record_time.hpp"
#include "timer_client/cli/whereabouts.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kPidsListed = 8;
// USER_HZ, the unit of start times in /proc, is 100 on every Linux a record comes from.
constexpr double kTicksPerSecond = 100;

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) {
      text.append(text.empty() ? "" : separator).append(part);
    }
  }
  return text;
}

std::string milliseconds_text(double ms) {
  return seconds_text(ms / 1e3);
}

std::string quoted(const std::string& scope) {
  return fmt::format("`{}`", scope);
}

std::string in_scope(const OpenScope& open) {
  return joined({open.elapsed_s ? "for " + seconds_text(*open.elapsed_s) : "",
                 open.timeout_s ? "of " + timeout_text(*open.timeout_s) : "no deadline"},
                open.timeout_s ? " " : ", ");
}

std::string size_text(double bytes) {
  constexpr double kMiB = 1024.0 * 1024;
  return bytes >= 1024 * kMiB   ? fmt::format("{:.3g} GiB", bytes / (1024 * kMiB))
         : bytes >= 1000 * 1024 ? fmt::format("{:.3g} MiB", bytes / kMiB)
                                : fmt::format("{:.3g} KiB", bytes / 1024);
}

std::string pids_text(const std::vector<std::int64_t>& pids) {
  const std::size_t listed = std::min(pids.size(), kPidsListed);
  std::string text = fmt::format(
      "{}", fmt::join(pids.begin(), pids.begin() + static_cast<std::ptrdiff_t>(listed), ", "));
  if (pids.size() > listed) {
    text += fmt::format(" and {} more", pids.size() - listed);
  }
  return text;
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
      fmt::format("{} hung in {}: {}.", worker_text(worker.rank, worker.pid, worker.comm),
                  expiry.scope.empty() ? "a scope that no record names" : quoted(expiry.scope),
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
      worker.job_id.empty() ? "" : "job " + worker.job_id};
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
             joined({joined({quoted(expiry.scope),
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
        joined({fmt::format("{} {}", quoted(open.scope), in_scope(open)), left,
                open.tid && open.tid != expiry.tid ? fmt::format("thread {}", *open.tid) : ""},
               ", "));
  }
}

bool is_this(const Expiry& expiry, const Integer& pid, const Integer& rank) {
  return expiry.worker.pid ? pid == expiry.worker.pid : rank && rank == expiry.worker.rank;
}

void add_groups(Page& page, const Expiry& expiry) {
  const Incident& incident = *expiry.incident;
  const std::vector<ScopeGroup> groups = scope_groups(incident);
  std::size_t listed = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const ScopeGroup& group = groups[i];
    listed += group.workers.size();
    std::string time;
    if (group.shortest_s) {
      const std::string shortest = seconds_text(*group.shortest_s);
      const std::string longest = seconds_text(*group.longest_s);
      time =
          shortest == longest ? " for " + longest : fmt::format(" for {} to {}", shortest, longest);
    }
    const bool has_this =
        std::any_of(group.workers.begin(), group.workers.end(),
                    [&](const WorkerAt& at) { return is_this(expiry, at.pid, at.rank); });
    const std::string mark = !has_this                   ? ""
                             : group.workers.size() == 1 ? " (this one)"
                                                         : " (this one among them)";
    page.item(2, fmt::format("{}{}: {}{}{}", quoted(group.scope), time, workers_text(group.workers),
                             mark, i == 0 && has_odd_one_out(groups) ? ", the odd one out" : ""));
  }
  if (incident.omitted > 0) {
    page.item(2, fmt::format("{} more scopes did not fit into the record", incident.omitted));
  } else if (incident.workers && *incident.workers > static_cast<std::int64_t>(listed)) {
    page.item(
        2, fmt::format("no scope open: {} of {} workers",
                       *incident.workers - static_cast<std::int64_t>(listed), *incident.workers));
  }
}

void add_others(Page& page, const Expiry& expiry) {
  page.heading("Where everybody was");
  if (expiry.incident) {
    add_groups(page, expiry);
  } else {
    page.item(2, "The incident record is not in these logs.");
  }
  if (expiry.fellows.size() < 2) {
    return;
  }
  const Fellow& first = expiry.fellows[0];
  page.item(2,
            fmt::format("First to expire: {}, {}.", worker_text(first.rank, first.pid, first.comm),
                        first.id == expiry.id ? "this one" : first.id));
  std::vector<std::string> others;
  for (const Fellow& fellow : expiry.fellows) {
    if (fellow.id != first.id && fellow.id != expiry.id) {
      others.push_back(
          fmt::format("{}, {}", worker_text(fellow.rank, fellow.pid, fellow.comm), fellow.id));
    }
  }
  if (!others.empty()) {
    page.item(2, fmt::format("Expired too: {}.", joined(others, "; ")));
  }
}

std::string call_text(const std::string& syscall, const std::string& descriptor) {
  return descriptor.empty() ? syscall : fmt::format("{} on {}", syscall, descriptor);
}

// "do_wait+0x8c/0x100" -> "do_wait"
std::string function_of(const std::string& frame) {
  return frame.substr(0, frame.find('+'));
}

// Threads in the same place are told once: a pool of 60 that waits for work is one line.
void add_threads(Page& page, const Evidence& evidence) {
  const auto place = [](const ThreadEvidence& t) {
    return std::tie(t.comm, t.state, t.wchan, t.syscall, t.syscall_fd, t.stack);
  };
  std::vector<std::vector<const ThreadEvidence*>> groups;
  for (const ThreadEvidence& thread : evidence.threads) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return place(*group.front()) == place(thread);
    });
    if (same == groups.end()) {
      groups.push_back({&thread});
    } else {
      same->push_back(&thread);
    }
  }
  page.field("threads", fmt::format("{}{}", evidence.threads.size(),
                                    evidence.threads_omitted > 0
                                        ? fmt::format(" and {} that did not fit into the record",
                                                      evidence.threads_omitted)
                                        : ""));
  for (const auto& group : groups) {
    const ThreadEvidence& thread = *group.front();
    std::vector<std::int64_t> tids;
    Number cpu_s;
    for (const ThreadEvidence* member : group) {
      if (member->tid) {
        tids.push_back(*member->tid);
      }
      cpu_s = member->cpu_s ? cpu_s.value_or(0) + *member->cpu_s : cpu_s;
    }
    page.item(4,
              joined({joined({pids_text(tids), thread.comm}, " "),
                      joined({thread.state, thread.wchan.empty() ? "" : "in " + thread.wchan}, " "),
                      call_text(thread.syscall, thread.syscall_fd),
                      cpu_s ? seconds_text(*cpu_s) + " CPU" : ""},
                     ", "));
    std::vector<std::string> functions;
    for (const std::string& frame : thread.stack) {
      functions.push_back(function_of(frame));
    }
    if (!functions.empty()) {
      page.item(6, joined(functions, " < "));
    }
  }
}

void add_evidence(Page& page, const Expiry& expiry) {
  page.heading("What the kernel says it was doing");
  if (!expiry.evidence) {
    page.item(2, "There is no evidence record: gathering was off, or the server ended first.");
    return;
  }
  const Evidence& evidence = *expiry.evidence;
  const std::string named = evidence.state_name.empty()
                                ? evidence.state
                                : fmt::format("{} ({})", evidence.state, evidence.state_name);
  page.field("state", joined({named, evidence.wchan.empty() ? "" : "in " + evidence.wchan}, ", "));
  page.field("system call", call_text(evidence.syscall, evidence.syscall_fd));
  page.field("CPU time",
             joined({evidence.cpu_user_s ? seconds_text(*evidence.cpu_user_s) + " user" : "",
                     evidence.cpu_system_s ? seconds_text(*evidence.cpu_system_s) + " system" : ""},
                    ", "));
  page.field("memory", evidence.rss_bytes.value_or(-1) >= 0
                           ? size_text(*evidence.rss_bytes) + " resident"
                           : "");
  page.field("devices", joined(evidence.devices, ", "));
  std::vector<std::string> children;
  for (const ChildProcess& child : evidence.children) {
    children.push_back(joined({child.pid ? fmt::format("{}", *child.pid) : "", child.comm,
                               child.state.empty() ? "" : fmt::format("({})", child.state)},
                              " "));
  }
  page.field("children", joined(children, ", "));
  if (!evidence.threads.empty()) {
    add_threads(page, evidence);
  }
  page.field("missing", evidence.missing);
}

void add_signals(Page& page, const Expiry& expiry) {
  page.heading("What was done (times after the verdict)");
  if (!expiry.outcome) {
    page.item(2, expiry.late_release ? "Nothing: it was released first." : "No record says so.");
    return;
  }
  if (expiry.outcome->signals.empty()) {
    page.item(2, "No signal was sent.");
  }
  for (const SignalSent& sent : expiry.outcome->signals) {
    const bool timed = sent.mono_ns && expiry.mono_ns;
    const double after_s =
        timed ? (static_cast<double>(*sent.mono_ns) - static_cast<double>(*expiry.mono_ns)) / 1e9
              : 0;
    page.field(timed ? "+" + seconds_text(after_s) : "",
               joined({sent.name, sent.pids.empty() ? "" : "to " + pids_text(sent.pids)}, " "));
  }
  const auto& signals = expiry.outcome->signals;
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
  if (expiry.outcome && !expiry.outcome->cancelled.empty()) {
    std::vector<std::string> scopes;
    for (const std::string& scope : expiry.outcome->cancelled) {
      scopes.push_back(quoted(scope));
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
  add_others(page, expiry);
  add_evidence(page, expiry);
  add_signals(page, expiry);
  add_ending(page, expiry);
  return page.text();
}

}  // namespace filetimer::cli
