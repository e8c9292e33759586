// A hang as a picture has it: one lane for each worker of the job, with its scopes as bars and what
// happened to it as marks, on one time axis over all hosts.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "timer_client/cli/log/expiry_page.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/report/stack_tree.hpp"

namespace filetimer::cli {

// All times are in seconds after zero_of(), by the clock of the lane's host.
struct ScopeBar {
  enum class Kind { kEnded, kOpen, kExpired };
  double begin_s = 0;
  double end_s = 0;    // that of the axis if no record has the end
  double known_s = 0;  // of an open scope: the verdict, or when it was last recorded as open
  bool has_end = true;
  std::string scope;
  Number timeout_s;  // not known of an ended scope; empty: no deadline
  Kind kind = Kind::kEnded;
  bool is_paused = false;
  bool is_spared = false;  // an expired scope that may have been released since
  std::size_t row = 0;     // bars that overlap are in different rows, the outermost scope first
};

struct Mark {
  enum class Kind { kWarning, kDeferred, kVerdict, kEvidence, kSignal, kDeath, kReleased, kOther };
  double at_s = 0;
  Kind kind = Kind::kOther;
  std::string text;  // what happened, without the time
};
std::string_view name_of(Mark::Kind kind);

struct Lane {
  WorkerName worker;
  bool is_first = false;             // to expire
  bool is_odd = false;               // is not where most others are
  bool is_own_clock = false;         // its host is not that of the first to expire
  std::optional<std::size_t> group;  // of JobIncident::groups; empty: it is not known where it was
  std::vector<ScopeBar> bars;
  std::vector<Mark> marks;
};

struct Hang {
  std::string headline;                                    // what happened, in one sentence
  std::vector<std::pair<std::string, std::string>> facts;  // a label and a value
  JobIncident incident;
  // The lanes of the odd workers come first, led by the worker of told_from(). Then come the first
  // worker to expire, the other workers of its host, and the workers of other hosts, by host and
  // rank.
  std::vector<Lane> lanes;
  std::int64_t zero_us = 0;  // by the wall clock of the host of the first verdict
  double begin_s = 0;        // of the time axis
  double end_s = 0;
  std::int64_t ended_omitted = 0;  // ended scopes for which the records had no room
  StackTree python_stacks;
  StackTree native_stacks;
  struct Children {
    WorkerName parent;
    StackTree stacks;  // of main threads
  };
  std::vector<Children> child_stacks;  // in the order of the lanes
  // The output of an evidence command on one host.
  struct CommandOutput {
    std::string name;  // of the command
    std::string host;
    std::string end;   // how the command ended
    std::string size;  // of the output, where the record has not all of it
    std::string text;
  };
  std::vector<CommandOutput> outputs;
};

// Returns what is at 0: the first "verdict", or the first "record" of a warning that led to none
// and of an expiry whose verdict is in no log.
std::string_view zero_of(const Hang& hang);

// Returns the hang around the expiry of the records, of which there is one at least; its headline
// and facts are those of JobIncident::told_from().
Hang hang_of(const IncidentRecords& records);

}  // namespace filetimer::cli
