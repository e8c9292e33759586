# SPDX-License-Identifier: MIT
"""What must hold between the histories and the logs. What is not certain counts in favour of the server: a call has its
effect at any moment between its two lines. All times are in seconds.
"""
import collections
from signal import SIGKILL

from checker import NONE

EVER = float("inf")
CLOSE = 2e-3  # times that are the same, converted and rounded
TURN = 0.1  # of the server's loop; what it finds has the time of its begin
MOST_GIVEN = 4  # timeouts of missed time that are given back to a scope
UNSEEN = 0.35  # the longest pause that may cost a short scope its time
LOOK = 1  # how long the end of a halt may stay unnoticed
PROMPT = 5  # a verdict, a signal or an answer comes within
PROMPT_UNDER_LOAD = 20
DEFAULT_INTERVAL = 10
MOST_LEFT = 8192  # scopes that `server_stopped` lists


def length_of(spans):
    """Returns how long at least one of the spans lasted."""
    sum = counted = 0  # up to here
    for begin, end in sorted(spans):
        sum += max(end - max(begin, counted), 0)
        counted = max(counted, end)
    return sum


class Call:
    def __init__(self, line, result):
        self.line, self.result, self.op = line, result, line.text("op")
        self.begin = line.seconds("t")
        self.end = EVER if result is None else result.seconds("t")  # EVER: did not return
        self.ok = result is None or result.value("ok", True, bool)
        self.timeout = line.seconds("timeout_ns", EVER)


class Halt:
    """A state that began and ended: it lasted at least from `begin` to `end`, and at most from `may_begin` to
    `may_end`."""

    def __init__(self, call, begin):
        self.may_begin, self.begin = call.begin, begin
        self.may_end = self.end = EVER

    def lasted(self, since, until):
        return min(self.end, until) - max(self.begin, since)


class Process:
    def __init__(self, name):
        self.name, self.role, self.parent = name, "", ""
        self.pid = self.start = 0
        self.spawned = 0  # no earlier
        self.alive_until = EVER  # certainly alive until
        self.ended = EVER  # certainly ended
        self.status = None
        self.sent = set()  # signals of the driver
        self.halts, self.calls = [], []
        self.kills = []  # a record of each verdict about it
        # A server.
        self.log = ""
        self.ready = self.asked_to_end = EVER
        self.was_killed = False

    def left(self, at):
        """Returns when the program that ran at this time began to exit or to start another one."""
        return next((call.begin for call in self.calls if call.op in ("exit", "exec") and call.begin >= at), EVER)


class Scope:
    """One acquired scope."""

    def __init__(self, worker, call, before=None):
        """`before`: the scope of a heartbeat that expired; the call is a beat that has opened it anew."""
        line = before.line if before else call.line
        self.worker, self.open, self.line = worker, call, line
        call.timeout = line.seconds("timeout_ns", EVER)
        self.key, self.via = line.text("key"), line.text("via", "page")
        self.name = line.text("scope", self.key)
        self.changes = []  # calls of renew, pause or resume
        self.release = None
        self.expired, self.left_open = [], []  # records
        self.was_signalled = False  # at its soft deadline
        is_open = before is not None or call.ok
        self.may_be_watched = is_open and (call.result is None or call.result.value("watched", True, bool))
        # The time from the signal to the deadline of a scope that is signalled first.
        self.grace_before_due = line.seconds("grace_ns") if "spare" in line or "raise" in line else 0

    def whose(self):
        return f"{self.worker.name} {self.key}"


def is_of_one_server(verdict):
    return bool(verdict.expired and verdict.killed) and verdict.expired.server_pid == verdict.killed.server_pid


class HistoryJudge:
    def __init__(self, calls, records):
        self.lines, self.records = calls, records
        self.found = []
        self.processes, self.scopes, self.by_key = {}, [], {}
        self.rejected_pids = set()
        self.several_rejected_at = -EVER  # the last record of several, which names one of them
        self.excuses, self.loads = [], []
        self.files = []  # what was done to them
        self.removals_of_pages = []  # of workers
        self.may_lack_records = False  # the log could not be written, or was removed
        self.history_end = 0
        self.prompt_s = PROMPT

    def run(self, found):
        """Returns these violations and those that it finds, without those that are excused: the subject, the promise
        and what is wrong."""
        self.found += found
        self.read_history()
        self.servers = [each for each in self.processes.values() if each.role == "server"]
        self.read_logs()
        for scope in self.scopes:
            self.judge_scope(scope)
        for verdict in self.verdicts:
            self.judge_targets(verdict)
        for process in self.processes.values():
            self.judge_end(process)
            for call in process.calls:
                self.judge_call(process, call)
        self.judge_records()
        return [each for each in self.found if not any(self.excuses_it(excuse, *each) for excuse in self.excuses)]

    def report(self, promise, subject, what):
        self.found.append((subject, promise, f"{what} ({subject})"))

    @staticmethod
    def excuses_it(excuse, subject, promise, _):
        return excuse.text("promise") == promise and all(
            field not in excuse or f" {excuse.text(field)} " in f" {subject} " for field in ("subject", "key"))

    # What is read

    def read_history(self):
        ends, begins = {}, []
        for line in self.lines:
            if not line.is_object or "t" not in line:
                self.report("history", line.place, f"not a line of a history: {line.bytes[:80]}")
                continue
            self.history_end = max(self.history_end, line.seconds("t"))
            if line.flag("end"):
                # A child of fork() continues the numbers of its parent under its own name.
                ends.setdefault((line.text("who"), line.integer("n")), line)
            if "op" in line:
                begins.append(line)
        for line in sorted(begins, key=lambda line: line.seconds("t")):
            who = line.text("who")
            call = Call(line, ends.get((who, line.integer("n"))) if "n" in line else None)
            if who == "driver":
                self.read_driver(call.op, line, call)
            else:
                self.read_worker(call.op, line, call, self.process(who))

    def process(self, name):
        return self.processes.setdefault(name, Process(name))

    def read_driver(self, op, line, call):
        if op == "excuse":
            self.excuses.append(line)
        elif op == "fault":
            self.report(line.text("promise"), line.place, line.text("what"))
        elif op == "load":
            self.loads.append(call)
        elif op == "prompt":
            self.prompt_s = line.seconds("ns")
        elif op == "log_trouble":
            self.may_lack_records = True
        elif op == "files":
            self.files.append(line.text("what"))
            self.removals_of_pages += [call.begin] * line.flag("removes_pages")
        if "subject" in line:
            self.read_driver_on(self.process(line.text("subject")), op, line, call)

    def read_driver_on(self, process, op, line, call):
        if op == "spawn":
            process.role, process.parent = line.text("role"), line.text("parent")
            process.spawned = call.begin
            if call.result is not None:
                process.pid, process.start = call.result.pid, call.result.integer("start")
        elif op == "server":
            process.role, process.log = "server", line.text("log")
            process.ready = call.end if call.ok else EVER
        elif op == "ended":
            process.alive_until, process.ended = line.seconds("before"), call.begin
            process.status = line.value("status", None, int)
        elif op in ("kill", "kill_server", "stop_server"):
            process.asked_to_end = min(process.asked_to_end, call.begin)
            process.was_killed = process.was_killed or op == "kill_server"
            process.sent |= {line.integer("signal")} if op == "kill" else set()
        elif op == "halt":
            process.halts.append(Halt(call, min(call.end, self.history_end)))
        elif op == "resume":
            for halt in process.halts:
                halt.end = min(halt.end, max(call.begin, halt.begin))
                halt.may_end = min(halt.may_end, call.end)

    def read_worker(self, op, line, call, worker):
        worker.calls.append(call)
        if op == "open":
            scope = self.by_key[worker.name, line.text("key")] = Scope(worker, call)
            self.scopes.append(scope)
            return
        scope = self.by_key.get((worker.name, line.text("key")))
        if scope is None:
            return
        is_over = op == "renew" and scope.via == "page" and call.result is not None and not call.ok
        if op == "release" or is_over:  # a renewal behind the verdict releases the scope
            scope.release = scope.release or call  # a second one has no effect
        elif op in ("renew", "pause", "resume"):
            scope.changes.append(call)
            if scope.via == "heartbeat" and not call.ok and call.result.flag("watched"):
                scope.release = call  # the beat behind the verdict has opened it anew
                self.by_key[worker.name, scope.key] = again = Scope(worker, call, scope)
                self.scopes.append(again)

    def process_of(self, pid, start, at):
        """Returns the process of a record. In a page that no server has read before its worker's end, the pid is that
        of the worker's namespace, in which it is the first process."""
        return max((each for each in self.processes.values()
                    if each.spawned <= at and (each.pid == pid > 0 and start in (0, each.start) or
                                               pid == 1 and start == each.start > 0)),
                   key=lambda each: each.spawned, default=None)

    def scope_of(self, record):
        """Returns the scope that a record is about: the one of the name that was opened last before then."""
        found = None
        for scope in self.scopes:
            opened = scope.open
            if scope.worker is record.process and scope.name == record.scope and \
                    opened.begin <= record.acquired + CLOSE:
                if opened.begin <= record.acquired <= opened.end < EVER:
                    return scope
                if found is None or found.open.begin < opened.begin:
                    found = scope
        return found

    def read_logs(self):
        starts = collections.Counter()  # by pid of the server
        verdicts = {}  # by id, a record of each
        for record in self.records:
            event, pid = record.event, record.server_pid
            record.process = self.process_of(record.pid, record.integer("start_time"), record.at)
            if event == "server_started":
                starts[pid] += 1
                if starts[pid] > max(sum(server.pid == pid for server in self.servers), 1):
                    self.report("server-life", f"pid {pid}", f"a second start of a server, in {record.place}")
            elif event in ("expired", "killed", "released_late"):
                verdicts[record.id] = record
            elif event == "rejected":
                self.rejected_pids.add(record.pid)
                if record.integer("count") > 1:
                    self.several_rejected_at = max(self.several_rejected_at, record.at)
            elif event == "warned" and "acquired_mono_ns" in record and "signal" in record:
                if scope := self.scope_of(record):
                    scope.was_signalled = True
            if event in ("expired", "left_open"):
                self.read_verdict(event, record)
        self.verdicts = list(verdicts.values())
        for verdict in self.verdicts:
            if verdict.process is not None:
                verdict.process.kills.append(verdict)
        for server in self.servers:
            is_removed = server.log and any(server.log in what for what in self.files)
            if is_removed or (server.ready < EVER and server.pid not in starts):
                self.may_lack_records = True

    def read_verdict(self, event, record):
        scope = self.scope_of(record)
        if scope is None:
            if record.scope != "(idle)":
                name = record.process.name if record.process else f"pid {record.pid}"
                self.report("known-scopes", name,
                            f"{event} of scope '{record.scope}', which it has not opened, in {record.place}")
            return
        before = scope.left_open[-1:] if event == "left_open" else []
        if before and any(server.was_killed and server.pid == before[0].server_pid for server in self.servers):
            scope.left_open.pop()
        (scope.expired if event == "expired" else scope.left_open).append(record)

    # What several rules ask

    def is_below(self, process, ancestor):
        while process is not None and process is not ancestor:
            process = self.processes.get(process.parent)
        return process is not None

    def has_sent(self, wanted, pid):
        """Returns whether a kill has sent the signal (0: any) to the process, perhaps for its parent."""
        return any(wanted in (0, signal.integer("signal")) and pid in signal.elements("pids")
                   for verdict in self.verdicts for signal in verdict.killed.signals)

    def prompt(self, since):
        is_under_load = any(load.begin < since + PROMPT_UNDER_LOAD and since < load.end for load in self.loads)
        return PROMPT_UNDER_LOAD if is_under_load else self.prompt_s

    @staticmethod
    def timeout_at(scope, judged):
        """Returns the earliest and the latest deadline that the worker's calls before `judged` allow, without what is
        given back, and the timeout. EVER: it has none."""
        timeout = scope.open.timeout
        earliest, latest = scope.open.begin + timeout, scope.open.end + timeout
        left, is_paused = 0, False
        for call in scope.changes:
            if not call.ok or call.begin > judged or (call.op != "renew" and (call.op == "pause") == is_paused):
                continue  # without effect
            is_done = call.end <= judged  # else it may have had its effect, or not
            now = call.timeout if is_done and call.timeout < EVER else timeout
            if call.op == "renew" and is_paused:
                left = now
            elif call.op == "renew":
                earliest = min(call.begin + now, EVER if is_done else earliest)
                latest = call.end + max(now, timeout)
            elif call.op == "pause":
                left = max(earliest - call.end, 0) if earliest < EVER else left
                earliest, latest = EVER if is_done else earliest, EVER
                is_paused = True
            else:
                earliest, latest = call.begin + left if is_done else EVER, call.end + timeout
                is_paused = False
            timeout = now
        return earliest, latest, timeout

    def with_server(self, scope, due, timeout):
        """Moves a deadline to when the server of the scope runs, with the time that it gives back."""
        up = EVER
        # The server gives the time since its last look, which was at most a quarter of a timeout ago. PyTorch's lines
        # have a deadline only: how long one has waited for the server is not known.
        has_own_timeout = scope.via != "torch" or timeout == 0
        for server in self.servers:
            if server.ready == EVER:
                continue
            at = max(due, server.ready)
            for halt in server.halts:
                if halt.may_begin >= at + PROMPT:
                    continue
                length = halt.may_end - halt.may_begin
                if has_own_timeout:
                    given = min(length + timeout / 4, timeout)
                else:
                    given = min(max(halt.may_end - server.ready, length), max(length, DEFAULT_INTERVAL))
                at = max(at, halt.may_end) + given
            if at + 2 * self.prompt(at) < min(server.asked_to_end, server.alive_until):
                up = min(up, at)
        return up

    def due_after_losses(self, scope, due, timeout):
        """Moves a deadline to when its server and its worker run, with the time that the server gives back."""
        def move(due):
            for halt in scope.worker.halts:
                if due == EVER or halt.may_begin > due + PROMPT:
                    continue
                # It may have begun a look before it was seen, and ends with one.
                is_from_before_server = any(halt.may_begin < server.ready < halt.may_end for server in self.servers)
                length = halt.may_end - halt.may_begin + max(timeout / 4, UNSEEN)
                due = max(due, halt.may_end + LOOK) + (
                    timeout if is_from_before_server else min(length + LOOK, timeout))
            return due

        before = move(self.with_server(scope, due, 0))
        due = self.with_server(scope, before, timeout)
        return move(due) if due > before else due  # the next server may find the worker halted

    # The rules

    def judge_scope(self, scope):
        for expired in scope.expired:
            self.judge_expired(scope, expired)
        verdicts = scope.expired + scope.left_open
        if len(verdicts) > 1:
            self.report("one-verdict", scope.whose(), f"{len(verdicts)} verdicts, the last in {verdicts[-1].place}")
        if scope.release and scope.release.ok and scope.release.result is not None:
            self.judge_release(scope, verdicts)
        if scope.left_open and scope.worker.left(scope.open.begin) == EVER == scope.worker.ended:
            self.report("one-verdict", scope.whose(),
                        f"left open by a worker that is alive, in {scope.left_open[0].place}")
        if not verdicts:
            self.judge_lack_of_verdict(scope)
        self.judge_hang(scope)

    def judge_release(self, scope, verdicts):
        released, in_time = scope.release.end, scope.release.result.get("in_time")
        for verdict in verdicts[:1]:
            if in_time is True or released < verdict.seconds("deadline_mono_ns", EVER):
                self.report("released-in-time", scope.whose(),
                            f"released in time, but {verdict.event} in {verdict.place}")
        if in_time is not False or self.may_lack_records:
            return
        # A server that is killed may have given the verdict without recording it.
        lost_its_server = any(server.was_killed and scope.open.begin < server.asked_to_end < released
                              for server in self.servers)
        is_raised = "raise" in scope.open.line and scope.was_signalled
        if not scope.expired and not is_raised and scope.may_be_watched and not lost_its_server and \
                self.history_end - released > self.prompt(released):
            self.report("one-verdict", scope.whose(), "its release says that it was late, and there is no verdict")
        for expired in scope.expired[:1]:
            killed = expired.killed
            if killed.text("verdict") == "spared" and is_of_one_server(expired) and not killed.signals and \
                    released + TURN < killed.at and not expired.released_late:
                self.report("one-to-one", scope.whose(), f"{expired.id} has no released_late")

    def judge_lack_of_verdict(self, scope):
        worker = scope.worker
        was_refused = scope.via != "page" and (self.several_rejected_at > scope.open.begin or
                                               worker.pid in self.rejected_pids)
        may_be_cancelled = any(verdict.expired and (
            not is_of_one_server(verdict) or verdict.killed.signals or verdict.killed.elements("cancelled"))
            for verdict in worker.kills)
        is_decided = scope.release or was_refused or scope.open.result is None or may_be_cancelled
        if is_decided or not scope.may_be_watched or worker.ended == EVER or scope.via == "run" or \
                self.may_lack_records or not self.was_watched(worker):
            return
        has_ended_in_order_after = any(
            server.ready < EVER and not server.was_killed and not server.sent and server.ended < EVER and
            worker.ended + LOOK < server.asked_to_end < EVER for server in self.servers)
        if has_ended_in_order_after or self.with_server(scope, worker.ended, 0) + PROMPT < self.history_end:
            self.report("one-verdict", scope.whose(), "its worker ended inside it, and there is no record")

    def was_watched(self, worker):
        """Else its client has removed its page, of which no server knew, when the worker exited; or pages were removed
        since."""
        first = worker.calls[0].end if worker.calls else worker.ended
        return not any(first < removed for removed in self.removals_of_pages) and any(
            server.ready < worker.ended and (not worker.calls or server.alive_until > first + LOOK) and
            not any(halt.may_begin < first and worker.ended < halt.may_end + LOOK for halt in server.halts)
            for server in self.servers)

    def judge_terms(self, scope, record):
        """The timeout is one that the worker asked for, or that the settings put in its place. Returns whether they
        did."""
        settings, granted = record.run.settings, record.number("timeout_s", 0)

        def is_near(limit):
            return abs(granted - limit) <= CLOSE

        is_replaced = scope.via == "torch" or "code_timeout_s" in record or \
            is_near(settings.number("max_timeout_s")) or is_near(settings.number("default_timeout_s"))
        asked = [call.line.seconds("timeout_ns") for call in (scope.open, *scope.changes)]
        if not is_replaced and not any(map(is_near, asked)):
            self.report("record-terms", scope.whose(),
                        f"timeout_s is {granted}, for which it has not asked, in {record.place}")
        return is_replaced

    def judge_expired(self, scope, expired):
        worker, opened, judged = scope.worker, scope.open, expired.judged
        earliest, _, timeout = self.timeout_at(scope, judged)
        earliest += scope.grace_before_due
        is_cut = self.judge_terms(scope, expired)

        def fail(promise, what):
            self.report(promise, scope.whose(), f"{what}, in {expired.place}")

        grace, asked = expired.number("grace_s", 0), opened.line.seconds("grace_ns", NONE)
        # Of a scope that is signalled first another signal was sent before.
        if abs(grace - asked) > 1e-9 or scope.grace_before_due == 0 and \
                opened.line.integer("signal", expired.integer("signal")) != expired.integer("signal"):
            fail("record-terms", "signal or grace_s are not those that it asked for")
        has_moved = any(call.begin <= expired.acquired <= call.end for call in scope.changes)  # to a new page
        if scope.via == "page" and expired.acquired > opened.end + CLOSE and not has_moved:
            fail("record-terms", "acquired_mono_ns is not within its open()")
        if not is_cut and earliest > judged + CLOSE and scope.via != "torch":
            fail("not-early", f"judged {earliest - judged} s before its deadline")
            return
        # While the worker is being killed, the server does not look for lost time.
        if any(verdict.killed.text("verdict") == "unkillable" and opened.begin < verdict.killed.at <= judged
               for verdict in worker.kills):
            return
        self.judge_missed_time(scope, expired, earliest, timeout, fail)
        is_of_program = scope.via not in ("pipe", "torch")
        if worker.ended < expired.deadline or \
                is_of_program and worker.left(opened.begin) < min(earliest, judged) - PROMPT:
            fail("not-early", "its worker had exited, or ran another program, before the deadline")

    def judge_missed_time(self, scope, expired, due, timeout, fail):
        """The server and the worker could run for three quarters of the timeout."""
        judged = expired.judged
        length = min(timeout, expired.number("timeout_s"))
        since = min(due - timeout, judged) if judged >= length and due < EVER else scope.open.begin
        halts = []
        ready = 0
        # A sweep finds it.
        interval = LOOK + expired.run.settings.number("max_interval_s", DEFAULT_INTERVAL)
        # A pause between two looks of the server is not noticed. It costs a quarter of the timeout.
        may_lack = unseen = max(length / 4, UNSEEN)
        was_away = False  # at the deadline, or the deadline was moved: it did not see the halt
        for server in self.servers:
            if server.pid != expired.server_pid:
                continue
            ready = server.ready
            given = halts_given = 0
            for halt in server.halts:
                if halt.end - halt.begin > unseen and halt.lasted(since, judged) > 0 and given < MOST_GIVEN * length:
                    halts.append(halt)
                    given += min(halt.lasted(since, judged), length)
                    halts_given += 1
                    may_lack = halts_given * unseen
            was_away = any(halt.may_begin <= due and since <= halt.may_end and
                           (halt.end - halt.begin > unseen or due <= halt.may_end) for halt in server.halts)
        for halt in scope.worker.halts:
            is_at_deadline = max(halt.begin, ready) < due and due + CLOSE < halt.end
            is_seen = halt.lasted(since, judged) >= interval and halt.end >= ready + interval
            if not was_away and (is_at_deadline or is_seen):
                halts.append(halt)
        missed = length_of((max(halt.begin, since), min(halt.end, judged)) for halt in halts)
        used = judged - since - missed
        if used < length - may_lack - CLOSE and missed > 0:
            fail("not-early", f"{used} s of {length} s could be used: {missed} s were missed")

    def judge_hang(self, scope):
        """A scope that is open past its deadline has a verdict, and its worker a signal, within a bound."""
        worker = scope.worker
        _, timed_out, timeout = self.timeout_at(scope, EVER)
        if not scope.may_be_watched or timed_out == EVER or timeout == EVER:
            return
        # The whole grace period follows the signal, also if both had passed while time was lost. A server does not
        # know whether the one before it has sent the signal.
        grace = scope.grace_before_due
        due = max(self.due_after_losses(scope, timed_out + grace, timeout),
                  self.due_after_losses(scope, timed_out, timeout) + grace,
                  *(server.ready + grace for server in self.servers if grace > 0 and timed_out < server.ready < EVER))
        # A worker that is being killed is judged again when the kill is over.
        for verdict in worker.kills:
            if verdict.expired and verdict.killed and verdict.expired.at <= due + self.prompt(due):
                due = max(due, verdict.killed.at)
                if not scope.expired and scope.name in verdict.killed.elements("cancelled"):
                    return
        if due == EVER:
            return
        open_until = min(scope.release.begin if scope.release else EVER, worker.left(scope.open.begin),
                         worker.alive_until, worker.asked_to_end, self.history_end)
        expired, bound = scope.expired[0] if scope.expired else None, due + self.prompt(due)
        judged = expired.judged if expired else open_until
        if judged > bound and (expired or not self.may_lack_records):
            self.report("hang-is-judged", scope.whose(), f"open and not judged {judged - due} s past its deadline" +
                        (f", in {expired.place}" if expired else ""))
        if not expired:
            return
        dead = max(judged, due) + expired.number("grace_s", 0) + 2 * self.prompt(due)
        # Of scopes that expired together the earliest may have decided, for another signal.
        is_of_another = expired.killed.text("verdict") == "spared" and expired.killed.signals
        signal = expired.integer("signal")
        must_die = signal == SIGKILL and not is_of_another or signal > 0 and "grace_s" in expired
        if must_die and open_until > self.with_server(scope, dead, timeout):
            self.report("hang-is-killed", scope.whose(), f"alive long after its verdict in {expired.place}")

    def judge_targets(self, verdict):
        worker, killed = verdict.process, verdict.killed
        if worker is None or not verdict.expired or not killed:
            return
        for signal in killed.signals:
            at = signal.seconds("mono_ns")
            for target in [self.process_of(pid, 0, at) for pid in signal.elements("pids", int)]:
                if target is not None and target.ended > at and not self.is_below(target, worker):
                    self.report("targets", target.name, f"signalled for {worker.name}, in {killed.place}")
        outcome, status = killed.text("verdict"), worker.status or 0
        # A server that was killed just then may have sent the signal and not noted it.
        may_lack_signal = any(server.was_killed and server.asked_to_end < worker.ended + TURN and
                              worker.alive_until < server.ended for server in self.servers)
        is_of_kill = status >= 0 or -status in worker.sent or may_lack_signal or self.has_sent(-status, worker.pid)
        if (outcome == "dead" and not is_of_kill) or (outcome == "unkillable" and worker.ended < killed.at - 1) or (
                outcome in ("dead", "already_gone") and killed.at + 1 < min(worker.alive_until, self.history_end)):
            self.report("outcomes", worker.name,
                        f"'{outcome}' in {killed.place}, but it ended at {worker.ended} with status {status}")

    def judge_end(self, process):
        """A process that dies of a signal got it from the driver, or has a record. A process that exits has announced
        it."""
        status, announced = process.status, [call.line.integer("code") for call in process.calls if call.op == "exit"]
        if status is None:
            return
        if process.role == "server":
            is_asked = process.asked_to_end < EVER and (process.was_killed or process.sent or status in (0, 8))
            if not is_asked and process.ready < EVER:
                self.report("server-lives", process.name, f"it ended with status {status}")
        elif status > 0:
            if status not in announced and process.role == "worker" and process.calls:
                self.report("worker-unharmed", process.name, f"it exited with {status}, which it did not intend")
        elif status < 0 and -status not in process.sent and status not in announced:
            # Also the signal of a scope that is signalled first. Or its server was killed before it could write the
            # outcome.
            is_recorded = self.has_sent(0, process.pid) or any(
                record.event == "warned" and record.pid == process.pid and record.integer("signal") == -status
                for record in self.records) or any(
                verdict.process is not None and verdict.expired and not is_of_one_server(verdict) and
                verdict.expired.at <= process.ended and self.is_below(process, verdict.process)
                for verdict in self.verdicts)
            if process.role == "bystander" or not is_recorded and not self.may_lack_records:
                self.report("death-has-record", process.name, f"a {process.role} died of signal {-status}")

    def judge_call(self, caller, call):
        end = min(call.end, caller.alive_until, caller.left(call.begin), self.history_end)
        halted = sum(max(min(halt.may_end, end) - max(halt.may_begin, call.begin), 0) for halt in caller.halts)
        if end - call.begin - halted > self.prompt(call.begin):
            self.report("calls-return", caller.name, f"{call.op} took {end - call.begin} s, in {call.line.place}")

    def judge_records(self):
        counts = collections.Counter()
        deferred = {}  # the last record of a server
        for record in self.records:
            event, worker = record.event, record.process
            if event == "incident":
                self.judge_list(record, "open_scopes", record.at, 0)
            elif event == "server_stopped" and record.integer("left_count") < MOST_LEFT:
                self.judge_list(record, "left", record.at - 0.01, 0)
            elif event == "expired" and record.elements("open_scopes"):
                self.judge_list(record, "open_scopes", record.at - TURN, record.pid)
            if worker is None:
                continue
            if event == "deferred":
                self.judge_deferred(record, worker, deferred)
            elif event == "left_open" or (event == "warned" and "acquired_mono_ns" in record):
                if scope := self.scope_of(record):
                    self.judge_terms(scope, record)
                    if event == "warned" and "state" in record and scope.release and scope.release.ok and \
                            scope.release.end + LOOK < record.at:
                        self.report("record-links", worker.name,
                                    f"evidence of a scope that it has left, in {record.place}")
            elif event == "released_late":
                self.judge_released_late(record)
            elif event == "worker_ended":
                for scope in record.objects("scopes"):
                    counts[worker, scope.text("scope")] += scope.integer("count")
        for (worker, name), count in counts.items():
            self.judge_count(worker, name, count)

    def judge_deferred(self, record, worker, deferred):
        server, at = record.server_pid, record.at
        if any(verdict.expired and verdict.expired.server_pid != server for verdict in worker.kills):
            return  # it was stopped to be killed, by a server that was killed
        last = deferred.get((worker, server), -EVER)
        if not any(halt.may_begin <= at <= halt.may_end + LOOK for halt in worker.halts):
            self.report("deferred-has-halt", worker.name, f"deferred while it ran, in {record.place}")
            return
        if not any(last < halt.may_begin <= at or last <= halt.may_end <= at for halt in worker.halts):
            self.report("deferred-has-halt", worker.name, f"deferred twice in one halt, in {record.place}")
        deferred[worker, server] = at

    def judge_list(self, record, field, since, pid):
        """The record lists all open scopes of the worker, or of all workers with pid 0."""
        if self.files or record.integer("omitted") != 0:
            return
        listed = {(each.integer("pid", pid), each.text("scope")) for each in record.objects(field)}
        for scope in self.scopes:
            worker = scope.worker
            is_killed = pid == 0 and any(verdict.killed for verdict in worker.kills)
            if pid in (0, worker.pid) and not is_killed and (worker.pid, scope.name) not in listed and \
                    self.is_certainly_open(scope, record, since, record.at + TURN):
                self.report("record-links", scope.whose(), f"it is open and not among {field}, in {record.place}")

    def is_certainly_open(self, scope, record, since, until):
        """Returns whether the server of the record knew the scope to be open in all that time."""
        worker, started = scope.worker, record.run.started
        return started is not None and started.at + LOOK < since and \
            scope.open.end + LOOK < since and scope.may_be_watched and scope.via in ("page", "heartbeat") and \
            not (scope.release and scope.release.begin <= until) and \
            worker.left(scope.open.begin) > until and worker.alive_until > until and \
            not any(expired.deadline < until for expired in scope.expired) and \
            not any(halt.may_begin < until and scope.open.end < halt.may_end + LOOK for server in self.servers
                    if server.pid == record.server_pid for halt in server.halts)

    def judge_released_late(self, record):
        """The release is not recorded earlier than it was."""
        scope = self.scope_of(record.expired) if record.expired else None
        if scope is None:
            return
        released = record.expired.deadline + record.seconds("late_ms")
        # `timer_client run` releases the scope of a COMMAND that has ended.
        has_other_end = scope.worker.left(scope.open.begin) < record.at or \
            any(call.begin < record.at for call in scope.changes) or \
            scope.via == "run" and scope.worker.alive_until < record.at
        if not has_other_end and (scope.release.begin if scope.release else EVER) > released + TURN:
            self.report("record-times", scope.whose(), f"not released until then, in {record.place}")

    def judge_count(self, worker, name, counted):
        """The statistics count the scopes that were released, and each renewal as one more."""
        scopes = [scope for scope in self.scopes if scope.worker is worker and scope.name == name]
        has_started_another = any(call.op == "exec" for call in worker.calls)  # program
        if not scopes or has_started_another or any(scope.via != "page" for scope in scopes):
            return
        in_time = all_ends = 0
        for scope in scopes:
            # A renewal that comes after the verdict ends its scope.
            is_ended = any(not call.ok or call.result is None for call in scope.changes)
            all_ends += bool(scope.release or is_ended) + sum(call.op == "renew" and call.ok for call in scope.changes)
            has_lost_page = any(removed + LOOK > scope.open.begin for removed in self.removals_of_pages)
            in_time += bool(scope.release and scope.release.result is not None and
                            scope.release.result.flag("in_time") and not has_lost_page)
        if not in_time <= counted <= all_ends:
            self.report("counts", worker.name,
                        f"worker_ended counts {counted} scopes '{name}', it released {all_ends}")
