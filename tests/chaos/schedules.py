# SPDX-License-Identifier: MIT
"""Random schedules: Hypothesis draws a list of steps, a world carries them out, and if its histories do not
hold, Hypothesis looks for the shortest list that still fails. A schedule is plain JSON, and any part of
it is a schedule: a step that does not apply (no such worker, no open scope) does nothing.
"""
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import time

from hypothesis import Phase, Verbosity, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from world import BOUND_S, WORKER_KINDS, Bound, Gone, Skip, World, stat_of, wait_until

OF_A_SEED = 12  # schedules
WORKERS, SCOPES = 8, 8  # at most, of a world beside its first ones, and of a worker
ADDR_NO_RANDOMIZE = 0x0040000  # a personality
UNWATCHED = "hang-is-judged one-verdict record-links"  # promises that do not hold of a scope that is not watched
STORM = 30  # children of a fork storm
STOPPED_S = 0.5  # for the answer of a worker that may be stopped
SETTLE_S = 3  # beyond all timeouts, for hung workers to die
SHRINK_S = 120  # for the shortest schedule
NAMESPACES = ("pid", "mount", "cgroup")  # of workers
TIMEOUTS_MS = (300, 150, 600, 1000, 2000)
WAITS_MS = (20, 100, 50, 300, 200, 700, 1300)
GRACES_MS = (100, 300, 1000)
EVIDENCE = ("stacks", "none", "proc")
LOG_MAX = ("64M", "16K")
REQUESTS = (("ping",), ("status", "--json"), ("list", "--json"), ("list", "--stats"), ("dump",), ("log",),
            ("drain",), ("drain", "--off"), ("rendezvous", "--rank", "0", "--world", "2", "--timeout", "0.3"),
            ("show", "last"))

first_workers, pace = 1, 1  # of a world, and of its waits; a long run has more workers, which sleep longer
skipped = set()  # kinds of adversity that this machine cannot do, and why
counts = {"schedules": 0, "scopes": 0, "killed": 0, "server_kills": 0, "starts": 0}


# To which processes a step applies: workers of these kinds (and an open scope of them), or a live server.
CLIENTS = tuple(each for each in WORKER_KINDS if each != "run")
PLAIN = {"storm": {"count": STORM}, "fill_stderr": {}, "threads": {"count": 20}}  # commands with these words
OF_SCOPE = ("release", "renew", "pause", "resume")
OF_WORKER = {"open": CLIENTS, "exec": CLIENTS, "storm": tuple(each for each in CLIENTS if each != "python")} | dict.fromkeys(
    (*OF_SCOPE, "fork", "exit", "crash", "close_fds", "fill_stderr", "threads", "reuse", "halt", "glance"), WORKER_KINDS)
OF_SERVER = ("kill_server", "stop_server", "second_server", "ask", "rotate", "halt_server", "clock")
WHILE_RUNNING = ("fork", "exec", "exit", "reuse", "halt", "glance", "ask", "halt_server", "clock")


class TimeIsUp(BaseException):
    """Not an Exception, so that Hypothesis does not take it for a result of the schedule."""


# What is drawn

def number(most):
    return st.integers(0, most)


def step(name, *arguments):
    return st.tuples(st.just(name), *arguments).map(list)


WHO = number(WORKERS - 1)
KEY = number(SCOPES - 1)
HOW = st.sampled_from(("stop", "freeze", "trace"))
WAIT = step("wait", st.sampled_from(WAITS_MS))
WORKER = step("worker", st.sampled_from((*WORKER_KINDS, *NAMESPACES, "no_aslr", "idle")), st.sampled_from(TIMEOUTS_MS))
OPEN = step("open", WHO, st.sampled_from(TIMEOUTS_MS), st.sampled_from(
    ("plain", "term", "caught", "leaves", "stays", "endless", "other", "thread_end")), st.sampled_from(GRACES_MS))
CLOSE = step("release", WHO, KEY)
SCOPE = st.one_of(OPEN, CLOSE, step("renew", WHO, KEY, st.sampled_from(TIMEOUTS_MS)), step("pause", WHO, KEY),
                  step("resume", WHO, KEY))
PROCESS = st.one_of(step("fork", WHO), step("exec", WHO), step("exit", WHO), step("crash", WHO),
                    step("close_fds", WHO), step("fill_stderr", WHO), step("threads", WHO), step("storm", WHO),
                    step("reuse", WHO), step("bystander"))
SERVER = st.one_of(step("kill_server"), step("restart"), step("stop_server"), step("second_server"),
                   step("ask", st.sampled_from(REQUESTS)), step("rotate"))
HALT = st.one_of(step("halt", WHO, HOW), step("halt_server", HOW), step("halt_all", HOW), step("continue"),
                 step("glance", WHO))
FILES = st.one_of(step("cut", st.sampled_from(("page", "server"))), step("remove", st.sampled_from(
    ("requests", "server", "page", "scopes", "directory"))), step("move_log"), step("fill_log"), step("hang_log"),
    step("empty_log"), step("clock", st.sampled_from((-3600, 3600))))
EPISODES = st.one_of(
    st.just(()), st.tuples(OPEN, WAIT), st.tuples(OPEN, WAIT, CLOSE), st.lists(SCOPE, max_size=6).map(tuple),
    st.tuples(WORKER, OPEN), st.tuples(WORKER, OPEN, OPEN, WAIT), st.tuples(PROCESS, WAIT), st.tuples(SERVER, WAIT),
    st.tuples(HALT, WAIT, step("continue")), st.tuples(HALT, OPEN, WAIT), st.tuples(FILES, WAIT),
    st.tuples(step("kill_server"), SCOPE, WAIT, step("restart")))
SETUP = st.fixed_dictionaries({
    "evidence": st.sampled_from(EVIDENCE), "log_max": st.sampled_from(LOG_MAX),
    "preload": st.sampled_from(("", "disk", "clock")), "log": st.sampled_from(("file", "tmpfs")),
    "stderr": st.sampled_from(("file", "full", "closed"))})
# A list that is shrunk becomes one of empty episodes.
SCHEDULES = st.tuples(SETUP, st.lists(EPISODES, min_size=10, max_size=16).map(
    lambda episodes: [each for episode in episodes for each in episode]))


# What is done

class Run:
    """One world that carries out a schedule."""

    def __init__(self):
        self.world = World()
        self.server = None
        self.open = {}  # by worker: key -> its timeout; None: its end is not expected
        self.keys = 0
        self.on_pipe, self.paused = set(), set()  # keys
        self.lines = {}  # when a worker wrote into the pipe last
        self.latest = 0.0  # the latest deadline of all
        self.is_draining = False

    def carry_out(self, setup, steps):
        self.start(setup)
        for number in range(first_workers):
            self.step_worker(WORKER_KINDS[number % (len(WORKER_KINDS) - 1)], 0)
        for step in steps:
            with contextlib.suppress(Gone):
                try:
                    self.take(*step)
                except Skip as reason:
                    note_skip(step[0], reason)
        self.settle()

    def take(self, name, *arguments):
        """Carries out a step, with the worker and the key that its numbers stand for, if it applies now."""
        if name in OF_SERVER and (not self.server.is_alive or (self.server.halts and name in WHILE_RUNNING)):
            return
        if name in OF_WORKER:
            worker = self.worker(arguments[0], OF_WORKER[name])
            if worker is None or (worker.halts and name in WHILE_RUNNING):
                return
            arguments = (worker, *arguments[1:])
        if name in OF_SCOPE:
            keys = list(self.open[worker.name])
            if not keys:
                return
            arguments = (worker, keys[arguments[1] % len(keys)], *arguments[2:])
        if name in PLAIN:
            self.tell(worker, name, **PLAIN[name])
        elif name in ("exit", "halt"):
            getattr(worker, name)(*arguments[1:])
        else:
            getattr(self, "step_" + name)(*arguments)

    def start(self, setup):
        world = self.world
        world.log = world.folder / "logs" / "log.jsonl"
        world.log.parent.mkdir()
        if setup["log"] == "tmpfs":
            try:
                world.log = world.tmpfs("256k") / "log.jsonl"
            except Skip as reason:
                note_skip("tmpfs", reason)
        environment = {}
        self.clock = {}
        if setup["preload"] == "disk":
            environment = {"LD_PRELOAD": world.library_to_preload("libfiletimer_bad_disk.so"),
                           "BAD_DISK_HANGS": world.folder / "hangs"}
        elif setup["preload"] == "clock":
            environment = {"LD_PRELOAD": world.library_to_preload("libfiletimer_clock_step.so"),
                           "CLOCK_STEP": world.folder / "step"}
            self.clock = environment  # the wall clock of a machine is one: workers see its steps, too
        self.trouble = None
        self.removed_at = -BOUND_S  # when the directory was
        self.setup = setup
        self.server = world.server("--evidence", setup["evidence"], "--log-max", setup["log_max"], "--grace", "500ms",
                                   "--max-interval", "2s", env=environment, stderr=setup["stderr"])

    def worker(self, index, kinds=WORKER_KINDS):
        """Returns a live worker of these kinds, or None."""
        live = [each for each in self.world.workers if each.is_alive and each.kind in kinds]
        return live[index % len(live)] if live else None

    def is_served(self):
        return self.server.is_alive and not self.server.halts

    def tell(self, worker, op, **words):
        """Has a worker carry it out. One that is halted does so later; so does one that a server has stopped
        which itself was halted or killed before it could send a signal."""
        worker.post(op, **words)
        try:
            if worker.halts:
                return None
            if self.is_served():
                return worker.answers()
            with contextlib.suppress(Bound):
                return worker.answers(STOPPED_S)
        finally:
            if words.get("key") in self.on_pipe:  # a worker that waits for a processor writes late
                self.lines[worker.name] = time.monotonic()

    # Workers

    def step_worker(self, kind, timeout_ms):
        # A server that is halted does not make its pipe again, without which run starts nothing.
        may_run = self.server.is_alive and (not self.server.halts or (self.world.dir / "requests").exists())
        if len(self.world.workers) >= WORKERS + first_workers or (kind == "run" and not may_run):
            return
        words = {"no_aslr": {"prefix": ("setarch", "-R")}, "idle": {"idle_ms": timeout_ms},
                 "run": {"timeout_ms": max(TIMEOUTS_MS)},  # COMMAND has to say its name before
                 **{name: {"namespaces": (name,)} for name in NAMESPACES}}.get(kind, {})
        worker = self.world.worker(kind if kind in WORKER_KINDS else "cpp", env=self.clock, **words)
        if kind == "run":
            self.expect_deadline(words["timeout_ms"])
            self.lines[worker.name] = time.monotonic()
        self.open[worker.name] = {}

    def step_open(self, worker, timeout_ms, how, grace_ms):
        if len(self.open[worker.name]) >= SCOPES:
            return
        self.keys += 1
        key = f"k{self.keys}"
        via = {"cpp": "page", "python": "page"}.get(worker.kind, worker.kind)
        if how == "other" and worker.kind == "cpp" and worker.popen:
            via = "pipe"
        if via in ("pipe", "torch") and self.is_draining:
            return  # the server refuses lines
        words = {"term": {"signal": 15}, "caught": {"signal": 15}, "leaves": {"signal": 12, "spare": True, "leave": True},
                 "stays": {"signal": 10, "spare": True}, "thread_end": {"thread_end": True}}.get(how, {})
        if worker.kind == "python":
            words = {"leaves": {"raise": True}, "stays": {"thread": True}, "thread_end": {"generator": True},
                     "other": {"task": True}}.get(how, {"signal": 15} if how == "term" else {})
        elif how == "caught" or how == "stays":
            self.tell(worker, "catch", signal=words["signal"])
        if worker.kind == "torch":  # whose lines have a signal, and no grace period
            words = {"signal": words["signal"]} if "signal" in words else {}
        elif words:
            words["grace_ms"] = grace_ms
        if how == "endless":
            timeout_ms = None
        else:
            self.expect_deadline(timeout_ms + grace_ms)
        if via in ("pipe", "torch"):
            self.on_pipe.add(key)
        self.open[worker.name][key] = None if "leave" in words or "raise" in words else timeout_ms
        end = self.tell(worker, "open", key=key, scope=key if key in self.on_pipe else f"scope{self.keys % 3}",
                        timeout_ms=timeout_ms, via=via, **words)
        if end and not end.get("watched", end["ok"]):
            self.open[worker.name][key] = None

    def expect_deadline(self, ms):
        self.latest = max(self.latest, time.monotonic() + ms / 1000)

    def step_release(self, worker, key):
        del self.open[worker.name][key]
        self.tell(worker, "release", key=key)

    def step_renew(self, worker, key, timeout_ms):
        if key not in self.on_pipe:  # there it would be another scope of the same name
            self.tell(worker, "renew", key=key, timeout_ms=None if worker.kind == "heartbeat" else timeout_ms)
            self.expect_deadline(max(TIMEOUTS_MS))

    def step_pause(self, worker, key):
        if key not in self.on_pipe:
            self.open[worker.name][key] = None
            self.paused.add(key)
            self.tell(worker, "pause", key=key)

    def step_resume(self, worker, key):
        if key in self.paused:
            self.paused.remove(key)
            self.tell(worker, "resume", key=key)

    def step_fork(self, worker):
        if len(self.world.workers) < WORKERS + first_workers:
            child = worker.fork()
            self.world.workers.append(child)
            self.open[child.name] = {}

    def step_exec(self, worker):
        self.open[worker.name] = {}
        worker.exec(no_aslr=worker.kind != "python")
        if worker.kind in ("cpp", "heartbeat", "python"):
            worker.do("connect")

    def step_crash(self, worker):
        worker.kill()
        if not worker.halts:
            worker.wait()

    def step_close_fds(self, worker):
        if self.is_served():
            self.world.ask("ping")  # then it has read the page
        else:
            self.world.excuse(UNWATCHED, "the lock of its page is lost before a server has read it",
                              subject=worker.name)
        with contextlib.suppress(OSError):  # it has ended
            if int(pathlib.Path(f"/proc/{worker.pid}/personality").read_text(), 16) & ADDR_NO_RANDOMIZE:
                self.world.excuse(f"{UNWATCHED} released-in-time",
                                  "without address randomisation a lost lock means an exec", subject=worker.name)
        self.tell(worker, "close_fds")

    def step_reuse(self, worker):
        """Ends a worker, and starts a process that gets its pid."""
        if not worker.popen:  # its pid is not free at once
            return
        worker.exit()
        wait_until(lambda: worker.status is not None or stat_of(worker.pid) is None, f"{worker.name} is reaped")
        stranger = self.world.bystander(pid=worker.pid)
        if worker.kind == "torch" and worker.name in self.with_unread_lines():
            self.world.excuse("known-scopes death-has-record", "a line that does not say when it was written",
                              subject=stranger.name)

    def step_bystander(self):
        self.world.bystander()

    # The server

    def step_kill_server(self):
        self.excuse_losses()
        self.server.kill()

    def step_stop_server(self):
        self.excuse_losses()
        if self.trouble is not None:
            self.world.excuse("signals", "no record says that the server ended, and shortened its grace periods")
        self.server.stop()

    def step_restart(self):
        self.take("kill_server")
        self.is_draining = False
        self.server = self.server.restart()

    def with_unread_lines(self):
        """Returns the names of workers whose lines the server may not have read."""
        names = [name for name, written in self.lines.items() if time.monotonic() < written + BOUND_S]
        if names and self.is_served():
            self.world.ask("ping")  # then it has read them
            return []
        return names

    def excuse_losses(self):
        """Says what is lost with the server: unread lines (docs/design.md), and records if the log fails."""
        for name in self.with_unread_lines():
            self.world.excuse("released-in-time not-early record-terms one-verdict hang-is-judged",
                              "a line was not read yet", subject=name)
        if self.trouble is not None:
            self.world.excuse("death-has-record one-to-one one-verdict hang-is-judged",
                              "the server ended while its log could not be written")
        if time.monotonic() < self.removed_at + BOUND_S:
            self.world.excuse("one-to-one", "the files of kills were removed before the server ended")

    def step_second_server(self):
        second = self.world.server(log=self.world.folder / "second.jsonl", is_ready=False)
        second.may_end = True
        wait_until(lambda: not second.is_alive or second.is_ready(), f"{second.name} ends or is ready")
        if second.is_alive:  # the first one's directory was removed
            second.stop()

    def step_ask(self, words):
        self.is_draining = self.is_draining or list(words) == ["drain"]
        self.world.ask(*words, *(() if words[0] in ("log", "show", "list") else ("--rpc-timeout", "2s")))

    def step_rotate(self):
        self.server.send(signal.SIGHUP)

    # Halts

    def step_halt_server(self, how):
        self.server.halt(how)

    def step_halt_all(self, how):
        processes = [each for each in (self.server, *self.world.workers) if each.is_alive and not each.halts]
        if processes and how != "trace":
            self.world.halt(*processes, how=how)

    def step_glance(self, worker):
        worker.halt("trace")
        worker.resume()

    def step_continue(self):
        self.world.resume(*self.world.processes)
        self.lines = dict.fromkeys(self.lines, time.monotonic())  # some were posted to halted workers
        for worker in self.world.workers:
            if worker.is_alive:
                with contextlib.suppress(Gone, *([] if self.server.is_alive else [Bound])):
                    worker.answers(BOUND_S if self.server.is_alive else STOPPED_S)

    def step_wait(self, ms):
        time.sleep(pace * ms / 1000)

    # Files

    def step_cut(self, what):
        path = self.page() if what == "page" else self.world.dir / what
        if path and path.exists():
            self.world.files(f"{path} is truncated")
            for worker in self.world.workers:
                if path.name.startswith(f"{worker.pid}-"):
                    self.world.excuse(UNWATCHED, "scopes on a page that was cut are not watched", subject=worker.name)
            os.truncate(path, 0)

    def step_remove(self, what):
        path = {"page": self.page(), "directory": self.world.dir}.get(what, self.world.dir / what)
        if path is None or not path.exists():
            return
        self.world.files(f"{path} is removed", removes_pages=what in ("page", "scopes", "directory"))
        if path.is_dir():
            self.removed_at = time.monotonic()
            if not self.server.is_alive:
                self.world.excuse("one-to-one", "the files of kills were removed while no server ran")
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def step_move_log(self):
        moved = self.world.log.with_name("log.jsonl.1")
        if self.world.log.exists() and not moved.exists() and self.setup["log_max"] == LOG_MAX[0]:
            self.world.log.rename(moved)

    def page(self):
        pages = sorted(each for each in self.world.dir.glob("scopes/*-*") if each.is_file())
        return pages[0] if pages else None

    def step_fill_log(self):
        if self.trouble is None and self.world.mounts:
            self.trouble = self.world.history.begin("log_trouble", what="full")
            self.world.fill(self.world.log.parent)

    def step_hang_log(self):
        if self.setup["preload"] == "disk" and self.trouble is None:
            self.trouble = self.world.history.begin("log_trouble", what="hung")
            (self.world.folder / "hangs").touch()

    def step_empty_log(self):
        if self.trouble is not None:
            (self.world.log.parent / "filler").unlink(missing_ok=True)
            (self.world.folder / "hangs").unlink(missing_ok=True)
            self.world.history.end(self.trouble)
            self.trouble = None

    def step_clock(self, seconds):
        if self.clock:
            self.world.ask("ping")  # no line is under way, which would have the time before the step
            (self.world.folder / "step").write_text(str(seconds))

    # The end

    def settle(self):
        """Everything runs again, a server too; then all hung workers die, and the others exit."""
        self.step_empty_log()
        self.step_continue()
        if not self.server.is_alive:
            self.step_restart()
        for worker in self.world.workers[::2]:
            for key in list(self.open[worker.name]) if worker.is_alive else []:
                with contextlib.suppress(Gone, Bound):
                    worker.do("release", key=key)
                    del self.open[worker.name][key]
        self.expect_deadline(0)

        def hung():
            return [each for each in self.world.workers if each.is_alive and any(self.open[each.name].values())]
        while hung() and time.monotonic() < self.latest + SETTLE_S:
            time.sleep(0.02)


def note_skip(kind, reason):
    if kind not in skipped:
        skipped.add(kind)
        print(f"skipped: {kind}: {reason}", flush=True)


def carry_out(schedule):
    """Returns the world, which has ended, and its violations."""
    run = Run()
    violations = run.world.judge(lambda _: run.carry_out(*schedule))
    counts["schedules"] += 1
    counts["scopes"] += run.keys
    counts["killed"] += len(run.world.records("killed", verdict="dead"))
    counts["server_kills"] += sum(each.status == -signal.SIGKILL for each in run.world.servers)
    counts["starts"] += len(run.world.servers)
    return run.world, violations


def shortest_failure(number, until):
    """Carries out the schedules of a seed one after the other until one fails, which is shrunk. Returns None, or world,
    violations and schedule of the shortest one that failed."""
    shortest = None

    def fails(schedule):
        nonlocal until, shortest
        if time.monotonic() > until:
            raise TimeIsUp
        world, violations = carry_out(schedule)
        if violations:
            until = until if shortest else time.monotonic() + SHRINK_S
            if not shortest or len(json.dumps(schedule)) < len(json.dumps(shortest[2])):
                world.keep()
                world, shortest = shortest and shortest[0], (world, violations, schedule)
        if world:
            world.remove()
        return bool(violations)

    try:
        find(SCHEDULES, fails, random=random.Random(number), settings=settings(
            max_examples=OF_A_SEED, database=None, deadline=None, verbosity=Verbosity.quiet,
            phases=(Phase.generate, Phase.shrink)))
    except (NoSuchExample, TimeIsUp):
        pass
    except Exception:
        # Perhaps the complaint that it failed only once: no seed decides what runs at the same moment.
        if not shortest:
            raise
    return shortest
