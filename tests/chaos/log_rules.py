# SPDX-License-Identifier: MIT
"""What must hold of every log. Each rule compares records with each other; docs/records.md says what fields mean."""
import collections
import pathlib
import re
from signal import SIGKILL

from checker import Fields, decode

RECORDS_PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/records.md"

# In seconds.
ROUNDING = 2e-6  # of times in records
TIMEOUT_ROUNDING = 1e-3  # of a timeout that was converted from text or milliseconds
INCIDENT_WINDOW = 2  # in which expiries are of one incident
INCIDENT_PAST = 601  # of which an incident lists ended scopes
REJECTED_PERIOD = 0.5  # between two `rejected` records: one second, less a delay
MISSED_TOLERATED = 0.25  # missed time that is not given back
WARNING_PERIOD = 10  # in which a worker has at most WARNINGS
END_OF_SERVER = 40  # before `server_stopped`, in which it may shorten waits
WARNINGS = 16
IDLE = "(idle)"  # the scope of an idle timeout
EVER = float("inf")

COUNTS = ("tid", "threads_omitted", "python_threads_omitted")
TEXTS = ("job_id", "step_id", "state_name", "wchan", "syscall", "syscall_fd", "doing", "missing")
# The results of a hook, with the field that each needs.
RESULTS = {"exited": "exit_status", "signalled": "signal", "timed_out": "", "stopped": "", "failed": "", "dropped": ""}


def seconds(fields, key):
    """Returns a time in nanoseconds as seconds."""
    return fields.integer(key) / 1e9


def mono(record):
    return seconds(record, "mono_ns")


def judged_at(expired):
    return seconds(expired, "deadline_mono_ns") + expired.number("overdue_ms") / 1e3


def is_near(a, b, within=ROUNDING):
    return abs(a - b) <= within


def worker_id(record):
    return record.integer("server_pid"), record.integer("pid"), record.integer("start_time")


def scope_id(record):
    return (record.text("boot_id"), record.integer("pid"), record.integer("start_time"),
            record.integer("acquired_mono_ns"), record.text("scope"))


def are_of_one_worker(a, b):
    return all(a.get(key) == b.get(key) for key in ("pid", "boot_id", "start_time", "uid"))


def is_first_of_kill(expired):
    """Returns whether an expiry is the first one of its kill: evidence and hook are about it."""
    return bool(expired.elements("open_scopes"))


def required_fields():
    """Returns by event which fields a record always has: the list whose elements have it ("": the record itself), its
    name, whether it may be null, and its value in the example of docs/records.md."""
    sections = {title.strip("`"): body for title, body in
                (section.split("\n", 1) for section in RECORDS_PAGE.read_text(encoding="utf-8").split("\n## ")[1:])}

    def names(section):
        """Returns the names that are never absent; the value says whether it may be null."""
        rows = re.findall(r"^\| (`[^|]*)\|(.*)", sections[section], re.M)
        nullable = {name for cell, rest in rows if "`null`" in rest for name in re.findall("`(.*?)`", cell)}
        return {name: name in nullable
                for cell, rest in rows if rest.endswith("| |") for name in re.findall("`(.*?)`", cell)}

    required = {}
    for event, body in sections.items():
        examples = [decode(example) for example in re.findall(r"^```json\n(.*?)^```", body, re.M | re.S)]
        if not examples:
            continue
        paths = names("Every record") | names(event)
        text = " ".join(body.split())
        if "About a worker." in text:
            paths |= names("The worker")
        if "With the fields of `evidence`" in text:
            paths |= {name: is_nullable for name, is_nullable in names("evidence").items() if name != "id"}
        required[event] = []
        for path, is_nullable in paths.items():
            listed, _, name = path.rpartition("[].")
            is_of_some = not listed and not all(name in example for example in examples)
            if "." not in name and "[" not in listed and not is_of_some:
                usual = (examples[0].objects(listed) or [Fields()])[0] if listed else examples[0]
                required[event].append((listed, name, is_nullable, usual.get(name, ...)))
    return required


def is_like(name, value, is_nullable, usual):
    """Returns whether the value of a field has the type of the usual one; ... stands for none."""
    if value is ...:
        return False
    if usual is ... or type(value) is type(usual) or (is_nullable and None in (value, usual)):
        return True
    return {type(value), type(usual)} == {int, float} and (type(value) is int or name.endswith(("_s", "_ms")))


class Run:
    """One process of a server."""

    def __init__(self):
        self.started = self.stopped = self.last = self.last_rejected = None
        self.expired = self.rejected = 0
        self.dead = set()  # worker and signals of each kill
        self.settings = Fields()

    def is_complete(self):
        """Returns whether the server ended in order, and all its records are here."""
        return self.started is not None and self.stopped is not None and self.stopped.integer("lost_records") == 0


class LogJudge:
    """`lines`: of all logs, in order. With a history HistoryJudge judges how often a server started, because it knows
    which servers had one pid."""

    required = None

    def __init__(self, lines, has_history):
        LogJudge.required = LogJudge.required or required_fields()
        self.lines, self.has_history = lines, has_history
        self.found = []
        self.records = []  # those that have their fields, each once
        self.at = None  # the record that is judged
        self.runs = []
        self.newest = {}  # the last run of a directory
        self.latest = {}  # by pid, which another server may get
        self.has_missed_time = False  # given back so far: later readings of a scope have later deadlines
        self.by_id = collections.defaultdict(dict)  # by event
        self.verdicts = {}  # by scope
        self.first_of_incident = {}  # expired
        self.dead = {}  # killed, by worker
        self.signalled = {}  # warned with a signal, by scope
        self.warnings = collections.defaultdict(list)  # by worker
        self.expired_of = collections.defaultdict(list)  # by pid
        self.is_incomplete = False  # the log was cut, or records were lost

    def run(self):
        """Returns the violations: promise, and what is wrong."""
        self.collect()
        for self.at in self.records:
            getattr(self, "judge_" + self.at.text("event"), lambda record: None)(self.at)
        self.judge_outcomes()
        return self.found

    def expect(self, holds, promise, text, *values):
        if not holds:
            of = f"{self.at.text('event')}, pid {self.at.integer('pid')}, {self.at.place}"
            self.found.append((promise, f"{text.format(*values)} ({of})"))

    def is_near_end(self, record):
        """Returns whether waits may have been shortened because the server was about to end."""
        stopped = record.run.stopped
        return stopped is not None and mono(stopped) - mono(record) < END_OF_SERVER

    def find_before(self, record, event, promise):
        """Returns the record of that event and id. It must have been written before, about the same scope."""
        found = self.by_id[event].get(record.text("id"))
        self.expect(self.is_incomplete or (found is not None and found.index < record.index), promise,
                    "nothing before it has the id {}", record.text("id"))
        if found is not None:
            for key in ("incident", "scope", "rank", "job_id"):
                self.expect(key not in record or key not in found or record[key] == found[key], "record-links",
                            "{} is not that of the same id", key)
            self.expect(are_of_one_worker(record, found), "record-links", "another worker than that of the same id")
        return found

    def collect(self):
        known = set()
        for self.at in self.lines:
            if not self.at.is_object:
                # A killed server may leave half a line. The next server ends it before its first record.
                following = None if self.at.is_last else self.lines[self.at.index + 1]
                is_torn = following is None or self.run_key(following) not in self.latest or \
                    following.text("event") == "server_started"
                self.expect(is_torn, "whole-lines", "not a JSON object: {}", self.at.line[:80])
            elif self.at.line not in known:  # else written again, when a write had failed
                known.add(self.at.line)
                if self.has_fields(self.at):
                    self.add(self.at)
        self.is_incomplete = any(run.started is None or (run.stopped is not None and
                                                         run.stopped.integer("lost_records") > 0) for run in self.runs)

    @staticmethod
    def run_key(record):
        return record.text("boot_id"), record.integer("server_pid")

    def has_fields(self, record):
        required = self.required.get(record.text("event"))
        self.expect(required is not None, "record-fields", "an unknown event")
        before = len(self.found)
        for listed, name, is_nullable, usual in required or ():
            for fields in record.objects(listed) if listed else (record,):
                self.expect(is_like(name, fields.get(name, ...), is_nullable, usual), "record-fields",
                            "'{}' is missing or has another type", name)
        return required is not None and len(self.found) == before

    def add(self, record):
        event = record.text("event")
        for count in COUNTS:
            self.expect(record.integer(count, 1) > 0, "record-fields", "'{}' is there, and is 0", count)
        for text in TEXTS:
            self.expect(record.get(text) != "", "record-fields", "'{}' is there, and is empty", text)
        run = self.latest.get(self.run_key(record))
        if run is not None and run.stopped is not None:
            self.expect(event == "server_started" or mono(record) > mono(run.stopped) + END_OF_SERVER,
                        "server-life", "a record of a server that has stopped")
            run = None  # another server with the pid of an earlier one
        elif run is not None and run.started is not None and event == "server_started":
            self.expect(self.has_history, "server-life", "a second start of a server")
            run = None  # likewise, and the earlier one was killed
        if run is None:
            run = self.latest[self.run_key(record)] = Run()
            self.runs.append(run)
        record.run = run
        # The time of an incident is that of its first verdict. The records of a kill are written again by the server
        # that continues it.
        is_of_kill = event in ("expired", "evidence", "released_late", "killed")
        is_of_past = run.started is None or self.newest[run.started.text("dir")] is not run
        if event != "incident" and not (is_of_kill and is_of_past):
            self.expect(run.last is None or mono(run.last) <= mono(record), "time-forward",
                        "earlier than the record before it of the same server")
            run.last = record
        self.records.append(record)
        if event == "server_started":
            run.started, run.settings = record, record.inner("settings")
            self.newest[record.text("dir")] = run
        elif event == "server_stopped":
            run.stopped = record
        elif event == "rejected":
            run.rejected += record.integer("count")
            following = (self.lines[-1], *self.lines[record.index + 1:record.index + 2])
            is_at_the_end = any(each.text("event") == "server_stopped" for each in following)
            is_soon = run.last_rejected is not None and mono(record) - mono(run.last_rejected) <= REJECTED_PERIOD
            self.expect(record.integer("count") > 0 and (is_at_the_end or not is_soon), "limits",
                        "less than a second after the last one, or no count")
            run.last_rejected = record
        elif event == "expired":
            run.expired += 1
            self.first_of_incident.setdefault(record.text("incident"), record)
            self.expired_of[record.integer("pid")].append(record)
        elif event == "killed" and record.text("verdict") == "dead":
            run.dead.add((record.integer("pid"), record.raw("signals")))
            self.dead.setdefault(worker_id(record), record)
        # Records of an id or of an incident, of which there is only one.
        is_of_incident = event == "incident" or (event == "evidence_command" and "drop_in" not in record)
        id = record.text("incident" if is_of_incident else "id") + record.text("drop_in")
        self.expect(not id or self.by_id[event].setdefault(id, record) is record, "one-to-one", "a second '{}' of {}",
                    event, id)
        if event in ("expired", "left_open"):
            known = self.verdicts.setdefault(scope_id(record), record)
            is_of_other_thread = "tid" in known and "tid" in record and known["tid"] != record["tid"]
            is_written_again = event == "left_open" == known.text("event") and known.run is not run and \
                known.run.stopped is None
            self.expect(known is record or is_of_other_thread or is_written_again, "one-verdict",
                        "scope '{}' has a verdict in {}", record.text("scope"), known.place)

    def judge_server_stopped(self, record):
        """The counts are those of the records."""
        run = record.run
        if run.is_complete() and run.stopped is record:
            for name, count in (("expired", run.expired), ("killed", len(run.dead)), ("rejected", run.rejected)):
                self.expect(record.integer(name) == count, "counts", "{} were {}", count, name)
        left = len(record.elements("left"))
        self.expect(left <= record.integer("left_count"), "counts", "{} scopes are listed as left, left_count is {}",
                    left, record.integer("left_count"))

    def judge_expired(self, record):
        from_acquire = seconds(record, "deadline_mono_ns") - seconds(record, "acquired_mono_ns")
        overdue = record.number("overdue_ms") / 1e3
        elapsed, timeout = record.number("elapsed_s"), record.number("timeout_s")
        is_idle = record.text("scope") == IDLE
        run = record.run
        self.expect(overdue >= 0, "not-early", "judged {} s before its deadline", -overdue)
        # The deadline of a line on the pipe may have passed when the line was read.
        self.expect(from_acquire + TIMEOUT_ROUNDING >= timeout or timeout == 0, "not-early",
                    "its deadline is {} s after its opening, its timeout {} s", from_acquire, timeout)
        if (warned := self.signalled.get(scope_id(record))) is not None:
            grace = seconds(record, "deadline_mono_ns") - seconds(warned, "soft_mono_ns")
            self.expect(grace + TIMEOUT_ROUNDING >= record.number("grace_s"), "signals",
                        "it expired {} s after its signal", grace)
        self.expect(is_near(from_acquire + overdue, elapsed), "record-times",
                    "elapsed_s {} is not deadline + overdue_ms - acquired ({})", elapsed, from_acquire + overdue)
        self.expect(judged_at(record) <= mono(record) + ROUNDING, "record-times", "judged after the record was made")
        self.expect(is_idle or not timeout > run.settings.number("max_timeout_s") + ROUNDING, "record-times",
                    "timeout_s {} is above --max-timeout", timeout)
        self.expect(run.started is None or run.started.text("dir") == record.text("dir"), "record-links",
                    "dir is not that of its server")
        # A scope that was released between two looks is not listed.
        may_lack_it = record.integer("omitted") > 0 or is_idle or record.text("id") in self.by_id["released_late"]
        has_it, before = may_lack_it or not is_first_of_kill(record), EVER
        for scope in record.objects("open_scopes"):
            self.expect(scope.number("elapsed_s") <= before + ROUNDING, "record-times", "open_scopes are not in order")
            before = scope.number("elapsed_s")
            has_it = has_it or (
                is_near(before, elapsed) and not scope.flag("paused") and
                scope.integer("tid") == record.integer("tid") and
                all(scope.raw(key) == record.raw(key) for key in ("scope", "timeout_s", "code_timeout_s")))
        # Of scopes that expired together only the first record lists them, and a rotation may remove it.
        has_list = is_first_of_kill(record) or may_lack_it or run.started is None or any(
            other.index < record.index and are_of_one_worker(other, record) and
            is_near(judged_at(other), judged_at(record)) for other in self.expired_of[record.integer("pid")])
        self.expect(has_list, "record-links", "open_scopes is empty, and the worker's first")
        self.expect(has_it, "record-links", "open_scopes lack the expired scope with its values")
        self.judge_incident_of(record)

    def judge_incident_of(self, expired):
        incident = self.by_id["incident"].get(expired.text("incident"))
        self.expect(incident is not None or not expired.run.is_complete(), "one-to-one", "there is no incident {}",
                    expired.text("incident"))
        if incident is None:
            return
        behind = judged_at(expired) - mono(incident)
        self.expect(-ROUNDING <= behind <= INCIDENT_WINDOW + ROUNDING, "record-links",
                    "judged {} s after the beginning of its incident", behind)
        self.expect(expired.index > incident.index or expired.text("id") in incident.elements("expired"),
                    "record-links", "its incident was written later and does not list it")

    def judge_incident(self, record):
        def place_of(scope):
            return scope.get("pid"), scope.get("scope"), scope.get("tid")

        is_whole = record.integer("omitted") == 0
        workers = {}  # how long the last scope has been open
        scopes = collections.defaultdict(list)
        for scope in record.objects("open_scopes") + record.objects("in_no_scope"):
            scopes[place_of(scope)].append(scope)
            pid, elapsed = scope.integer("pid"), scope.number("elapsed_s", EVER)
            self.expect(pid not in workers or elapsed <= workers[pid] + ROUNDING, "record-links",
                        "worker {} is listed twice, or its scopes are not in order", pid)
            workers[pid] = elapsed
        self.expect(not is_whole or len(workers) == record.integer("workers"), "counts",
                    "{} workers are listed, workers is {}", len(workers), record.integer("workers"))
        self.expect(record.integer("read_late") <= record.integer("workers"), "counts",
                    "more workers were read late than there are")
        for each in [each for ended in record.objects("ended_scopes") for each in ended.elements("ended")]:
            self.expect(are_numbers(each) and each[1] >= 0 and each[0] < INCIDENT_PAST, "record-times",
                        "an ended scope of which [how long ago, how long] is {}", each)
        listed = record.elements("expired", str)
        self.expect(listed, "record-links", "an incident without an expiry")
        self.expect(not record.run.settings.flag("evidence_command") or not record.run.is_complete() or
                    self.is_near_end(record) or record.text("incident") in self.by_id["evidence_command"],
                    "one-to-one", "it has no evidence command")
        for id in listed:
            expired = self.by_id["expired"].get(id)
            self.expect(expired is not None or not record.run.is_complete(), "one-to-one", "no scope expired as {}", id)
            if expired is None:
                continue
            self.expect(expired.text("incident") == record.text("incident"), "record-links",
                        "{} is of another incident", id)
            is_there = expired.integer("pid") in workers or not is_whole
            self.expect(is_there or not is_near(judged_at(expired), mono(record)), "record-links",
                        "the worker of {} is missing", id)
            # The worker may change a scope while its incident is open.
            is_changed_later = judged_at(expired) > mono(record) + ROUNDING
            for scope in [] if is_changed_later else scopes[place_of(expired)]:
                due = mono(record) + scope.number("remaining_s")
                is_same = is_near(mono(record) - scope.number("elapsed_s"), seconds(expired, "acquired_mono_ns"))
                self.expect(not is_same or scope.raw("timeout_s") == expired.raw("timeout_s") and (
                    self.has_missed_time or due < seconds(expired, "deadline_mono_ns") + TIMEOUT_ROUNDING),
                    "record-links", "the scope of {} has other times", id)

    def judge_killed(self, record):
        expired = self.find_before(record, "expired", "one-to-one")
        if expired is None:
            return
        self.judge_signals(record, expired)
        signals = record.objects("signals")
        last = signals[-1].integer("signal") if signals else 0
        dead_after = record.number("dead_after_ms") / 1e3
        has_died = dead_after >= 0
        # The next server continues a kill, and a server that stops shortens its waits.
        is_of_one_server = record.run is expired.run
        is_cut_short = self.is_near_end(record) or not is_of_one_server or self.is_incomplete
        verdict = record.text("verdict")

        def need(holds, what):
            self.expect(holds, "outcomes", "'{}', but {}", verdict, what)

        need(not dead_after < 0 and (not has_died or not signals or
                                     mono(signals[0]) + dead_after <= mono(record) + TIMEOUT_ROUNDING),
             "dead_after_ms is no time between signal and record")
        if verdict == "dead":
            # When a worker died while no server ran is not known.
            need(signals and (has_died or not is_of_one_server), "there was no signal, or no death")
        elif verdict == "already_gone":
            need(not signals and not has_died, "there was a signal, or a death of one")
        elif verdict == "unkillable":
            need(last == SIGKILL and not has_died, "there was no SIGKILL, or the worker died")
            need(is_cut_short or not signals or
                 mono(record) - mono(signals[-1]) >= record.run.settings.number("kill_wait_s", 0),
                 "--kill-wait had not passed")
        else:
            may_live = is_cut_short or record.text("id") in self.by_id["released_late"]
            need(verdict == "spared", "there is no such verdict")
            need("reason" in record and last != SIGKILL and not has_died, "there is no reason, or it was killed")
            need(may_live or record.text("reason").startswith("the worker started another program") or signals or
                 expired.integer("signal") == 0 or record.run.settings.flag("dry_run"),
                 "it was to be signalled, and was not released")
            # SIGKILL follows a grace period, unless the scope is released or another one decides.
            need(may_live or not signals or "grace_s" not in expired or
                 expired.integer("signal") != signals[0].integer("signal") or
                 any(other.index > record.index and are_of_one_worker(other, record)
                     for other in self.by_id["killed"].values()),
                 "it survived its signal, and SIGKILL did not follow")

    def deciding_expiry(self, record, expired, signal, has_second_signal):
        """Several scopes of the worker may have expired together: one of them decides. After a second signal it is the
        one with the shortest grace period."""
        if not has_second_signal and expired.integer("signal") == signal:
            return expired
        def may_decide(other):
            outcome = self.by_id["killed"].get(other.text("id"))
            asks = other.integer("signal") > 0 if has_second_signal else other.integer("signal") == signal
            return asks and other.index < record.index and (outcome is None or outcome.index > expired.index) and \
                are_of_one_worker(other, expired)

        return min(filter(may_decide, self.expired_of[expired.integer("pid")]),
                   key=lambda other: other.number("grace_s", 1e9), default=None)

    def judge_signals(self, record, expired):
        settings = record.run.settings
        signals = record.objects("signals")
        before = mono(expired)
        for signal in signals:
            self.expect(before <= mono(signal) <= mono(record), "signal-after-record",
                        "a signal before its verdict was recorded, or after the outcome")
            before = mono(signal)
            pids = signal.elements("pids", int)
            is_forbidden = record.text("reason").startswith("the server may not send it")
            self.expect((pids or is_forbidden) and min(pids, default=2) > 1 and len(set(pids)) == len(pids) and
                        record.integer("server_pid") not in pids, "targets",
                        "no target, a target twice, or init or the server as a target")
            self.expect(settings.text("kill") != "process" or len(pids) <= 1, "targets",
                        "several targets with --kill process")
        if not signals:
            return
        # The server before may have sent one.
        self.expect(not settings.flag("dry_run") or mono(signals[-1]) < mono(record.run.started), "signals",
                    "a signal in a dry run")
        first = signals[0].integer("signal")
        is_asked_for = self.deciding_expiry(record, expired, first, False) is not None
        self.expect(is_asked_for and first > 0, "signals", "no expired scope asks for {}", first)
        deciding = self.deciding_expiry(record, expired, first, len(signals) == 2)
        if deciding is None:
            return
        is_only_one = first == SIGKILL or "grace_s" not in deciding
        self.expect(len(signals) <= (1 if is_only_one else 2), "signals", "{} signals", len(signals))
        if len(signals) == 2 and not is_only_one:
            grace = mono(signals[1]) - mono(signals[0])
            self.expect(signals[1].integer("signal") == SIGKILL, "signals", "the second is no SIGKILL")
            self.expect(grace + TIMEOUT_ROUNDING >= deciding.number("grace_s") or self.is_near_end(record), "signals",
                        "SIGKILL after {} s, grace_s is {}", grace, deciding.number("grace_s"))

    def judge_released_late(self, record):
        expired = self.find_before(record, "expired", "one-to-one")
        if expired is None:
            return
        since = mono(record) - seconds(expired, "deadline_mono_ns")
        late = record.number("late_ms") / 1e3
        killed = self.by_id["killed"].get(record.text("id"))
        self.expect(0 <= late <= since + TIMEOUT_ROUNDING, "record-times", "{} s late, the deadline was {} s ago", late,
                    since)
        self.expect(killed is None or killed.index > record.index, "one-to-one",
                    "released after the outcome of its kill")

    def judge_evidence(self, record):
        event, settings = record.text("event"), record.run.settings
        if event != "evidence_command":
            is_on = settings.text("evidence") != "none"
        elif not record.text("drop_in"):
            is_on = settings.flag("evidence_command", True)
        else:
            is_on = settings.get("evidence_drop_ins") != []
        self.expect(is_on, "record-links", "the settings switch this record off")
        for key in ("gathered_ms", "held_ms", "duration_ms"):
            self.expect(not record.number(key) < 0, "record-times", "{} is negative", key)
        if event == "evidence":
            self.find_before(record, "expired", "one-to-one")
            killed = self.by_id["killed"].get(record.text("id"), Fields())
            self.expect(all(mono(record) <= mono(signal) for signal in killed.objects("signals")[:1]), "record-links",
                        "collected after the signal")
        else:
            first = self.first_of_incident.get(record.text("incident"))
            self.expect(self.is_incomplete or (first is not None and first.index < record.index), "one-to-one",
                        "no expiry of its incident before it")

    judge_peer_evidence = judge_evidence_command = judge_evidence

    def judge_hook(self, record):
        is_on_expiry = record.text("on") == "expiry"
        self.find_before(record, "killed" if is_on_expiry else "warned", "hooks")
        self.expect(record.run.settings.flag("on_expiry" if is_on_expiry else "on_warning", True), "hooks",
                    "the server has no such hook")
        result = record.text("result")
        needed = RESULTS.get(result)
        self.expect(needed is not None and (not needed or needed in record) and
                    ("hook_pid" in record) == (result not in ("dropped", "failed")) and
                    not ("exit_status" in record and "signal" in record) and not record.number("duration_ms") < 0,
                    "hooks", "its fields do not fit its result '{}'", result)

    def judge_warned(self, record):
        from_acquire = seconds(record, "soft_mono_ns") - seconds(record, "acquired_mono_ns")
        overdue, elapsed = record.number("overdue_ms") / 1e3, record.number("elapsed_s")
        self.expect(overdue >= 0 and is_near(from_acquire + overdue, elapsed), "record-times",
                    "elapsed_s {} is not soft deadline + overdue_ms - acquired ({})", elapsed, from_acquire + overdue)
        self.expect(0 <= record.number("soft_s") <= from_acquire + TIMEOUT_ROUNDING, "record-times",
                    "soft_s is more than the time since its opening")
        verdict = self.verdicts.get(scope_id(record))
        self.expect(verdict is None or verdict.index > record.index, "record-times", "after its verdict")
        if "signal" in record:
            self.signalled.setdefault(scope_id(record), record)
            return
        now = seconds(record, "acquired_mono_ns") + elapsed
        times = self.warnings[worker_id(record)]
        times[:] = [time for time in times if not time < now - WARNING_PERIOD] + [now]
        self.expect(len(times) <= WARNINGS, "limits", "{} warnings of a worker in {} s", len(times), WARNING_PERIOD)

    def judge_left_open(self, record):
        since = mono(record) - seconds(record, "acquired_mono_ns")
        self.expect(-ROUNDING <= record.number("elapsed_s", 0) <= since + ROUNDING, "record-times",
                    "elapsed_s is not between 0 and {}", since)
        killed = self.dead.get(worker_id(record), Fields())
        expired = self.by_id["expired"].get(killed.text("id"))
        last = (killed.objects("signals") or [Fields()])[-1]
        if expired is None or last.integer("signal") != SIGKILL or mono(record) < mono(last):
            return
        is_cancelled = any(
            scope.text("scope") == record.text("scope") and
            is_near(judged_at(expired) - scope.number("elapsed_s"), seconds(record, "acquired_mono_ns"))
            for scope in expired.objects("open_scopes"))
        self.expect(not is_cancelled, "outcomes", "left open, though the kill in {} cancels it",
                    getattr(killed, "place", None))

    def judge_worker_ended(self, record):
        for scope in record.objects("scopes"):
            buckets = scope.elements("histogram_ns")
            is_in_order = all(are_numbers(bucket) and bucket[1] > 0 for bucket in buckets)
            starts = [bucket[0] for bucket in buckets] if is_in_order else []
            is_in_order = is_in_order and all(a < b for a, b in zip([-1, *starts], starts))
            highest = starts[-1] if starts else -1
            count, longest, total = scope.integer("count"), scope.number("longest_s"), scope.number("total_s")
            slack = 1e-9 * (count + 1)
            # A bucket is an eighth as wide as it begins, or 64 ns.
            self.expect(is_in_order and 0 < count == sum(bucket[1] for bucket in buckets) and
                        longest <= total + slack and total <= longest * count + slack and
                        scope.number("last_s") <= longest + slack and scope.number("first_s") <= longest + slack and
                        highest / 1e9 <= longest + slack and longest * 1e9 <= highest * 1.125 + 64, "record-times",
                        "the statistics of '{}' contradict each other", scope.text("scope"))

    def judge_deferred(self, record):
        if "pid" in record:
            self.expect(not record.number("remaining_s") > ROUNDING or record.flag("paused"), "record-times",
                        "deferred {} s before the deadline", record.number("remaining_s"))
        else:
            self.has_missed_time = True
            self.expect(record.number("given_s") > MISSED_TOLERATED and record.integer("scopes") > 0, "record-times",
                        "given_s is {} for {} scopes", record.number("given_s"), record.integer("scopes"))

    def judge_rendezvous(self, record):
        joined, missing = len(record.elements("joined")), len(record.elements("missing"))
        world = record.integer("world")
        if record.text("event") == "rendezvous_timeout":
            is_right = joined + missing <= world and joined < world
        else:
            is_right = joined >= world and missing == 0
        self.expect(record.integer("round") > 0 and record.number("waited_s") >= 0 and is_right, "counts",
                    "{} joined, {} are missing of {}", joined, missing, world)

    judge_rendezvous_timeout = judge_rendezvous

    def judge_outcomes(self):
        """Each verdict has an outcome, evidence and a hook, unless its server was killed or still runs."""
        last = {start.text("dir"): start.run for start in self.records if start is start.run.started}  # by directory
        for id, self.at in self.by_id["expired"].items():
            run, killed = self.at.run, self.by_id["killed"].get(id)
            last_run = last.get(self.at.text("dir"))
            is_over = last_run is not None and last_run.is_complete()
            self.expect(killed is not None or not is_over or self.is_incomplete, "one-to-one", "no outcome of {}", id)
            if killed is None or run is not killed.run or not is_first_of_kill(self.at) or not run.is_complete():
                continue
            self.expect(not killed.elements("signals") or run.settings.text("evidence") == "none" or
                        id in self.by_id["evidence"], "one-to-one", "no evidence of {}", id)
            self.expect(not run.settings.flag("on_expiry") or id in self.by_id["hook"], "hooks", "no hook of {}", id)


def are_numbers(pair):
    return type(pair) is list and [type(each) in (int, float) for each in pair[:2]] == [True, True]
