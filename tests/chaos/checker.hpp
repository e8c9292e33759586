// Judges what servers and workers did, from outside: from the logs of the servers and the histories
// that workers and drivers wrote. Knows nothing of the server's inside. docs/promises.md lists the
// promises by name, with their exceptions.
//
// A history is a set of files NAME.history. Each process appends to a file of its own, with one
// write() a line (O_APPEND), so that kill -9 loses no line. A line is one JSON object. `t` is
// CLOCK_MONOTONIC in nanoseconds. A call is two lines: one before and one after it. A call in which
// its process dies has the first line only.
//
//   {"t":NS,"who":"w3","n":7,"op":"open","key":"k12","scope":"forward","timeout_ns":300000000}
//   {"t":NS,"who":"w3","n":7,"end":true,"ok":true}
//
// `who` is unique in the history, `n` is unique in `who`. `ok` (default true): the call succeeded.
//
// What a worker writes. `key` names one acquired scope of the worker, never another one.
//   open     key, scope, via (page, pipe, torch, run, heartbeat); timeout_ns (absent: none),
//            grace_ns, signal (absent: the default). End: watched (false: no server watches it)
//   renew    key; timeout_ns (absent: as before). A beat of a heartbeat is a renewal
//   pause    key      the scope is paused;   resume  key
//   release  key. End: in_time (true: no verdict came first; absent: the client does not say)
//   fork     End: child (its name)
//   exec     the process starts another program: its open scopes have ended
//   exit     code: the process is about to exit with it; its open scopes are left open
//
// What the driver writes, with "who":"driver". `subject` names a process.
//   spawn    subject, role (worker, child, bystander, server), parent (name). End: pid, start
//   (clock
//            ticks, field 22 of /proc/PID/stat)
//   ended    subject, status (the exit status, or minus the signal), before (when it was certainly
//            alive the last time)
//   kill     subject, signal: the driver itself is about to send a signal that may end the process
//   server   subject, dir, log, args (list). End: when it is ready (ok false: it never was)
//   kill_server, stop_server    subject: is about to be killed, asked to stop
//   halt     subject, how (stop, freeze, trace). The end line: it is certain that it does not run
//   resume   subject, how. The end line: it is certain that it runs
//   load     begin and end of a span in which the processors are contended
//   prompt   ns: a verdict and a signal come within, not in the usual 5 s
//   log_trouble    begin and end of a span in which the log cannot be written or hangs
//   files    what: files of the runtime directory or log that were removed, cut or replaced
//   excuse   promise, reason; subject or key (absent: all): the adversity has a stated exception
//   fault    promise, what: a violation that a worker or the driver saw itself
//
// A process that `ended` does not name was alive at the last line of the history.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace filetimer::chaos {

struct Violation {
  std::string promise;  // a name of docs/promises.md
  std::string what;     // what is wrong, of whom, and in which line

  [[nodiscard]] std::string text() const { return promise + ": " + what; }
};

// What is to be judged. Can be filled from files, or line by line.
struct History {
  struct Text {
    std::string name;  // of the file, for messages
    std::string text;  // whole lines
  };
  std::vector<Text> histories;
  std::vector<Text> logs;  // a log that was rotated is several

  void add_line(const std::string& name, std::string_view line);
  // Adds all *.history files of a folder, or a log with its rotated part. Returns false if there
  // is none.
  bool add_folder(const std::string& folder);
  bool add_log(const std::string& path);
};

// Returns the violations, none if everything holds. Without histories only what must hold of every
// log is judged. A line that is no JSON is a violation.
std::vector<Violation> check(const History& history);

// The two halves of check(). `lines`: of all logs, in order. judge_log() returns the records that
// have their fields, each once. With a history judge_history() judges how often a server started,
// because it knows which servers had one pid.
class JsonRecord;
std::vector<const JsonRecord*> judge_log(const std::vector<JsonRecord>& lines, bool has_history,
                                         std::vector<Violation>& found);
void judge_history(const std::vector<JsonRecord>& calls,
                   const std::vector<const JsonRecord*>& records, std::vector<Violation>& found);

}  // namespace filetimer::chaos
