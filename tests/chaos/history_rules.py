# SPDX-License-Identifier: MIT
"""What must hold between the histories and the logs. What is not certain counts in favour of the server: a call has its
effect at any moment between its two lines. All times are in nanoseconds.
"""
import collections
from signal import SIGKILL

NEVER = 1 << 61
SECOND = 1_000_000_000
CLOSE = 2_000_000  # times that are the same, converted and rounded
TURN = SECOND // 10  # of the server's loop; what it finds has the time of its begin
MOST_GIVEN = 4  # timeouts of missed time that are given back to a scope
UNSEEN = 350_000_000  # the longest pause that may cost a short scope its time
LOOK = SECOND  # how long the end of a halt may stay unnoticed
PROMPT = 5 * SECOND  # a verdict, a signal or an answer comes within
PROMPT_UNDER_LOAD = 20 * SECOND
DEFAULT_INTERVAL = 10 * SECOND
MOST_LEFT = 8192  # scopes that `server_stopped` lists


def nanos(number, unit=1e9):
    return round(number * unit) if number == number else 0


def after(time, length):
    return min(time + length, NEVER)


def length_of(spans):
    """Returns how long at least one of the spans lasted."""
    sum = counted = 0  # up to here
    for begin, end in sorted(spans):
        sum += max(end - max(begin, counted), 0)
        counted = max(counted, end)
    return sum


def when_judged(expired):
    return expired.integer("deadline_mono_ns") + nanos(expired.number("overdue_ms"), 1e6)


class Call:
    def __init__(self, line, result):
        self.line, self.result = line, result
        self.begin = line.integer("t")
        self.end = NEVER if result is None else result.integer("t")  # NEVER: did not return
        self.ok = result is None or result.flag("ok", True)


class Halt:
    """A state that began and ended: it lasted at least from `begin` to `end`, and at most from `may_begin` to
    `may_end`."""

    def __init__(self, call, begin):
        self.may_begin, self.begin = call.begin, begin
        self.may_end = self.end = NEVER

    def lasted(self, since, until):
        return min(self.end, until) - max(self.begin, since)


class Process:
    def __init__(self, name):
        self.name, self.role, self.parent = name, "", ""
        self.pid = self.start = 0
        self.spawned = 0  # no earlier
        self.alive_until = NEVER  # certainly alive until
        self.ended = NEVER  # certainly ended
        self.status = None
        self.sent = set()  # signals of the driver
        self.exits = None  # the code that it announced
        self.leaves = []  # when it began to exit or to start another program
        self.has_started_another = False  # program
        self.halts, self.calls = [], []
        # A server.
        self.log = ""
        self.ready = self.asked_to_end = NEVER
        self.was_killed = False

    def left(self, at):
        """Returns when the program that ran at this time was left."""
        return next((leave for leave in self.leaves if leave >= at), NEVER)


class Scope:
    """One acquired scope."""

    def __init__(self, worker, call):
        line = call.line
        self.worker, self.open = worker, call
        self.key, self.via = line.text("key"), line.text("via", "page")
        self.name = line.text("scope", self.key)
        self.changes = []  # (renew, pause or resume, call)
        self.release = None
        self.expired, self.left_open = [], []  # records
        self.was_signalled = False  # at its soft deadline
        self.may_be_watched = call.ok and (call.result is None or call.result.flag("watched", True))
        # The time from the signal to the deadline of a scope that is signalled first.
        self.grace_before_due = line.integer("grace_ns") if "spare" in line or "raise" in line else 0

    def whose(self):
        return f"{self.worker.name} {self.key}"

    def in_time(self, missing):
        return self.release.result.flag("in_time", missing)


class Verdict:
    """What the logs say of one id."""

    def __init__(self):
        self.worker = None  # None: no process of the history
        self.expired = self.killed = self.released_late = None

    def is_of_one_server(self):
        return self.expired is not None and self.killed is not None and \
            self.expired.integer("server_pid") == self.killed.integer("server_pid")

    def is_spared(self):
        return self.killed is not None and self.killed.text("verdict") == "spared"

    def signals(self):
        return self.killed.objects("signals") if self.killed is not None else []

    def cancelled(self):
        return self.killed.elements("cancelled", str) if self.killed is not None else []


class HistoryJudge:
    def __init__(self, calls, records):
        self.lines, self.records = calls, records
        self.found = []
        self.processes, self.scopes, self.by_key = {}, [], {}
        self.verdicts = collections.defaultdict(Verdict)  # by id
        self.rejected_pids = set()
        self.several_rejected_at = -NEVER  # the last record of several, which names one of them
        self.excuses, self.loads = [], []
        self.files = []  # what was done to them
        self.removals_of_pages = []  # of workers
        self.may_lack_records = False  # the log could not be written, or was removed
        self.history_end = 0
        self.prompt_ns = PROMPT

    def run(self, found):
        """Returns these violations and those that it finds, without those that are excused: the subject, the promise
        and what is wrong."""
        self.found += found
        self.read_history()
        self.servers = [each for each in self.processes.values() if each.role == "server"]
        self.read_logs()
        self.verdicts_of = collections.defaultdict(list)  # by name of the worker
        for verdict in self.verdicts.values():
            self.verdicts_of[verdict.worker and verdict.worker.name].append(verdict)
        for scope in self.scopes:
            self.judge_scope(scope)
        for verdict in self.verdicts.values():
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

    def worker_of(self, record):
        return self.process_of(record.integer("pid"), record.integer("start_time"), record.integer("mono_ns"))

    def has_sent(self, wanted, pid):
        """Returns whether a kill has sent the signal (0: any) to the process, perhaps for its parent."""
        return any(wanted in (0, each.integer("signal")) and pid in each.elements("pids")
                   for verdict in self.verdicts.values() for each in verdict.signals())

    # What is read

    def read_history(self):
        ends, begins = {}, []
        for line in self.lines:
            if not line.is_object or "t" not in line:
                self.report("history", line.place, f"not a line of a history: {line.line[:80]}")
                continue
            self.history_end = max(self.history_end, line.integer("t"))
            if line.flag("end"):
                # A child of fork() continues the numbers of its parent under its own name.
                ends.setdefault((line.text("who"), line.integer("n")), line)
            if "op" in line:
                begins.append(line)
        for line in sorted(begins, key=lambda line: line.integer("t")):
            who, op = line.text("who"), line.text("op")
            call = Call(line, ends.get((who, line.integer("n"))) if "n" in line else None)
            if who == "driver":
                self.read_driver(op, line, call)
            else:
                self.read_worker(op, line, call, self.process(who))

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
            self.prompt_ns = line.integer("ns")
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
                process.pid, process.start = call.result.integer("pid"), call.result.integer("start")
        elif op == "server":
            process.role, process.log = "server", line.text("log")
            process.ready = call.end if call.ok else NEVER
        elif op == "ended":
            process.alive_until, process.ended = line.integer("before"), call.begin
            process.status = line.integer("status") if "status" in line else None
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
        if op in ("exit", "exec"):
            worker.leaves.append(call.begin)
            worker.has_started_another = worker.has_started_another or op == "exec"
            worker.exits = line.integer("code") if op == "exit" else worker.exits
        scope = self.by_key.get((worker.name, line.text("key")))
        if scope is None:
            return
        is_over = op == "renew" and scope.via == "page" and call.result is not None and not call.ok
        if op == "release" or is_over:  # a renewal behind the verdict releases the scope
            scope.release = scope.release or call  # a second one has no effect
        elif op in ("renew", "pause", "resume"):
            scope.changes.append((op, call))

    def process_of(self, pid, start, at):
        return max((each for each in self.processes.values()
                    if each.pid == pid > 0 and each.spawned <= at and start in (0, each.start)),
                   key=lambda each: each.spawned, default=None)

    def scope_of(self, record):
        """Returns the scope that a record is about: the one of the name that was opened last before then."""
        acquired, worker, name = record.integer("acquired_mono_ns"), self.worker_of(record), record.text("scope")
        found = None
        for scope in self.scopes:
            opened = scope.open
            if scope.worker is worker and scope.name == name and opened.begin <= acquired + CLOSE:
                if opened.begin <= acquired <= opened.end < NEVER:
                    return scope
                if found is None or found.open.begin < opened.begin:
                    found = scope
        return found

    def read_logs(self):
        starts = collections.Counter()  # by pid of the server
        for record in self.records:
            event = record.text("event")
            if event == "server_started":
                pid = record.integer("server_pid")
                starts[pid] += 1
                if starts[pid] > max(sum(server.pid == pid for server in self.servers), 1):
                    self.report("server-life", f"pid {pid}", f"a second start of a server, in {record.place}")
            elif event in ("expired", "killed", "released_late"):
                verdict = self.verdicts[record.text("id")]
                verdict.worker = self.worker_of(record)
                setattr(verdict, event, record)
            elif event == "rejected":
                self.rejected_pids.add(record.integer("pid"))
                if record.integer("count") > 1:
                    self.several_rejected_at = max(self.several_rejected_at, record.integer("mono_ns"))
            elif event == "warned" and "acquired_mono_ns" in record and "signal" in record:
                if scope := self.scope_of(record):
                    scope.was_signalled = True
            if event in ("expired", "left_open"):
                self.read_verdict(event, record)
        for server in self.servers:
            is_removed = server.log and any(server.log in what for what in self.files)
            if is_removed or (server.ready < NEVER and server.pid not in starts):
                self.may_lack_records = True

    def read_verdict(self, event, record):
        scope = self.scope_of(record)
        if scope is None:
            if record.text("scope") != "(idle)":
                process = self.worker_of(record)
                self.report("known-scopes", process.name if process else f"pid {record.integer('pid')}",
                            f"{event} of scope '{record.text('scope')}', which it has not opened, in {record.place}")
            return
        before = scope.left_open[-1:] if event == "left_open" else []
        if before and any(server.was_killed and server.pid == before[0].integer("server_pid")
                          for server in self.servers):
            scope.left_open.pop()
        (scope.expired if event == "expired" else scope.left_open).append(record)

    # What several rules ask

    def is_below(self, process, ancestor):
        while process is not None and process is not ancestor:
            process = self.processes.get(process.parent)
        return process is not None

    def prompt(self, since):
        is_under_load = any(load.begin < since + PROMPT_UNDER_LOAD and since < load.end for load in self.loads)
        return PROMPT_UNDER_LOAD if is_under_load else self.prompt_ns

    @staticmethod
    def timeout_at(scope, judged):
        """Returns the earliest and the latest deadline that the worker's calls before `judged` allow, without what is
        given back, and the timeout. NEVER, NEVER: it has none."""
        timeout = scope.open.line.integer("timeout_ns", NEVER)
        earliest, latest = after(scope.open.begin, timeout), after(scope.open.end, timeout)
        left, is_paused = 0, False
        for op, call in scope.changes:
            if not call.ok or call.begin > judged or (op != "renew" and (op == "pause") == is_paused):
                continue  # without effect
            is_done = call.end <= judged  # else it may have had its effect, or not
            now = call.line.integer("timeout_ns", timeout) if is_done else timeout
            if op == "renew" and is_paused:
                left = now
            elif op == "renew":
                renewed = after(call.begin, now)
                earliest = renewed if is_done else min(earliest, renewed)
                latest = after(call.end, max(now, timeout))
            elif op == "pause":
                left = max(earliest - call.end, 0) if earliest < NEVER else left
                earliest, latest = NEVER if is_done else earliest, NEVER
                is_paused = True
            else:
                earliest, latest = after(call.begin, left) if is_done else NEVER, after(call.end, timeout)
                is_paused = False
            timeout = now
        return earliest, latest, timeout

    def has_ended_in_order_after(self, at):
        return any(server.ready < NEVER and not server.was_killed and not server.sent and server.ended < NEVER and
                   at + LOOK < server.asked_to_end < NEVER for server in self.servers)

    def with_server(self, scope, due, timeout):
        """Moves a deadline to when the server of the scope runs, with the time that it gives back."""
        up = NEVER
        # The server gives the time since its last look, which was at most a quarter of a timeout ago. PyTorch's lines
        # have a deadline only: how long one has waited for the server is not known.
        has_own_timeout = scope.via != "torch" or timeout == 0
        for server in self.servers:
            if server.ready >= NEVER:
                continue
            at = max(due, server.ready)
            for halt in server.halts:
                if halt.may_begin >= at + PROMPT:
                    continue
                length = halt.may_end - halt.may_begin
                if has_own_timeout:
                    given = min(length + timeout // 4, timeout)
                else:
                    given = min(max(halt.may_end - server.ready, length), max(length, DEFAULT_INTERVAL))
                at = NEVER if halt.may_end >= NEVER else max(at, halt.may_end) + given
            if at + 2 * self.prompt(at) < min(server.asked_to_end, server.alive_until):
                up = min(up, at)
        return up

    def is_known_until_end(self, worker, removed):
        """Returns whether a server had a page that was removed, and had it until its worker's end."""
        return any(server.ready < removed and server.ended > worker.ended for server in self.servers)

    # The rules

    def judge_scope(self, scope):
        for expired in scope.expired:
            self.judge_expired(scope, expired)
        verdicts = scope.expired + scope.left_open
        if len(verdicts) > 1:
            self.report("one-verdict", scope.whose(), f"{len(verdicts)} verdicts, the last in {verdicts[-1].place}")
        if scope.release and scope.release.ok and scope.release.result is not None:
            self.judge_release(scope, verdicts)
        if scope.left_open and scope.worker.left(scope.open.begin) == NEVER == scope.worker.ended:
            self.report("one-verdict", scope.whose(),
                        f"left open by a worker that is alive, in {scope.left_open[0].place}")
        if not verdicts:
            self.judge_lack_of_verdict(scope)
        self.judge_hang(scope)

    def judge_release(self, scope, verdicts):
        released = scope.release.end
        for verdict in verdicts[:1]:
            if scope.in_time(False) or released < verdict.integer("deadline_mono_ns", NEVER):
                self.report("released-in-time", scope.whose(),
                            f"released in time, but {verdict.text('event')} in {verdict.place}")
        if scope.in_time(True) or self.may_lack_records:
            return
        # A server that is killed may have given the verdict without recording it.
        lost_its_server = any(server.was_killed and scope.open.begin < server.asked_to_end < released
                              for server in self.servers)
        is_raised = "raise" in scope.open.line and scope.was_signalled
        if not scope.expired and not is_raised and scope.may_be_watched and not lost_its_server and \
                self.history_end - released > self.prompt(released):
            self.report("one-verdict", scope.whose(), "its release says that it was late, and there is no verdict")
        for expired in scope.expired[:1]:
            verdict = self.verdicts[expired.text("id")]
            if verdict.is_spared() and verdict.is_of_one_server() and not verdict.signals() and \
                    released + TURN < verdict.killed.integer("mono_ns") and verdict.released_late is None:
                self.report("one-to-one", scope.whose(), f"{expired.text('id')} has no released_late")

    def judge_lack_of_verdict(self, scope):
        worker = scope.worker
        was_refused = scope.via != "page" and (self.several_rejected_at > scope.open.begin or
                                               worker.pid in self.rejected_pids)
        may_be_cancelled = any(
            verdict.expired is not None and (not verdict.is_of_one_server() or verdict.signals() or verdict.cancelled())
            for verdict in self.verdicts_of[worker.name])
        is_decided = scope.release or was_refused or scope.open.result is None or may_be_cancelled
        if not is_decided and scope.may_be_watched and worker.ended < NEVER and scope.via != "run" and \
                not self.may_lack_records and self.was_watched(worker) and \
                (self.with_server(scope, worker.ended, 0) + PROMPT < self.history_end or
                 self.has_ended_in_order_after(worker.ended)):
            self.report("one-verdict", scope.whose(), "its worker ended inside it, and there is no record")

    def was_watched(self, worker):
        """Else its client has removed its page, of which no server knew, when the worker exited."""
        first = worker.calls[0].end if worker.calls else worker.ended

        def may_lack_page(server, removed):
            # A page that is removed is known to the server that had it, until that one ends, and to a later one once
            # its worker has made it again.
            if worker.ended <= removed:  # then no server may have run that finds the page
                return not self.is_known_until_end(worker, removed)
            return first < removed < worker.ended and (
                server.alive_until < worker.ended or removed < server.ready and worker.ended < server.ready + LOOK)

        return any(
            server.ready < worker.ended and (not worker.calls or server.alive_until > first + LOOK) and
            not any(halt.may_begin < first and worker.ended < halt.may_end + LOOK for halt in server.halts) and
            not any(may_lack_page(server, removed) for removed in self.removals_of_pages)
            for server in self.servers)

    def judge_terms(self, scope, record):
        """The timeout is one that the worker asked for, or that the settings put in its place. Returns whether they
        did."""
        settings, granted = record.run.settings, record.number("timeout_s", 0)

        def is_near(limit):
            return abs(granted - limit) * 1e9 <= CLOSE

        is_replaced = scope.via == "torch" or "code_timeout_s" in record or \
            is_near(settings.number("max_timeout_s")) or is_near(settings.number("default_timeout_s"))
        lines = [scope.open.line, *(call.line for _, call in scope.changes)]
        if not is_replaced and not any(is_near(line.integer("timeout_ns") / 1e9) for line in lines):
            self.report("record-terms", scope.whose(),
                        f"timeout_s is {granted}, for which it has not asked, in {record.place}")
        return is_replaced

    def judge_expired(self, scope, expired):
        worker, opened = scope.worker, scope.open
        judged = when_judged(expired)
        earliest, _, timeout = self.timeout_at(scope, judged)
        earliest = after(earliest, scope.grace_before_due)
        is_cut = self.judge_terms(scope, expired)

        def fail(promise, what):
            self.report(promise, scope.whose(), f"{what}, in {expired.place}")

        terms = {"grace_ns": nanos(expired.number("grace_s", 0))}
        if scope.grace_before_due == 0:  # else another signal was sent before
            terms["signal"] = expired.integer("signal")
        for term, recorded in terms.items():
            asked = opened.line.integer(term, recorded)
            if asked != recorded:
                fail("record-terms", f"{term} is {recorded}, it asked for {asked}")
        acquired = expired.integer("acquired_mono_ns")
        has_moved = any(call.begin <= acquired <= call.end for _, call in scope.changes)  # to a new page
        if scope.via == "page" and acquired > opened.end + CLOSE and not has_moved:
            fail("record-terms", "acquired_mono_ns is not within its open()")
        if not is_cut and earliest > judged + CLOSE and scope.via != "torch":
            fail("not-early", "it has no deadline" if earliest >= NEVER else
                 f"judged {(earliest - judged) // 1_000_000} ms before its deadline")
            return
        # While the worker is being killed, the server does not look for lost time.
        if any(verdict.killed is not None and verdict.killed.text("verdict") == "unkillable" and
               opened.begin < verdict.killed.integer("mono_ns") <= judged
               for verdict in self.verdicts_of[worker.name]):
            return
        self.judge_missed_time(scope, expired, judged, earliest, timeout, fail)
        is_of_program = scope.via not in ("pipe", "torch")
        if worker.ended < expired.integer("deadline_mono_ns") or \
                is_of_program and worker.left(opened.begin) < min(earliest, judged) - PROMPT:
            fail("not-early", "its worker had exited, or ran another program, before the deadline")

    def judge_missed_time(self, scope, expired, judged, due, timeout, fail):
        """The server and the worker could run for three quarters of the timeout."""
        length = min(timeout, nanos(expired.number("timeout_s")))
        since = min(due - timeout, judged) if judged >= length and due < NEVER else scope.open.begin
        halts = []
        ready = 0
        # A sweep finds it.
        interval = LOOK + nanos(expired.run.settings.number("max_interval_s", DEFAULT_INTERVAL / 1e9))
        # A pause between two looks of the server is not noticed. It costs a quarter of the timeout.
        may_lack = unseen = max(length // 4, UNSEEN)
        was_away = False  # at the deadline, or the deadline was moved: it did not see the halt
        for server in self.servers:
            if server.pid != expired.integer("server_pid"):
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
            fail("not-early", f"{used // 1_000_000} ms of {length // 1_000_000} ms could be used: "
                              f"{missed // 1_000_000} ms were missed")

    def due_after_losses(self, scope, due, timeout):
        """Moves a deadline to when its server and its worker run, with the time that the server gives back."""
        def move(due):
            for halt in scope.worker.halts:
                if due >= NEVER or halt.may_begin > due + PROMPT:
                    continue
                if halt.may_end >= NEVER:
                    return NEVER
                # It may have begun a look before it was seen, and ends with one.
                is_from_before_server = any(halt.may_begin < server.ready < halt.may_end for server in self.servers)
                length = halt.may_end - halt.may_begin + max(timeout // 4, UNSEEN)
                due = max(due, halt.may_end + LOOK) + (
                    timeout if is_from_before_server else min(length + LOOK, timeout))
            return due

        before = move(self.with_server(scope, due, 0))
        due = self.with_server(scope, before, timeout) if before < NEVER else before
        return move(due) if due > before else due  # the next server may find the worker halted

    def judge_hang(self, scope):
        """A scope that is open past its deadline has a verdict, and its worker a signal, within a bound."""
        worker = scope.worker
        _, timed_out, timeout = self.timeout_at(scope, NEVER)
        if not scope.may_be_watched or timed_out >= NEVER or timeout >= NEVER:
            return
        # The whole grace period follows the signal, also if both had passed while time was lost.
        grace = scope.grace_before_due
        due = max(self.due_after_losses(scope, after(timed_out, grace), timeout),
                  after(self.due_after_losses(scope, timed_out, timeout), grace))
        # A server does not know whether the one before it has sent the signal.
        due = max([due, *(server.ready + grace for server in self.servers
                          if grace > 0 and timed_out < server.ready < NEVER)])
        # A worker that is being killed is judged again when the kill is over.
        for verdict in self.verdicts_of[worker.name]:
            if verdict.expired is not None and verdict.killed is not None and \
                    verdict.expired.integer("mono_ns") <= due + self.prompt(due):
                due = max(due, verdict.killed.integer("mono_ns"))
                if not scope.expired and scope.name in verdict.cancelled():
                    return
        if due >= NEVER:
            return
        open_until = min(scope.release.begin if scope.release else NEVER, worker.left(scope.open.begin),
                         worker.alive_until, worker.asked_to_end, self.history_end)
        bound = due + self.prompt(due)
        if not scope.expired:
            if open_until > bound and not self.may_lack_records:
                self.report("hang-is-judged", scope.whose(),
                            f"open {(open_until - due) // 1_000_000} ms past its deadline, and not judged")
            return
        expired = scope.expired[0]
        judged = when_judged(expired)
        if judged > bound:
            self.report("hang-is-judged", scope.whose(),
                        f"judged {(judged - due) // 1_000_000} ms past its deadline, in {expired.place}")
        dead = max(judged, due) + nanos(expired.number("grace_s", 0)) + 2 * self.prompt(due)
        # Of scopes that expired together the earliest may have decided, for another signal.
        verdict = self.verdicts[expired.text("id")]
        is_of_another = verdict.is_spared() and verdict.signals()
        must_die = expired.integer("signal") == SIGKILL and not is_of_another or \
            expired.integer("signal") > 0 and "grace_s" in expired
        if must_die and open_until > self.with_server(scope, dead, timeout):
            self.report("hang-is-killed", scope.whose(), f"alive long after its verdict in {expired.place}")

    def judge_targets(self, verdict):
        worker, killed = verdict.worker, verdict.killed
        if worker is None or verdict.expired is None or killed is None:
            return
        for signal in verdict.signals():
            for pid in signal.elements("pids", int):
                target = self.process_of(pid, 0, signal.integer("mono_ns"))
                if target is not None and target.ended > signal.integer("mono_ns") and \
                        not self.is_below(target, worker):
                    self.report("targets", target.name, f"signalled for {worker.name}, in {killed.place}")
        outcome, status, recorded = killed.text("verdict"), worker.status or 0, killed.integer("mono_ns")
        # A server that was killed just then may have sent the signal and not noted it.
        may_lack_signal = any(server.was_killed and server.asked_to_end < worker.ended + TURN and
                              worker.alive_until < server.ended for server in self.servers)
        if outcome == "dead" and status < 0 and -status not in worker.sent and not may_lack_signal and \
                not self.has_sent(-status, worker.pid):
            self.report("outcomes", worker.name, f"it died of signal {-status}, not of one in {killed.place}")
        if outcome in ("dead", "already_gone") and \
                recorded + SECOND < min(worker.alive_until, self.history_end):
            self.report("outcomes", worker.name, f"'{outcome}' in {killed.place}, but it is alive later")
        if outcome == "unkillable" and worker.ended < recorded - SECOND:
            self.report("outcomes", worker.name, f"unkillable in {killed.place}, but it had ended")

    def judge_end(self, process):
        """A process that dies of a signal got it from the driver, or has a record. A process that exits has announced
        it."""
        status = process.status
        if status is None:
            return
        if process.role == "server":
            is_asked = process.asked_to_end < NEVER and (process.was_killed or process.sent or status in (0, 8))
            if not is_asked and process.ready < NEVER:
                self.report("server-lives", process.name, f"it ended with status {status}")
        elif status > 0:
            if (process.exits or 0) != status and process.role == "worker" and process.calls:
                self.report("worker-unharmed", process.name, f"it exited with {status}, which it did not intend")
        elif status < 0 and -status not in process.sent and process.exits != status:
            # Also the signal of a scope that is signalled first. Or its server was killed before it could write the
            # outcome.
            is_recorded = self.has_sent(0, process.pid) or any(
                record.text("event") == "warned" and record.integer("pid") == process.pid and
                record.integer("signal") == -status for record in self.records) or any(
                verdict.worker is not None and verdict.expired is not None and not verdict.is_of_one_server() and
                verdict.expired.integer("mono_ns") <= process.ended and self.is_below(process, verdict.worker)
                for verdict in self.verdicts.values())
            if process.role == "bystander" or not is_recorded and not self.may_lack_records:
                self.report("death-has-record", process.name, f"a {process.role} died of signal {-status}")

    def judge_call(self, caller, call):
        end = min(call.end, caller.alive_until, caller.left(call.begin), self.history_end)
        halted = sum(max(min(halt.may_end, end) - max(halt.may_begin, call.begin), 0) for halt in caller.halts)
        if end - call.begin - halted > self.prompt(call.begin):
            took_ms = (end - call.begin) // 1_000_000
            self.report("calls-return", caller.name, f"{call.line.text('op')} took {took_ms} ms, in {call.line.place}")

    def judge_records(self):
        counts = collections.Counter()
        deferred = {}  # the last record of a server
        for record in self.records:
            at, event, worker = record.integer("mono_ns"), record.text("event"), self.worker_of(record)
            if event == "incident":
                self.judge_list(record, "open_scopes", at, 0)
            elif event == "server_stopped" and record.integer("left_count") < MOST_LEFT:
                self.judge_list(record, "left", at - SECOND // 100, 0)
            elif event == "expired" and record.elements("open_scopes"):
                self.judge_list(record, "open_scopes", at - TURN, record.integer("pid"))
            if worker is None:
                continue
            if event == "deferred":
                self.judge_deferred(record, worker, at, deferred)
            elif event == "left_open" or (event == "warned" and "acquired_mono_ns" in record):
                if scope := self.scope_of(record):
                    self.judge_terms(scope, record)
                    if event == "warned" and "state" in record and scope.release and scope.release.ok and \
                            scope.release.end + LOOK < at:
                        self.report("record-links", worker.name,
                                    f"evidence of a scope that it has left, in {record.place}")
            elif event == "released_late":
                self.judge_released_late(record)
            elif event == "worker_ended":
                for scope in record.objects("scopes"):
                    counts[worker.name, scope.text("scope")] += scope.integer("count")
        for (worker, name), count in counts.items():
            self.judge_count(self.processes[worker], name, count)

    def judge_deferred(self, record, worker, at, deferred):
        server = record.integer("server_pid")
        if any(verdict.expired is not None and verdict.expired.integer("server_pid") != server
               for verdict in self.verdicts_of[worker.name]):
            return  # it was stopped to be killed, by a server that was killed
        if not any(halt.may_begin <= at <= halt.may_end + LOOK for halt in worker.halts):
            self.report("deferred-has-halt", worker.name, f"deferred while it ran, in {record.place}")
            return
        last = deferred.get((worker.name, server), -NEVER)
        if not any(last < halt.may_begin <= at or last <= halt.may_end <= at for halt in worker.halts):
            self.report("deferred-has-halt", worker.name, f"deferred twice in one halt, in {record.place}")
        deferred[worker.name, server] = at

    def judge_list(self, record, field, since, pid):
        """The record lists all open scopes of the worker, or of all workers with pid 0."""
        if self.files or record.integer("omitted") != 0:
            return
        listed = {(each.integer("pid", pid), each.text("scope")) for each in record.objects(field)}
        until = record.integer("mono_ns") + TURN
        for scope in self.scopes:
            worker = scope.worker
            is_killed = pid == 0 and any(verdict.killed is not None for verdict in self.verdicts_of[worker.name])
            if pid in (0, worker.pid) and not is_killed and (worker.pid, scope.name) not in listed and \
                    self.is_certainly_open(scope, record, since, until):
                self.report("record-links", scope.whose(), f"it is open and not among {field}, in {record.place}")

    def is_certainly_open(self, scope, record, since, until):
        """Returns whether the server of the record knew the scope to be open in all that time."""
        worker, pid = scope.worker, record.integer("server_pid")
        started = record.run.started
        return started is not None and started.integer("mono_ns") + LOOK < since and \
            scope.open.end + LOOK < since and scope.may_be_watched and scope.via in ("page", "heartbeat") and \
            not (scope.release and scope.release.begin <= until) and \
            worker.left(scope.open.begin) > until and worker.alive_until > until and \
            not any(expired.integer("deadline_mono_ns") < until for expired in scope.expired) and \
            not any(halt.may_begin < until and scope.open.end < halt.may_end + LOOK
                    for server in self.servers if server.pid == pid for halt in server.halts)

    def judge_released_late(self, record):
        """The release is not recorded earlier than it was."""
        expired = self.verdicts[record.text("id")].expired
        scope = self.scope_of(expired) if expired is not None else None
        if scope is None:
            return
        released = expired.integer("deadline_mono_ns") + nanos(record.number("late_ms"), 1e6)
        at = record.integer("mono_ns")
        has_other_end = scope.worker.left(scope.open.begin) < at or any(call.begin < at for _, call in scope.changes)
        if not has_other_end and (scope.release.begin if scope.release else NEVER) > released + TURN:
            self.report("record-times", scope.whose(), f"not released until then, in {record.place}")

    def judge_count(self, worker, name, counted):
        """The statistics count the scopes that were released, and each renewal as one more."""
        scopes = [scope for scope in self.scopes if scope.worker is worker and scope.name == name]
        if not scopes or worker.has_started_another or any(scope.via != "page" for scope in scopes):
            return
        in_time = all_ends = 0
        for scope in scopes:
            # A renewal that comes after the verdict ends its scope.
            is_ended = any(not call.ok or call.result is None for _, call in scope.changes)
            all_ends += bool(scope.release or is_ended) + sum(op == "renew" and call.ok for op, call in scope.changes)
            has_lost_page = any(removed > scope.open.begin and not self.is_known_until_end(worker, removed)
                                for removed in self.removals_of_pages)
            in_time += bool(scope.release and scope.release.result is not None and scope.in_time(False) and
                            not has_lost_page)
        if not in_time <= counted <= all_ends:
            self.report("counts", worker.name,
                        f"worker_ended counts {counted} scopes '{name}', it released {all_ends}")
