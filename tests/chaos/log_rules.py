# SPDX-License-Identifier: MIT
"""What must hold of every log. Each rule compares records with each other; docs/records.md says what fields mean."""
import collections
import pathlib
import re
from signal import SIGKILL

from checker import NONE, Fields, Line

NOTHING = Line(b"{}", "", True)  # stands for a record that is not there; it is false
RECORDS_PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/records.md"

# In seconds.
ROUNDING = 2e-6  # of times in records
TIMEOUT_ROUNDING = 1e-3  # of a timeout that was converted from text or milliseconds
INCIDENT_WINDOW = 2  # in which expiries are of one incident
INCIDENT_PAST = 601  # of which an incident lists ended scopes
REJECTED_PERIOD = 0.5  # between two `rejected` records: one second, less a delay
MISSED_TOLERATED = 0.25  # missed time that is not given back
WARNING_PERIOD, WARNINGS = 10, 16  # in which a worker has at most so many
END_OF_SERVER = 40  # before `server_stopped`, in which it may shorten waits
IDLE = "(idle)"  # the scope of an idle timeout
EVER = float("inf")

COUNTS = ("tid", "threads_omitted", "python_threads_omitted")
TEXTS = ("job_id", "step_id", "state_name", "wchan", "syscall", "syscall_fd", "doing", "missing")
# The results of a hook, with the field that each needs.
RESULTS = {"exited": "exit_status", "signalled": "signal", "timed_out": "", "stopped": "", "failed": "", "dropped": ""}
# The promise of the records that have the id of a record before them.
OF_VERDICT = {"killed": "one-to-one", "released_late": "one-to-one", "evidence": "one-to-one", "hook": "hooks"}


def is_near(a, b, within=ROUNDING):
    return abs(a - b) <= within


def have_same(a, b, *keys):
    return all(a.get(key) == b.get(key) for key in keys)


def are_of_one_worker(a, b):
    return have_same(a, b, "pid", "boot_id", "start_time", "uid")


def worker_id(record):
    return record.server_pid, record.pid, record.integer("start_time")


def scope_id(record):
    return record.text("boot_id"), record.pid, record.integer("start_time"), record.acquired, record.scope


def are_numbers(pair):
    return type(pair) is list and [type(each) in (int, float) for each in pair[:2]] == [True, True]


def required_fields():
    """Returns by event which fields a record always has: the list whose elements have it ("": the record itself), its
    name, whether it may be null, and its value in the example of docs/records.md."""
    sections = {title.strip("`"): body for title, body in
                (section.split("\n", 1) for section in RECORDS_PAGE.read_text(encoding="utf-8").split("\n## ")[1:])}

    def names(section):
        """Returns the names that are never absent; the value says whether it may be null."""
        rows = re.findall(r"^\| (`[^|]*)\|(.*)\| \|$", sections[section], re.M)
        return {name: "`null`" in rest for cell, rest in rows for name in re.findall("`(.*?)`", cell)}

    required = {}
    for event, body in sections.items():
        examples = [Line(example.encode(), "", True) for example in re.findall(r"^```json\n(.*?)^```", body, re.M | re.S)]
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
        self.counts = collections.Counter()  # as in `server_stopped`
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

    def run(self):
        """Returns the violations: promise, and what is wrong."""
        self.collect()
        for self.at in self.records:
            if self.at.event in OF_VERDICT:
                self.judge_link(self.at)
            getattr(self, "judge_" + self.at.event, lambda record: None)(self.at)
        return self.found

    def expect(self, holds, promise, what):
        if not holds:
            self.found.append((promise, f"{what} ({self.at.event}, pid {self.at.pid}, {self.at.place})"))

    # What the lines are, and which belong together

    def collect(self):
        known = set()
        for self.at in self.lines:
            if not self.at.is_object:
                # A killed server may leave half a line. The next server ends it before its first record.
                following = None if self.at.is_last else self.lines[self.at.index + 1]
                is_torn = following is None or self.run_key(following) not in self.latest or \
                    following.event == "server_started"
                self.expect(is_torn, "whole-lines", f"not a JSON object: {self.at.bytes[:80]}")
            elif self.at.bytes not in known:  # else written again, when a write had failed
                known.add(self.at.bytes)
                if self.has_fields(self.at):
                    self.add(self.at)
        # The log was cut, or records were lost.
        self.is_incomplete = any(run.started is None or (run.stopped is not None and not run.is_complete())
                                 for run in self.runs)
        for record in self.records:
            record.expired, record.killed, record.released_late = (
                self.by_id[event].get(record.id, NOTHING) for event in ("expired", "killed", "released_late"))

    @staticmethod
    def run_key(record):
        return record.text("boot_id"), record.server_pid

    def has_fields(self, record):
        required = self.required.get(record.event)
        self.expect(required is not None, "record-fields", "an unknown event")
        before = len(self.found)
        for listed, name, is_nullable, usual in required or ():
            for fields in record.objects(listed) if listed else (record,):
                self.expect(is_like(name, fields.get(name, ...), is_nullable, usual), "record-fields",
                            f"'{name}' is missing or has another type")
        return required is not None and len(self.found) == before

    def add(self, record):
        for field in COUNTS + TEXTS:
            self.expect(record.get(field) not in (0, ""), "record-fields", f"'{field}' is there, and is 0 or empty")
        event, run = record.event, self.run_of(record)
        # The time of an incident is that of its first verdict. The records of a kill are written again by the server
        # that continues it.
        is_of_past = run.started is None or self.newest[run.started.text("dir")] is not run
        if event != "incident" and not (is_of_past and event in ("expired", "evidence", "released_late", "killed")):
            self.expect(run.last is None or run.last.at <= record.at, "time-forward",
                        "earlier than the record before it of the same server")
            run.last = record
        self.records.append(record)
        if event == "server_started":
            run.started, run.settings = record, record.value("settings", Fields(), Fields)
            self.newest[record.text("dir")] = run
        elif event == "server_stopped":
            run.stopped = record
        elif event == "rejected":
            self.add_rejected(record, run)
        elif event == "expired":
            run.counts["expired"] += 1
            self.first_of_incident.setdefault(record.text("incident"), record)
            self.expired_of[record.pid].append(record)
        elif event == "killed" and record.text("verdict") == "dead":
            # Of scopes that expired together each has a record with the signals.
            run.dead.add((record.pid, str(record.signals)))
            self.dead.setdefault(worker_id(record), record)
        # Records of an id or of an incident, of which there is only one.
        is_of_incident = event == "incident" or (event == "evidence_command" and "drop_in" not in record)
        id = (record.text("incident") if is_of_incident else record.id) + record.text("drop_in")
        self.expect(not id or self.by_id[event].setdefault(id, record) is record, "one-to-one", f"a second {id}")
        if event in ("expired", "left_open"):
            known = self.verdicts.setdefault(scope_id(record), record)
            is_of_other_thread = "tid" in known and "tid" in record and known["tid"] != record["tid"]
            is_written_again = event == "left_open" == known.event and known.run is not run and \
                known.run.stopped is None
            self.expect(known is record or is_of_other_thread or is_written_again, "one-verdict",
                        f"scope '{record.scope}' has a verdict in {known.place}")

    def run_of(self, record):
        run, is_start = self.latest.get(self.run_key(record)), record.event == "server_started"
        if run is not None and run.stopped is not None:
            self.expect(is_start or record.at > run.stopped.at + END_OF_SERVER, "server-life",
                        "a record of a server that has stopped")
            run = None  # another server with the pid of an earlier one
        elif run is not None and run.started is not None and is_start:
            self.expect(self.has_history, "server-life", "a second start of a server")
            run = None  # likewise, and the earlier one was killed
        if run is None:
            run = self.latest[self.run_key(record)] = Run()
            self.runs.append(run)
        record.run = run
        return run

    def add_rejected(self, record, run):
        run.counts["rejected"] += record.integer("count")
        following = (self.lines[-1], *self.lines[record.index + 1:record.index + 2])
        is_at_the_end = any(each.event == "server_stopped" for each in following)
        is_soon = run.last_rejected is not None and record.at - run.last_rejected.at <= REJECTED_PERIOD
        self.expect(record.integer("count") > 0 and (is_at_the_end or not is_soon), "limits",
                    "less than a second after the last one, or no count")
        run.last_rejected = record

    # The rules

    def is_near_end(self, record):
        """Returns whether waits may have been shortened because the server was about to end."""
        stopped = record.run.stopped
        return stopped is not None and stopped.at - record.at < END_OF_SERVER

    def judge_link(self, record):
        """A record of a verdict comes after it, and is about the same scope."""
        source = record.expired
        if record.event == "hook":
            source = record.killed if record.text("on") == "expiry" else self.by_id["warned"].get(record.id, NOTHING)
        self.expect(self.is_incomplete or (source and source.index < record.index),
                    OF_VERDICT[record.event], f"nothing before it has the id {record.id}")
        if source:
            keys = [key for key in ("incident", "scope", "rank", "job_id") if key in record and key in source]
            self.expect(are_of_one_worker(record, source) and have_same(record, source, *keys), "record-links",
                        f"another worker than that of the same id, or another of {keys}")

    def judge_server_stopped(self, record):
        """The counts are those of the records."""
        run = record.run
        run.counts["killed"] = len(run.dead)
        for name in ("expired", "killed", "rejected"):
            self.expect(record.integer(name) == run.counts[name] or not run.is_complete(), "counts",
                        f"{run.counts[name]} were {name}")
        self.expect(len(record.elements("left")) <= record.integer("left_count"), "counts",
                    "more scopes are listed as left than left_count")

    def judge_expired(self, record):
        overdue, elapsed, timeout = record.seconds("overdue_ms"), record.number("elapsed_s"), record.number("timeout_s")
        from_acquire = record.deadline - record.acquired
        is_idle, run = record.scope == IDLE, record.run
        self.expect(overdue >= 0, "not-early", f"judged {-overdue} s before its deadline")
        # The deadline of a line on the pipe may have passed when the line was read.
        self.expect(from_acquire + TIMEOUT_ROUNDING >= timeout or timeout == 0, "not-early",
                    f"its deadline is {from_acquire} s after its opening, its timeout {timeout} s")
        if (warned := self.signalled.get(scope_id(record))) is not None:
            grace = record.deadline - warned.at
            self.expect(grace + TIMEOUT_ROUNDING >= record.number("grace_s"), "signals",
                        f"it expired {grace} s after its signal")
        self.expect(is_near(from_acquire + overdue, elapsed), "record-times",
                    "elapsed_s is not deadline + overdue_ms - acquired")
        self.expect(record.judged <= record.at + ROUNDING, "record-times", "judged after the record was made")
        self.expect(is_idle or not timeout > run.settings.number("max_timeout_s") + ROUNDING, "record-times",
                    "timeout_s is above --max-timeout")
        self.expect(run.started is None or have_same(run.started, record, "dir"), "record-links",
                    "dir is not that of its server")
        # A scope that was released between two looks is not listed.
        may_lack_it = record.integer("omitted") > 0 or is_idle or bool(record.released_late)
        listed = record.objects("open_scopes")
        times = [scope.number("elapsed_s") for scope in listed]
        self.expect(all(b <= a + ROUNDING for a, b in zip(times, times[1:])), "record-times",
                    "open_scopes are not in order")
        # Of scopes that expired together only the first record lists them, and a rotation may remove it.
        self.expect(listed or may_lack_it or run.started is None or any(
            other.index < record.index and are_of_one_worker(other, record) and is_near(other.judged, record.judged)
            for other in self.expired_of[record.pid]), "record-links", "open_scopes is empty, and the worker's first")
        self.expect(not listed or may_lack_it or any(
            is_near(scope.number("elapsed_s"), elapsed) and not scope.flag("paused") and
            have_same(scope, record, "tid", "scope", "timeout_s", "code_timeout_s")
            for scope in listed), "record-links", "open_scopes lack the expired scope with its values")
        self.judge_incident_of(record)
        self.judge_outcome(record)

    def judge_incident_of(self, expired):
        incident = self.by_id["incident"].get(expired.text("incident"))
        if incident is None:
            self.expect(not expired.run.is_complete(), "one-to-one", "there is no incident of it")
            return
        behind = expired.judged - incident.at
        self.expect(-ROUNDING <= behind <= INCIDENT_WINDOW + ROUNDING, "record-links",
                    f"judged {behind} s after the beginning of its incident")
        self.expect(expired.index > incident.index or expired.id in incident.elements("expired"),
                    "record-links", "its incident was written later and does not list it")

    def judge_outcome(self, expired):
        """A verdict has an outcome, evidence and a hook, unless its server was killed or still runs."""
        run, killed = expired.run, expired.killed
        last_run = self.newest.get(expired.text("dir"))
        self.expect(killed or last_run is None or not last_run.is_complete() or self.is_incomplete,
                    "one-to-one", "it has no outcome")
        is_first_of_kill = expired.elements("open_scopes")
        if not killed or run is not killed.run or not is_first_of_kill or not run.is_complete():
            return
        self.expect(not killed.signals or run.settings.text("evidence") == "none" or
                    expired.id in self.by_id["evidence"], "one-to-one", "it has no evidence")
        self.expect(not run.settings.flag("on_expiry") or expired.id in self.by_id["hook"], "hooks", "it has no hook")

    def judge_incident(self, record):
        is_whole, is_complete = record.integer("omitted") == 0, record.run.is_complete()
        workers = {}  # how long the last scope has been open
        for scope in record.objects("open_scopes") + record.objects("in_no_scope"):
            pid, elapsed = scope.integer("pid"), scope.number("elapsed_s", EVER)
            self.expect(elapsed <= workers.get(pid, EVER) + ROUNDING, "record-links",
                        f"worker {pid} is listed twice, or its scopes are not in order")
            workers[pid] = elapsed
        self.expect(not is_whole or len(workers) == record.integer("workers"), "counts",
                    f"{len(workers)} workers are listed")
        self.expect(record.integer("read_late") <= record.integer("workers"), "counts",
                    "more workers were read late than there are")
        self.expect(all(are_numbers(each) and each[1] >= 0 and each[0] < INCIDENT_PAST
                        for ended in record.objects("ended_scopes") for each in ended.elements("ended")),
                    "record-times", "a time of an ended scope is none, or is too long ago")
        self.expect(record.elements("expired"), "record-links", "an incident without an expiry")
        self.expect(not record.run.settings.flag("evidence_command") or not is_complete or self.is_near_end(record) or
                    record.text("incident") in self.by_id["evidence_command"], "one-to-one",
                    "it has no evidence command")
        for id in record.elements("expired", str):
            expired = self.by_id["expired"].get(id)
            self.expect(expired is not None or not is_complete, "one-to-one", f"no scope expired as {id}")
            if expired is not None:
                self.judge_listed_in(record, expired, expired.pid in workers or not is_whole)

    def judge_listed_in(self, incident, expired, has_worker):
        self.expect(have_same(expired, incident, "incident"), "record-links", f"{expired.id} is of another incident")
        self.expect(has_worker or not is_near(expired.judged, incident.at), "record-links",
                    f"the worker of {expired.id} is missing")
        if expired.judged > incident.at + ROUNDING:
            return  # the worker may change a scope while its incident is open
        for scope in incident.objects("open_scopes"):
            due = incident.at + scope.number("remaining_s")
            is_same = have_same(scope, expired, "pid", "scope", "tid") and \
                is_near(incident.at - scope.number("elapsed_s"), expired.acquired)
            self.expect(not is_same or have_same(scope, expired, "timeout_s") and (
                self.has_missed_time or due < expired.deadline + TIMEOUT_ROUNDING), "record-links",
                f"the scope of {expired.id} has other times")

    def judge_killed(self, record):
        expired = record.expired
        if not expired:
            return
        signals, verdict, reason = record.signals, record.text("verdict"), record.text("reason")
        if signals:
            self.judge_signals(record, expired)
        last = signals[-1].integer("signal") if signals else 0
        dead_after = record.seconds("dead_after_ms", NONE)
        has_died = dead_after >= 0
        # The next server continues a kill, and a server that stops shortens its waits.
        is_of_one_server = record.run is expired.run
        is_cut_short = self.is_near_end(record) or not is_of_one_server or self.is_incomplete

        def need(holds, what):
            self.expect(holds, "outcomes", f"'{verdict}', but {what}")

        need(not dead_after < 0 and (not has_died or not signals or
                                     signals[0].seconds("mono_ns") + dead_after <= record.at + TIMEOUT_ROUNDING),
             "dead_after_ms is no time between signal and record")
        need(has_died <= (verdict == "dead"), "the worker died of the signal")
        if verdict == "dead":
            # When a worker died while no server ran is not known.
            need(signals and (has_died or not is_of_one_server), "there was no signal, or no death")
        elif verdict == "already_gone":
            need(not signals, "there was a signal")
        elif verdict == "unkillable":
            need(last == SIGKILL, "there was no SIGKILL")
            need(is_cut_short or not signals or record.at - signals[-1].seconds("mono_ns") >=
                 record.run.settings.number("kill_wait_s", 0), "--kill-wait had not passed")
        else:
            may_live = is_cut_short or bool(record.released_late)
            need(verdict == "spared", "there is no such verdict")
            need("reason" in record and last != SIGKILL, "there is no reason, or it was killed")
            need(may_live or reason.startswith("the worker started another program") or signals or
                 expired.integer("signal") == 0 or record.run.settings.flag("dry_run"),
                 "it was to be signalled, and was not released")
            # SIGKILL follows a grace period, unless the scope is released or another one decides.
            need(may_live or not signals or "grace_s" not in expired or not have_same(expired, signals[0], "signal") or
                 any(other.index > record.index and are_of_one_worker(other, record)
                     for other in self.by_id["killed"].values()),
                 "it survived its signal, and SIGKILL did not follow")

    def judge_signals(self, record, expired):
        settings, signals = record.run.settings, record.signals
        times = [expired.at, *(signal.seconds("mono_ns") for signal in signals), record.at]
        self.expect(times == sorted(times), "signal-after-record",
                    "a signal before its verdict was recorded, or after the outcome")
        for signal in signals:
            pids = signal.elements("pids", int)
            is_forbidden = record.text("reason").startswith("the server may not send it")
            self.expect((pids or is_forbidden) and min(pids, default=2) > 1 and len(set(pids)) == len(pids) and
                        record.server_pid not in pids and (settings.text("kill") != "process" or len(pids) <= 1),
                        "targets", "no target, a target twice, init or the server, or several with --kill process")
        # The server before may have sent one.
        self.expect(not settings.flag("dry_run") or times[-2] < record.run.started.at, "signals",
                    "a signal in a dry run")
        # Several scopes of the worker may have expired together: one of them decides. After a second signal it is the
        # one with the shortest grace period.
        together = [other for other in self.expired_of[expired.pid] if other is expired or (
            other.index < record.index and are_of_one_worker(other, expired) and
            (not other.killed or other.killed.index > expired.index))]
        asking = [other for other in together if other.integer("signal") == signals[0].integer("signal") > 0]
        self.expect(asking, "signals", "no expired scope asks for the first signal")
        may_decide = asking if len(signals) == 1 else [each for each in together if each.integer("signal") > 0]
        if not asking or not may_decide:
            return
        deciding = expired if len(signals) == 1 and expired in asking else \
            min(may_decide, key=lambda other: other.number("grace_s", 1e9))
        is_only_one = signals[0].integer("signal") == SIGKILL or "grace_s" not in deciding
        self.expect(len(signals) <= (1 if is_only_one else 2), "signals", f"{len(signals)} signals")
        if len(signals) == 2 and not is_only_one:
            self.expect(signals[1].integer("signal") == SIGKILL, "signals", "the second is no SIGKILL")
            self.expect(times[2] - times[1] + TIMEOUT_ROUNDING >= deciding.number("grace_s") or
                        self.is_near_end(record), "signals", "SIGKILL came before the end of the grace period")

    def judge_released_late(self, record):
        if record.expired:
            late, since = record.seconds("late_ms"), record.at - record.expired.deadline
            self.expect(0 <= late <= since + TIMEOUT_ROUNDING, "record-times",
                        f"{late} s late, the deadline was {since} s ago")
            self.expect(not record.killed or record.killed.index > record.index, "one-to-one",
                        "released after the outcome of its kill")

    def judge_evidence(self, record):
        settings = record.run.settings
        if record.event != "evidence_command":
            is_on = settings.text("evidence") != "none"
        elif not record.text("drop_in"):
            is_on = settings.value("evidence_command", True, bool)
        else:
            is_on = settings.get("evidence_drop_ins") != []
        self.expect(is_on, "record-links", "the settings switch this record off")
        self.expect(not any(record.number(key) < 0 for key in ("gathered_ms", "held_ms", "duration_ms")),
                    "record-times", "a length of time is negative")
        if record.event == "evidence":
            self.expect(not record.killed or
                        all(record.at <= signal.seconds("mono_ns") for signal in record.killed.signals[:1]),
                        "record-links", "collected after the signal")
        else:
            first = self.first_of_incident.get(record.text("incident"))
            self.expect(self.is_incomplete or (first is not None and first.index < record.index), "one-to-one",
                        "no expiry of its incident before it")

    judge_peer_evidence = judge_evidence_command = judge_evidence

    def judge_hook(self, record):
        key = "on_expiry" if record.text("on") == "expiry" else "on_warning"
        self.expect(record.run.settings.value(key, True, bool), "hooks", "the server has no such hook")
        result = record.text("result")
        needed = RESULTS.get(result)
        self.expect(needed is not None and (not needed or needed in record) and
                    ("hook_pid" in record) == (result not in ("dropped", "failed")) and
                    not ("exit_status" in record and "signal" in record) and not record.number("duration_ms") < 0,
                    "hooks", f"its fields do not fit its result '{result}'")

    def judge_warned(self, record):
        from_acquire = record.seconds("soft_mono_ns") - record.acquired
        overdue, elapsed = record.seconds("overdue_ms", NONE), record.number("elapsed_s")
        self.expect(overdue >= 0 and is_near(from_acquire + overdue, elapsed), "record-times",
                    "elapsed_s is not soft deadline + overdue_ms - acquired")
        self.expect(0 <= record.number("soft_s") <= from_acquire + TIMEOUT_ROUNDING, "record-times",
                    "soft_s is more than the time since its opening")
        verdict = self.verdicts.get(scope_id(record))
        self.expect(verdict is None or verdict.index > record.index, "record-times", "after its verdict")
        if "signal" in record:
            self.signalled.setdefault(scope_id(record), record)
            return
        now = record.acquired + elapsed
        times = self.warnings[worker_id(record)]
        times[:] = [time for time in times if not time < now - WARNING_PERIOD] + [now]
        self.expect(len(times) <= WARNINGS, "limits", f"{len(times)} warnings of a worker in {WARNING_PERIOD} s")

    def judge_left_open(self, record):
        self.expect(-ROUNDING <= record.number("elapsed_s", 0) <= record.at - record.acquired + ROUNDING,
                    "record-times", "elapsed_s is not between 0 and the time since its opening")
        killed = self.dead.get(worker_id(record))
        if killed is None or not killed.expired or not killed.signals:
            return
        last, expired = killed.signals[-1], killed.expired
        is_cancelled = last.integer("signal") == SIGKILL and record.at >= last.seconds("mono_ns") and any(
            have_same(scope, record, "scope") and
            is_near(expired.judged - scope.number("elapsed_s"), record.acquired)
            for scope in expired.objects("open_scopes"))
        self.expect(not is_cancelled, "outcomes", f"left open, though the kill in {killed.place} cancels it")

    def judge_worker_ended(self, record):
        for scope in record.objects("scopes"):
            buckets = scope.elements("histogram_ns")
            is_right = buckets and all(are_numbers(bucket) and bucket[1] > 0 for bucket in buckets)
            if is_right:
                starts = [bucket[0] for bucket in buckets]
                count, longest, total = scope.integer("count"), scope.number("longest_s"), scope.number("total_s")
                slack = 1e-9 * (count + 1)
                is_right = -1 < starts[0] and all(a < b for a, b in zip(starts, starts[1:])) and \
                    0 < count == sum(bucket[1] for bucket in buckets) and \
                    longest <= total + slack and total <= longest * count + slack and \
                    max(scope.number("last_s"), scope.number("first_s")) <= longest + slack and \
                    starts[-1] / 1e9 <= longest + slack and \
                    longest * 1e9 <= starts[-1] * 1.125 + 64  # a bucket is an eighth as wide as it begins, or 64 ns
            self.expect(is_right, "record-times", f"the statistics of '{scope.text('scope')}' contradict each other")

    def judge_deferred(self, record):
        if "pid" in record:
            self.expect(not record.number("remaining_s") > ROUNDING or record.flag("paused"), "record-times",
                        "deferred before the deadline")
        else:
            self.has_missed_time = True
            self.expect(record.number("given_s") > MISSED_TOLERATED and record.integer("scopes") > 0, "record-times",
                        "given_s is short, or is given to no scope")

    def judge_rendezvous(self, record):
        joined, missing = len(record.elements("joined")), len(record.elements("missing"))
        world = record.integer("world")
        is_right = joined >= world and missing == 0
        if record.event == "rendezvous_timeout":
            is_right = joined + missing <= world and joined < world
        self.expect(is_right and record.integer("round") > 0 and record.number("waited_s") >= 0, "counts",
                    f"{joined} joined, {missing} are missing of {world}")

    judge_rendezvous_timeout = judge_rendezvous
