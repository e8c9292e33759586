// What a history did, and what follows from it for each scope: the model by which the records of
// the server and its signals are judged.
// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/worker.hpp"

namespace filetimer::sim {

struct Span {
  Nanos from = 0;
  Nanos to = kNever;  // kNever: it has not ended
  Nanos planned = 0;  // of the server: when it would have woken by itself
};

// A sign of life of a scope: it was opened, renewed, paused or resumed.
struct Sign {
  Nanos when = 0;
  Nanos timeout = kNever;  // until `due`, as granted
  bool is_paused = false;
  [[nodiscard]] Nanos due() const { return timeout == kNever ? kNever : when + timeout; }
};

enum class End { kNone, kInTime, kLate, kUnknown, kWorker };  // kUnknown: a line says so

struct ModelScope {
  std::string key;
  std::string worker;
  MadeProcess* process = nullptr;
  std::string name;
  bool on_page = false;
  int number = -1;  // on the page
  Terms terms;
  std::vector<Sign> signs;
  Nanos ended_at = kNever;
  End end = End::kNone;
  bool has_odd_clock = false;  // the wall clock was moved before its line was read
  bool may_be_lost = false;    // a file that has it was removed or could not be written
};

struct SentSignal {
  Nanos when = 0;
  MadeProcess* process = nullptr;
  int signal = 0;
};

struct Options {
  Nanos max_timeout = kNever;
  Nanos max_interval = 10 * kSecond;
  bool has_grace = false;
  Nanos grace = kNever;  // kNever: off
  bool is_dry_run = false;
  bool has_evidence = false;
  char kill = 't';  // tree, group, process
  Nanos kill_wait = 5 * kSecond;
};

struct Model {
  Options options;
  std::vector<ModelScope> scopes;
  std::map<const MadeProcess*, std::vector<Span>> halts;
  std::map<const MadeProcess*, std::vector<Span>> traces;
  std::vector<Span> away;           // the server was stopped
  std::vector<Span> away_at_start;  // likewise, before it was ready
  std::vector<Span> suspends;
  std::vector<Span> servers;  // from a start to an end
  std::vector<Span> trouble;  // calls failed, the log or /proc did not answer
  std::vector<Span> log_trouble;
  std::vector<SentSignal> signals;
  std::vector<std::string> violations;
  std::set<std::string> excused;  // faults that are known
  std::vector<Nanos> stops;       // a server was asked to end: it shortens grace periods
  bool has_drained = false;
};

// Adds what is wrong with the records of the log to the violations.
void judge(Model& model, const std::string& log);

}  // namespace filetimer::sim
