// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/hang.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "timer_client/cli/log/evidence_page.hpp"
#include "timer_client/cli/log/log_table.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

// The axis begins this many times the longest expired scope before the verdict.
constexpr double kPastShare = 1.5;
constexpr double kLeastPastS = 1;
constexpr double kMostPastS = 600;
constexpr double kMarginShare = 0.04;  // before the first event
constexpr double kAfterShare = 1.15;   // of the last event
constexpr double kLeastAxisS = 1e-3;
constexpr double kSameBarS = 0.05;       // two records of one scope differ by less
constexpr double kRoundingS = 2e-6;      // of two times in records
constexpr double kLongestScopeS = 1e9;   // 30 years: what is longer is no duration
constexpr double kFarFromRecordS = 1e5;  // likewise, between a record and a time in it

constexpr double kSameExitS = 1;  // records of one exit
constexpr std::string_view kExitedInside = "exited inside ";

// A worker of a machine.
using LaneKey = std::pair<std::string, std::int64_t>;

// Returns the host of the worker as records have it. The picture may call it otherwise.
std::string host_of(const ExpiredWorker& worker) {
  return worker.machine.substr(0, worker.machine.find('\n'));
}

bool is_duration(const Number& seconds) {
  return seconds && *seconds >= 0 && *seconds <= kLongestScopeS;
}

// Returns the difference of two times of one clock. Records may hold any numbers.
double seconds_between(const Integer& begin_ns, const Integer& end_ns) {
  return begin_ns && end_ns ? (static_cast<double>(*end_ns) - static_cast<double>(*begin_ns)) / 1e9
                            : 0;
}

// Returns a time that a record has, or the time of the record if the former cannot be right.
double time_or(double record_s, double stated_s) {
  return std::abs(stated_s - record_s) <= kFarFromRecordS ? stated_s : record_s;
}

class HangBuilder {
 public:
  HangBuilder(Hang& hang, const ExpiredWorker& around) : hang_(hang) {
    for (const ExpiredWorker& one : hang.incident.expired) {
      hosts_.emplace(one.machine, one.worker.host);
      incidents_.emplace(one.machine, one.incident);
      expiries_.emplace(one.machine, one.id);
    }
    hosts_.emplace(around.machine, around.worker.host);
    incidents_.emplace(around.machine, around.incident);
    const std::vector<ScopeGroup>& groups = hang.incident.groups;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (const WorkerName& worker : groups[i].workers) {
        add_lane(worker, i, i == 0 && hang.incident.has_odd_group());
      }
    }
    for (const ExpiredWorker& one : hang.incident.expired) {
      add_lane(one.worker);
    }
    if (hang.incident.expired.empty()) {  // a warning, or a verdict of which no record is there
      expiries_.emplace(around.machine, around.id);
      add_lane(around.worker);
    }
  }

  void take(const Record& record) {
    const std::string machine = machine_of(record);
    const auto host = hosts_.find(machine);
    if (host == hosts_.end() || !record.time_us) {
      return;
    }
    const double at_s = static_cast<double>(*record.time_us - hang_.zero_us) / 1e6;
    if (record.event == "incident") {
      if (incidents_.contains({machine, std::string(record.incident)})) {
        take_incident(record, host->second, at_s);
      }
      return;
    }
    if (record.event == "evidence_command") {
      if (incidents_.count({machine, std::string(record.incident)}) > 0) {
        hang_.outputs.push_back({command_name_text(record), host->second, command_end_text(record),
                                 output_size_text(record), record.text("output")});
      }
      return;
    }
    Lane* const lane = lane_of(host->second, record.pid);
    if (lane == nullptr) {
      return;
    }
    if (record.event == "peer_evidence") {
      if (incidents_.contains({machine, std::string(record.incident)})) {
        take_stacks(record, *lane);
      }
      return;
    }
    const bool is_ours = expiries_.contains({machine, std::string(record.id)});
    if (record.event == "expired" && is_ours) {
      take_expired(record, *lane, at_s);
    } else if (record.event == "evidence" && is_ours) {
      add_mark(*lane, at_s, Mark::Kind::kEvidence, "evidence was collected");
      take_stacks(record, *lane);
    } else if (record.event == "killed" && is_ours) {
      take_killed(record, *lane, at_s);
    } else if (record.event == "released_late" && is_ours) {
      add_mark(*lane, at_s, Mark::Kind::kReleased, "released late: " + in_few_words(record));
      set_end(*lane, at_s, record.scope);
    } else if (record.event == "hook" && is_ours) {
      add_mark(*lane, at_s, Mark::Kind::kOther, "hook: " + in_few_words(record));
    } else if (record.event == "warned") {
      take_warned(record, *lane, at_s);
      if (is_ours) {
        take_stacks(record, *lane);
      }
    } else if (record.event == "deferred") {
      add_mark(*lane, at_s, Mark::Kind::kDeferred, "deferred: " + in_few_words(record));
    } else if (record.event == "left_open") {
      take_left_open(record, *lane, at_s);
    } else if (record.event == "worker_ended") {
      ends_.insert_or_assign(lane, at_s);
    }
  }

  void finish() {
    add_ends();
    set_zero();
    set_axis();
    for (Lane& lane : hang_.lanes) {
      finish_bars(lane);
      std::ranges::stable_sort(lane.marks, {}, &Mark::at_s);
      std::erase_if(lane.marks, [&](const Mark& mark) { return mark.at_s < hang_.begin_s; });
    }
    const std::string first_host =
        hang_.incident.expired.empty() ? std::string() : hang_.incident.expired[0].worker.host;
    for (Lane& lane : hang_.lanes) {
      lane.is_own_clock = lane.worker.host != first_host;
    }
    if (!hang_.incident.expired.empty()) {
      if (Lane* const lane = lane_of(first_host, hang_.incident.expired[0].worker.pid)) {
        lane->is_first = true;
      }
    }
    sort_lanes(first_host);
    for (const Lane& lane : hang_.lanes) {
      if (!lane.worker.pid) {
        continue;
      }
      const auto children = child_stacks_.find({lane.worker.host, *lane.worker.pid});
      if (children != child_stacks_.end()) {
        hang_.child_stacks.push_back({lane.worker, std::move(children->second)});
      }
    }
  }

 private:
  // Marks the ends of workers that no other record calls gone. The record of the end of a killed
  // worker may come before that of its death.
  void add_ends() {
    for (const auto& [lane, at_s] : ends_) {
      if (std::ranges::find(lane->marks, Mark::Kind::kDeath, &Mark::kind) == lane->marks.end()) {
        add_mark(*lane, at_s, Mark::Kind::kDeath, "ended");
        set_end(*lane, at_s);
      }
    }
  }

  // The record of a verdict is made after it.
  void set_zero() {
    double first_s = std::numeric_limits<double>::infinity();
    for (const Lane& lane : hang_.lanes) {
      for (const Mark& mark : lane.marks) {
        first_s = mark.kind == Mark::Kind::kVerdict ? std::min(first_s, mark.at_s) : first_s;
      }
    }
    if (!std::isfinite(first_s)) {
      return;
    }
    hang_.zero_us += std::llround(first_s * 1e6);
    for (Lane& lane : hang_.lanes) {
      for (ScopeBar& bar : lane.bars) {
        bar.begin_s -= first_s;
        bar.end_s -= first_s;
        bar.known_s -= first_s;
      }
      for (Mark& mark : lane.marks) {
        mark.at_s -= first_s;
      }
    }
  }

  // The axis has what is known, and no empty time before it.
  void set_axis() {
    double longest_s = 0;
    double first_s = 0;
    for (const Lane& lane : hang_.lanes) {
      for (const ScopeBar& bar : lane.bars) {
        first_s = std::min(first_s, bar.begin_s);
        if (bar.kind == ScopeBar::Kind::kExpired) {
          longest_s = std::max(longest_s, -bar.begin_s);
        }
      }
      for (const Mark& mark : lane.marks) {
        first_s = std::min(first_s, mark.at_s);
        hang_.end_s = std::max(hang_.end_s, mark.at_s);
      }
    }
    hang_.begin_s = std::max(-std::clamp(kPastShare * longest_s, kLeastPastS, kMostPastS),
                             std::min((1 + kMarginShare) * first_s, -kLeastAxisS));
    hang_.end_s =
        hang_.end_s > kLeastAxisS ? kAfterShare * hang_.end_s : -kMarginShare * hang_.begin_s;
  }

  // The lanes of a host stand together, first those of the host of the lane above them, so that
  // each host needs few headings.
  void sort_lanes(const std::string& first_host) {
    const ExpiredWorker* const told = hang_.incident.told_from();
    const Lane* const lead =
        told == nullptr ? nullptr : lane_of(told->worker.host, told->worker.pid);
    const Integer told_pid = lead == nullptr ? Integer{} : lead->worker.pid;
    const std::string told_host = lead == nullptr ? first_host : lead->worker.host;
    std::ranges::stable_sort(hang_.lanes, {}, [&](const Lane& lane) {
      constexpr auto kLast = std::numeric_limits<std::int64_t>::max();
      const std::string& host = lane.worker.host;
      const bool is_told = host == told_host && lane.worker.pid == told_pid;
      return std::tuple(!lane.is_odd, !is_told, !lane.is_first,
                        host != (lane.is_odd ? told_host : first_host), std::string_view(host),
                        lane.worker.rank.value_or(kLast), lane.worker.pid.value_or(kLast));
    });
    index_.clear();
  }

  void add_lane(const WorkerName& worker, std::optional<std::size_t> group = {},
                bool is_odd = false) {
    if (worker.pid &&
        index_.emplace(LaneKey{worker.host, *worker.pid}, hang_.lanes.size()).second) {
      hang_.lanes.push_back(
          {.worker = worker, .is_odd = is_odd, .group = group, .bars = {}, .marks = {}});
    }
  }

  Lane* lane_of(const std::string& host, const Integer& pid) {
    const auto found = pid ? index_.find({host, *pid}) : index_.end();
    return found == index_.end() ? nullptr : &hang_.lanes[found->second];
  }

  static void add_mark(Lane& lane, double at_s, Mark::Kind kind, std::string text) {
    lane.marks.push_back({at_s, kind, std::move(text)});
  }

  // A scope is in several records: the open ones of the incident and of each expiry.
  static ScopeBar& bar_of(Lane& lane, const std::string& scope, double begin_s) {
    const auto same = std::ranges::find_if(lane.bars, [&](const ScopeBar& bar) {
      return bar.kind != ScopeBar::Kind::kEnded && bar.scope == scope &&
             std::abs(bar.begin_s - begin_s) <= kSameBarS;
    });
    if (same != lane.bars.end()) {
      return *same;
    }
    lane.bars.push_back({.begin_s = begin_s,
                         .end_s = std::numeric_limits<double>::infinity(),
                         .known_s = begin_s,
                         .has_end = false,
                         .scope = scope,
                         .timeout_s = {},
                         .kind = ScopeBar::Kind::kOpen});
    return lane.bars.back();
  }

  static void add_open_scope(Lane& lane, dom::object scope, double at_s) {
    const Number elapsed_s = number_at(scope, "elapsed_s");
    const std::string name = text_at(scope, "scope");
    if (is_duration(elapsed_s) && !name.empty()) {
      ScopeBar& bar = bar_of(lane, name, at_s - *elapsed_s);
      bar.known_s =
          bar.kind == ScopeBar::Kind::kExpired ? bar.known_s : std::max(bar.known_s, at_s);
      bar.timeout_s = number_at(scope, "timeout_s");
      bool is_paused = false;
      bar.is_paused = scope.at_key("paused").get(is_paused) == simdjson::SUCCESS && is_paused;
    }
  }

  void take_incident(const Record& record, const std::string& host, double at_s) {
    for (const dom::object scope : objects_at(record.fields, "open_scopes")) {
      if (Lane* const lane = lane_of(host, integer_at(scope, "pid"))) {
        add_open_scope(*lane, scope, at_s);
      }
    }
    for (const dom::object scopes : objects_at(record.fields, "ended_scopes")) {
      Lane* const lane = lane_of(host, integer_at(scopes, "pid"));
      if (lane == nullptr) {
        continue;
      }
      for (const dom::element element : elements_at(scopes, "ended")) {
        dom::array pair;
        if (element.get_array().get(pair) != simdjson::SUCCESS || pair.size() != 2) {
          continue;
        }
        const Number ago_s = as_number(pair.at(0).value_unsafe());
        const Number took_s = as_number(pair.at(1).value_unsafe());
        if (ago_s && std::abs(*ago_s) <= kLongestScopeS && is_duration(took_s)) {
          lane->bars.push_back({.begin_s = at_s - *ago_s - *took_s,
                                .end_s = at_s - *ago_s,
                                .scope = text_at(scopes, "scope"),
                                .timeout_s = {}});
        }
      }
    }
    hang_.ended_omitted += count_at(record.fields, "ended_omitted");
  }

  void take_expired(const Record& record, Lane& lane, double at_s) const {
    const Number overdue_ms = record.number("overdue_ms");
    const Integer deadline_ns = record.integer("deadline_mono_ns");
    // The record is made some time after the verdict, to which its durations refer.
    const double verdict_s =
        deadline_ns && record.mono_ns
            ? time_or(at_s, at_s - seconds_between(deadline_ns, record.mono_ns) +
                                overdue_ms.value_or(0) / 1e3)
            : at_s;
    for (const dom::object scope : objects_at(record.fields, "open_scopes")) {
      add_open_scope(lane, scope, verdict_s);
    }
    if (const Number elapsed_s = record.number("elapsed_s"); is_duration(elapsed_s)) {
      ScopeBar& bar = bar_of(lane, std::string(record.scope), verdict_s - *elapsed_s);
      bar.kind = ScopeBar::Kind::kExpired;
      bar.begin_s = verdict_s - *elapsed_s;
      bar.known_s = verdict_s;
      bar.timeout_s = record.number("timeout_s");
    }
    add_mark(lane, verdict_s, Mark::Kind::kVerdict,
             fmt::format("expired in {}{}", backquoted(record.scope),
                         overdue_ms ? ", " + seconds_text(*overdue_ms / 1e3) + " late" : ""));
  }

  void take_killed(const Record& record, Lane& lane, double at_s) {
    double first_s = at_s;
    bool is_first = true;
    for (const dom::object sent : objects_at(record.fields, "signals")) {
      const double sent_s =
          time_or(at_s, at_s - seconds_between(integer_at(sent, "mono_ns"), record.mono_ns));
      first_s = is_first ? sent_s : first_s;
      is_first = false;
      add_mark(lane, sent_s, Mark::Kind::kSignal, text_at(sent, "name"));
    }
    const Number dead_after_ms = record.number("dead_after_ms");
    if (dead_after_ms) {
      const double dead_s = time_or(at_s, first_s + *dead_after_ms / 1e3);
      add_mark(lane, dead_s, Mark::Kind::kDeath,
               "dead after " + seconds_text(*dead_after_ms / 1e3));
      set_end(lane, dead_s);
    } else {
      const std::string verdict = record.text("verdict");
      add_mark(lane, at_s, Mark::Kind::kOther, with_spaces(verdict));
      for (ScopeBar& bar : lane.bars) {
        bar.is_spared = bar.is_spared || (verdict == "spared" && bar.scope == record.scope);
      }
    }
  }

  // The record is made when the evidence is there.
  static void take_warned(const Record& record, Lane& lane, double at_s) {
    const Integer soft_ns = record.integer("soft_mono_ns");
    const double soft_s = time_or(at_s, at_s - seconds_between(soft_ns, record.mono_ns));
    const double noticed_s =
        soft_ns ? time_or(at_s, soft_s + record.number("overdue_ms").value_or(0) / 1e3) : at_s;
    add_mark(lane, noticed_s, Mark::Kind::kWarning, "warned: " + in_few_words(record));
    add_open_scope(lane, record.fields, noticed_s);
  }

  // One of these records for each open scope of a worker that has exited.
  static void take_left_open(const Record& record, Lane& lane, double at_s) {
    add_open_scope(lane, record.fields, at_s);
    set_end(lane, at_s);
    const std::string scope = backquoted(record.scope);
    const auto before = std::ranges::find_if(lane.marks, [&](const Mark& mark) {
      return mark.text.starts_with(kExitedInside) && at_s - mark.at_s <= kSameExitS;
    });
    if (before == lane.marks.end()) {
      add_mark(lane, at_s, Mark::Kind::kDeath, std::string(kExitedInside) + scope);
    } else if (before->text.find(scope) == std::string::npos) {
      before->text += ", " + scope;
    }
  }

  // All scopes have ended when a worker has, some of them before that perhaps. One that expired was
  // open until then, unless its worker was spared: else there would be a record of its release.
  static void set_end(Lane& lane, double at_s) {
    for (ScopeBar& bar : lane.bars) {
      if (bar.kind != ScopeBar::Kind::kEnded) {
        bar.end_s = std::min(bar.end_s, at_s);
        bar.has_end = bar.has_end || bar.known_s >= at_s ||
                      (bar.kind == ScopeBar::Kind::kExpired && !bar.is_spared);
      }
    }
  }

  static void set_end(Lane& lane, double at_s, std::string_view scope) {
    for (ScopeBar& bar : lane.bars) {
      if (bar.kind != ScopeBar::Kind::kEnded && bar.scope == scope) {
        bar.end_s = std::min(bar.end_s, at_s);
        bar.has_end = true;
      }
    }
  }

  void take_stacks(const Record& record, const Lane& lane) {
    if (!told_.insert({lane.worker.host, lane.worker.pid.value_or(0)}).second) {
      return;
    }
    std::vector<std::string> frames;
    for (const dom::object thread : objects_at(record.fields, "python_threads")) {
      bool is_current = false;
      is_current = thread.at_key("current").get(is_current) == simdjson::SUCCESS && is_current;
      if (frames.empty() || is_current) {
        frames = texts_at(thread, "frames");
      }
    }
    std::ranges::reverse(frames);
    hang_.python_stacks.add(lane.worker, frames);
    frames.clear();
    // The main thread comes first.
    for (const dom::object thread : objects_at(record.fields, "threads")) {
      frames = texts_at(thread, "native_stack");
      break;
    }
    hang_.native_stacks.add(lane.worker, outermost_first(frames));
    for (const dom::object child : objects_at(record.fields, "children")) {
      take_child(child, lane);
    }
  }

  static std::vector<std::string> outermost_first(std::vector<std::string> frames) {
    std::ranges::transform(frames, frames.begin(), without_offset);
    std::ranges::reverse(frames);
    return frames;
  }

  void take_child(dom::object child, const Lane& lane) {
    std::vector<std::string> calls = outermost_first(texts_at(child, "native_stack"));
    if (calls.empty()) {
      calls.push_back(text_at(child, "doing"));
    }
    if (calls[0].empty()) {
      return;
    }
    child_stacks_[{lane.worker.host, lane.worker.pid.value_or(0)}].add(
        {{}, integer_at(child, "pid"), {}, text_at(child, "comm")}, calls);
  }

  void finish_bars(Lane& lane) const {
    for (ScopeBar& bar : lane.bars) {
      bar.end_s = std::max(std::min(bar.end_s, hang_.end_s), bar.begin_s);
    }
    std::erase_if(lane.bars, [&](const ScopeBar& bar) {
      return bar.end_s < hang_.begin_s || bar.begin_s > hang_.end_s;
    });
    std::ranges::stable_sort(lane.bars, [](const ScopeBar& a, const ScopeBar& b) {
      return std::tuple(a.begin_s, -a.end_s) < std::tuple(b.begin_s, -b.end_s);
    });
    std::vector<double> ends;  // of each row's last bar
    for (ScopeBar& bar : lane.bars) {
      const auto row =
          std::ranges::find_if(ends, [&](double end) { return end <= bar.begin_s + kRoundingS; });
      bar.row = static_cast<std::size_t>(row - ends.begin());
      if (row == ends.end()) {
        ends.push_back(bar.end_s);
      } else {
        *row = bar.end_s;
      }
    }
  }

  Hang& hang_;
  std::map<std::string, std::string> hosts_;                 // by machine, as lanes name them
  std::set<std::pair<std::string, std::string>> incidents_;  // machine and id
  std::set<std::pair<std::string, std::string>> expiries_;
  std::map<LaneKey, std::size_t> index_;
  std::map<LaneKey, StackTree> child_stacks_;
  std::map<Lane*, double> ends_;  // when the worker had ended; lanes stay in place until the end
  std::set<LaneKey> told_;        // whose stacks are in the trees
};

}  // namespace

std::string_view name_of(Mark::Kind kind) {
  switch (kind) {
    case Mark::Kind::kWarning:
      return "warning";
    case Mark::Kind::kDeferred:
      return "deferred";
    case Mark::Kind::kVerdict:
      return "verdict";
    case Mark::Kind::kEvidence:
      return "evidence";
    case Mark::Kind::kSignal:
      return "signal";
    case Mark::Kind::kDeath:
      return "death";
    case Mark::Kind::kReleased:
      return "released late";
    case Mark::Kind::kOther:
      break;
  }
  return "other";
}

std::string_view zero_of(const Hang& hang) {
  return hang.incident.expired.empty() ? "record" : "verdict";
}

Hang hang_of(const IncidentRecords& records) {
  const ExpiryKey& key = records.key();
  Integer least_us;  // of all records
  records.each([&](const Record& record) {
    least_us = least_us && record.time_us ? std::min(*least_us, *record.time_us)
               : least_us                 ? least_us
                                          : record.time_us;
  });
  ExpiredWorker around = ExpiryPage(key, records).expired_worker();
  Hang hang;
  hang.incident = records.combine(around, false);
  const auto with_incident = std::ranges::find_if(
      hang.incident.expired, [](const ExpiredWorker& one) { return !one.incident.empty(); });
  if (around.incident.empty() && with_incident != hang.incident.expired.end()) {
    // A warning names no incident, but led to this one.
    around = *with_incident;
    around.worker.host = host_of(around);
    hang.incident = records.combine(around, false);
  }
  const ExpiredWorker& first =
      hang.incident.expired.empty() ? around : hang.incident.expired.front();
  const ExpiredWorker* const from = hang.incident.told_from();
  const ExpiredWorker& told = from == nullptr ? around : *from;
  const ExpiryPage page({host_of(told), told.id, told.worker.pid, told.time_us}, records);
  hang.headline = page.headline();
  hang.facts = page.facts();
  hang.zero_us = first.time_us.value_or(key.time_us.value_or(least_us.value_or(0)));
  HangBuilder builder(hang, around);
  records.each([&](const Record& record) {
    if (key.is_of(record) || records.is_near(record)) {
      builder.take(record);
    }
  });
  builder.finish();
  return hang;
}

}  // namespace filetimer::cli
