# SPDX-License-Identifier: MIT
"""Judges what servers and workers did, from outside: from the logs of the servers and the histories that workers and
drivers wrote. Knows nothing of the server's inside. docs/promises.md lists the promises by name, with their exceptions.

A history is a set of files NAME.history. Each process appends to a file of its own, with one write() a line
(O_APPEND), so that kill -9 loses no line. A line is one JSON object. `t` is CLOCK_MONOTONIC in nanoseconds. A call is
two lines: one before and one after it. A call in which its process dies has the first line only.

  {"t":NS,"who":"w3","n":7,"op":"open","key":"k12","scope":"forward","timeout_ns":300000000}
  {"t":NS,"who":"w3","n":7,"end":true,"ok":true}

`who` is unique in the history, `n` is unique in `who`. `ok` (default true): the call succeeded.

What a worker writes. `key` names one acquired scope of the worker, never another one.
  open     key, scope, via (page, pipe, torch, run, heartbeat); timeout_ns (absent: none), grace_ns, signal (absent: the
           default). End: watched (false: no server watches it)
  renew    key; timeout_ns (absent: as before). A beat of a heartbeat is a renewal
  pause    key      the scope is paused;   resume  key
  release  key. End: in_time (true: no verdict came first; absent: the client does not say)
  fork     End: child (its name)
  exec     the process starts another program: its open scopes have ended
  exit     code: the process is about to exit with it; its open scopes are left open

What the driver writes, with "who":"driver". `subject` names a process.
  spawn    subject, role (worker, child, bystander, server), parent (name). End: pid, start (clock ticks, field 22 of
           /proc/PID/stat)
  ended    subject, status (the exit status, or minus the signal), before (when it was certainly alive the last time)
  kill     subject, signal: the driver itself is about to send a signal that may end the process
  server   subject, dir, log, args (list). End: when it is ready (ok false: it never was)
  kill_server, stop_server    subject: is about to be killed, asked to stop
  halt     subject, how (stop, freeze, trace). The end line: it is certain that it does not run
  resume   subject, how. The end line: it is certain that it runs
  load     begin and end of a span in which the processors are contended
  prompt   ns: a verdict and a signal come within, not in the usual 5 s
  log_trouble    begin and end of a span in which the log cannot be written or hangs
  files    what: files of the runtime directory or log that were removed, cut or replaced
  excuse   promise, reason; subject or key (absent: all): the adversity has a stated exception
  fault    promise, what: a violation that a worker or the driver saw itself

A process that `ended` does not name was alive at the last line of the history.
"""
import json
import os

NONE = float("nan")  # of a number that is missing. A comparison with it is false


class Fields(dict):
    """A JSON object. A field that is missing or has another type reads as the value that the caller names."""

    def value(self, key, missing, *types):
        value = self.get(key)
        return value if type(value) in types else missing

    def text(self, key, missing=""):
        return self.value(key, missing, str)

    def integer(self, key, missing=0):
        return self.value(key, missing, int)

    def number(self, key, missing=NONE):
        return self.value(key, missing, int, float)

    def seconds(self, key, missing=0):
        """Returns a time in nanoseconds or, of a name with _ms, milliseconds as seconds."""
        return self.number(key, missing) / (1e3 if key.endswith("_ms") else 1e9)

    def flag(self, key):
        return self.value(key, False, bool)

    def elements(self, key, *kinds):
        """Returns the elements of a list, of some types if they are given."""
        return [each for each in self.value(key, (), list) if not kinds or type(each) in kinds]

    def objects(self, key):
        return [each if type(each) is Fields else Fields() for each in self.elements(key)]


class Line(Fields):
    """A line of a log or a history: the `index`-th of all, `is_last` of its file. Its times are in seconds."""

    def __init__(self, text, place, is_last):
        self.bytes, self.place, self.is_last = text, place, is_last
        try:
            value = json.loads(text.decode(), object_hook=Fields, parse_constant=refuse)
            if b"\\u" in text:
                json.dumps(value, ensure_ascii=False).encode()  # refuses half a pair
        except ValueError:
            value = None
        self.is_object = type(value) is Fields
        super().__init__(value if self.is_object else ())
        self.event, self.id, self.scope = self.text("event"), self.text("id"), self.text("scope")
        self.pid, self.server_pid = self.integer("pid"), self.integer("server_pid")
        self.at, self.acquired = self.seconds("mono_ns"), self.seconds("acquired_mono_ns")
        self.deadline = self.seconds("deadline_mono_ns")
        self.judged = self.deadline + self.seconds("overdue_ms", NONE)
        self.signals = self.objects("signals")


def refuse(word):
    raise ValueError(f"{word} is not in JSON")


def lines_of(path):
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    return [Line(line, f"{path}:{number}", number == len(lines)) for number, line in enumerate(lines, 1)]


def check(folder, logs):
    """Returns the violations, a line each, of the histories of a folder (None: there are none) and of these logs with
    their rotated parts. Without histories only what must hold of every log is judged. A line that is no JSON is a
    violation."""
    from history_rules import HistoryJudge
    from log_rules import LogJudge
    calls = [call for name in (os.listdir(folder) if folder else []) if name.endswith(".history")
             for call in lines_of(os.path.join(folder, name))]
    parts = [lines_of(part) for log in logs for part in (f"{log}.1", log) if os.path.exists(part)]
    # In the order of the files, of which a rotation makes several.
    lines = [line for part in sorted(parts, key=lambda part: part[0].at if part else 0) for line in part]
    for index, line in enumerate(lines):
        line.index = index
    judge = LogJudge(lines, bool(calls))
    found = [("", promise, what) for promise, what in judge.run()]
    if calls:
        found = HistoryJudge(calls, judge.records).run(found)
    return [f"{promise}: {what}" for _, promise, what in found]
