# SPDX-License-Identifier: MIT
"""What a release leaves on disk (tests/compat/VERSION) is read by today's programs, and programs of two
versions work together: those of $FILETIMER_OLD (see tests/compat/run), else this build in both roles.

With FILETIMER_UPDATE_COMPAT=1 the cases of Make write the bytes of this version; once for each release.
A mapped file is kept as text: "size N"; "moment N", when it was copied, in ns of CLOCK_MONOTONIC; "OFFSET: HEX",
up to 32 bytes of which one is not zero; "KIND OFFSET", a field that is replaced: boot, namespace, uid, pid and
start_time by those of a living process, and a time by one that is as long before now. Of lines, records and
stages, which are kept as they are, restored_text() replaces the keys with such values.
"""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time
import uuid

import filetimer
import suite
from harness import CLIENT, FAR_S, SERVER, ServerCase
from records import wait_for_record

COMPAT = pathlib.Path(__file__).resolve().parents[1] / "compat"
NEWER = 99  # a version of a layout
NOW_NS = time.clock_gettime_ns(time.CLOCK_MONOTONIC)  # for all restored times, so that equal ones stay equal
AGE_NS = 10_000_000_000  # of restored bytes; the scopes in them that are to expire have 5 s
BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
LINES = """
import fcntl, math
for line in sys.stdin:
    exec(line)
    say("yes")
os._exit(0)
"""


def start_time(pid):
    return int(suite.stat_of(pid)[19])


def moved(value, shift):
    """Returns a time that may be the word of a slot: negative after a verdict; the extremes are no times."""
    return value + shift if 0 < value < 2**63 - 1 else value - shift if -2**62 < value < 0 else value


def restored(path, pid, version=None):
    """Returns the bytes of a mapped file as if they were of this living process."""
    data, fields, shift = bytearray(), [], 0
    for word, rest in (line.split() for line in path.read_text().splitlines()):
        if word == "size":
            data = bytearray(int(rest))
        elif word == "moment":
            shift = NOW_NS - AGE_NS - int(rest)
        elif word.endswith(":"):
            data[int(word[:-1]):int(word[:-1]) + len(rest) // 2] = bytes.fromhex(rest)
        else:
            fields.append((word, int(rest)))
    values = {"boot": ("16s", uuid.UUID(BOOT).bytes), "namespace": ("<Q", os.stat("/proc/self/ns/pid").st_ino),
              "uid": ("<I", os.geteuid()), "pid": ("<i", pid), "start_time": ("<Q", start_time(pid))}
    for kind, at in fields:
        form, value = values[kind] if kind in values else ("<q", moved(*struct.unpack_from("<q", data, at), shift))
        struct.pack_into(form, data, at, value)
    if version:
        struct.pack_into("<I", data, 8, version)
    return bytes(data)


def restored_text(path, pid, like, dir):
    """Returns lines or records as if they were of this living process. like: a mapped file of that moment."""
    shift = NOW_NS - AGE_NS - int(re.search(r"^moment (\d+)$", like.read_text(), re.MULTILINE)[1])
    text = path.read_text()
    for found, instead in (('("(?:pid|tid|x_tid)": ?)[0-9]+', pid), (r'("pids":)\[[0-9,]*\]', f"[{pid}]"),
                           ('("uid":)[0-9]+', os.geteuid()), ('("start_time":)[0-9]+', start_time(pid)),
                           ('("boot_id":)"[^"]*"', f'"{BOOT}"'), ('("dir":)"[^"]*"', json.dumps(dir)),
                           ('("expiration_time": )[0-9.]+', time.time() + FAR_S)):
        text = re.sub(found, rf"\g<1>{instead}", text)
    return re.sub(r'("(?:\w+_mono|mono|judged|acquired|deadline)_ns":)(\d+)',
                  lambda found: f"{found[1]}{int(found[2]) + shift}", text)


class Case(ServerCase):
    options = ("--evidence", "none")

    def setUp(self):
        super().setUp()  # makes the directory
        self.server.close()
        os.remove(self.server.log)

    def start(self, program=SERVER):
        """Starts the next server."""
        self.server = filetimer.Server(*self.options, dir=self.dir, executable=program)
        self.addCleanup(self.server.close)

    def crash(self):
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()

    def stop(self):
        self.server.close()

    def do(self, worker, *lines):
        """Has a worker that runs LINES carry out lines of Python."""
        for line in lines:
            worker.stdin.write(line + "\n")
            worker.stdin.flush()
            self.assertEqual(worker.stdout.readline(), "yes\n", line)

    def worker(self, *lines, **environment):
        worker = self.start_worker(LINES, **environment)
        self.do(worker, *lines)
        return worker

    def acquire(self, name, timeout, program=CLIENT):
        """Returns a process that is in a scope of the pipe."""
        worker = self.worker()
        subprocess.run([program, "acquire", "--scope", name, "--timeout", timeout, "--pid", str(worker.pid), "--dir",
                        self.dir], check=True)
        return worker

    def check_killed(self, worker, scope):
        """Waits for the end of the worker, and checks that it had one verdict."""
        self.assertEqual(worker.wait(suite.BOUND_S), -signal.SIGKILL)
        self.assertEqual(self.record("expired", worker.pid)["scope"], scope)
        self.assertEqual(self.record("killed", worker.pid)["verdict"], "dead")


class Bytes(Case):
    """The subclass of a version has its folder, `kept`. A case puts files in place, and starts a server."""

    def place(self, name, data):
        path = pathlib.Path(self.dir, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return path

    def owner(self, name, version=None):
        """Returns a process that holds the lock of such a page."""
        worker = self.worker()
        made = self.place("scopes/.made", restored(self.kept / name, worker.pid, version))
        self.do(worker, f"made = os.open({str(made)!r}, os.O_RDWR); fcntl.lockf(made, fcntl.LOCK_EX)")
        made.rename(made.with_name(str(worker.pid)))
        return worker

    def of_pipe(self, version=None):
        """Returns a process for which a server keeps such a page."""
        worker = self.worker()
        return worker, self.place(f"scopes/server/{worker.pid}", restored(self.kept / "page-pipe", worker.pid, version))

    def kill_file(self, worker):
        return restored_text(self.kept / "kill.jsonl", worker.pid, self.kept / "page-killed", self.dir)

    def test_pages_are_adopted_and_judged(self):
        self.place("server", restored(self.kept / "status-page", os.getpid()))
        cpp, snake, (pipe, _) = self.owner("page-cpp"), self.owner("page-python"), self.of_pipe()
        early = self.worker("scope = filetimer.Scope(7200, 'early'); scope.acquire()",  # --max-timeout was 1h
                            "assert 3500 < scope.times().remaining <= 3600, scope.times()")
        self.start()
        self.assertEqual(self.record("server_started")["adopted_scopes"], 10)
        self.check_killed(cpp, "forward")
        self.check_killed(pipe, "copy")
        self.assertEqual(self.open_scopes(early.pid), ["early"])
        self.assertEqual(self.open_scopes(snake.pid), ["ask", "beat", "endless", "größe"])
        self.assertEqual({each["rank"] for each in self.listed_scopes(snake.pid)}, {1})
        suite.end(snake)
        self.assertEqual([(each["scope"], each["count"]) for each in self.record("worker_ended", snake.pid)["scopes"]],
                         [("load", 3)])

    def test_a_kill_is_continued(self):
        worker = self.owner("page-killed")
        text = self.kill_file(worker)
        id = re.search(r'"id":"([^"]*)"', text)[1]
        self.place(f"kills/{id}", text.encode())
        self.place("expired.jsonl", re.sub(r'\{"stage".*\n', "", text).encode())
        self.start()
        self.check_killed(worker, "hung")
        killed = self.record("killed")
        self.assertEqual((killed["id"], [each["name"] for each in killed["signals"]]), (id, ["SIGTERM", "SIGKILL"]))
        self.assertEqual(killed.get("job_id"), "8812")  # which the environment of this worker has not

    def test_lines_of_all_forms_are_taken(self):
        self.start()
        worker = self.worker()
        text = restored_text(self.kept / "lines.jsonl", worker.pid, self.kept / "page-cpp", self.dir)
        *lines, page = text.splitlines()
        acquires = [line for line in lines if '"expiration_time": -' not in line]
        for written, scopes in ((acquires, ["other", "ours", "run", "torch"]), (lines, ["other"])):
            pathlib.Path(self.server.fifo).write_text("\n".join(written) + "\n")
            self.client("ping")
            self.assertEqual(self.open_scopes(worker.pid), scopes)
        self.place("scopes/4711-8d2f60c1a5b37e94", b"no page")
        pathlib.Path(self.server.fifo).write_text(page + "\n")
        self.assertIn("page '4711-8d2f60c1a5b37e94': it has 7 bytes", self.record("rejected")["reason"])

    def test_a_log_is_read(self):
        log = self.place("expired.jsonl", (self.kept / "log.jsonl").read_bytes())
        records = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual(len({each["event"] for each in records}), 17)
        self.assertEqual(self.client("log", "--json"), log.read_text())
        self.assertIn("released_late", self.client("log"))
        for record in records:
            if record["event"] in ("expired", "warned"):
                self.assertIn(f"`{record['scope']}`", self.client("show", record["id"]))
        self.client("report", "last", "-o", f"{self.folder}/report.html")
        self.assertIn("exchange", pathlib.Path(self.folder, "report.html").read_text())
        self.assertIn("load", self.client("suggest"))

    def test_newer_layouts_are_refused_and_kept(self):
        worker, (of_pipe, pipe_page), killed = self.owner("page-cpp", NEWER), self.of_pipe(NEWER), self.worker()
        newer = re.sub(r'("judged"),("version":\d+,)?', rf'\1,"version":{NEWER},', self.kill_file(killed))
        kill = self.place("kills/newer", newer.encode())
        before = {path: path.read_bytes() for path in (pipe_page, kill)}
        own = self.place("kills/notes", b"somebody's own\n")
        rests = [self.place("kills/1", b'{"schema":1,"ev'), self.place("kills/2", b'{"stage":"recorded"}\n')]
        server = self.start_worker("os.execv(*sys.argv[1:2], sys.argv[1:])", SERVER, "--dir", self.dir)
        self.assertIn("ready", server.stdout.readline())
        log = os.path.join(self.dir, "expired.jsonl")
        reason = wait_for_record(self, log, "rejected")["reason"]
        self.assertEqual(reason, f"page '{worker.pid}': it is of version {NEWER}: expected 1")
        server.terminate()
        said = server.communicate(timeout=suite.BOUND_S)[1]
        for path in before:
            self.assertRegex(said, f"'{path}'.* is of version {NEWER}: expected 1: left alone")
        self.assertEqual({path: path.read_bytes() for path in before}, before)
        self.assertTrue(os.path.exists(f"{self.dir}/scopes/{worker.pid}"))
        self.assertEqual([each.exists() for each in (own, *rests)], [True, False, False])
        self.assertEqual([each.poll() for each in (worker, of_pipe, killed)], [None] * 3)

    def test_a_newer_status_page_is_refused_and_kept(self):
        page = self.place("server", restored(self.kept / "status-page", os.getpid(), NEWER))
        before = page.read_bytes()
        server = subprocess.run([SERVER, "--dir", self.dir], stderr=subprocess.PIPE, text=True, timeout=suite.BOUND_S)
        self.assertEqual((server.returncode, server.stderr.count("\n")), (1, 1), server.stderr)
        worker = self.worker("with filetimer.expires(60, 'x'): pass")
        for said in (server.stderr, worker.communicate(timeout=suite.BOUND_S)[1]):
            self.assertIn(f"'{page}' is a status page of version {NEWER}: expected version 1", said)
        self.assertEqual(page.read_bytes(), before)


class Programs(Case):
    """Workers of one version under a server of the other, or under one server after the other."""

    def setUp(self):
        super().setUp()
        old = pathlib.Path(os.environ.get("FILETIMER_OLD") or pathlib.Path(SERVER).parent.parent)
        self.old = (old / "bin/timer_server", str(old / "bin/timer_client"),
                    old / "python" if (old / "python/filetimer").exists() else old)
        self.new = (SERVER, CLIENT, pathlib.Path(filetimer.__file__).parent.parent)

    def check(self, workers, *servers, end=None):
        """Hung workers have one verdict each and are killed; healthy ones are not."""
        _, client, package = workers
        environment = {"PYTHONPATH": str(package)}
        enter = "scope = filetimer.Scope({!r}, {!r}); scope.acquire()".format
        self.start(servers[0][0])
        healthy, piped = self.worker(enter(FAR_S, "far"), **environment), self.acquire("far", "1h", client)
        self.do(healthy, f"assert filetimer.__file__.startswith({str(package)!r})")
        hung, hung_piped = self.worker(enter(3, "hung"), **environment), self.acquire("hung", "3s", client)
        for server, _, _ in servers[1:]:
            self.client("ping")
            end()
            self.start(server)
            self.assertGreaterEqual(json.loads(self.client("status", "--json"))["open_scopes"], 2)
        late = self.start_worker("with filetimer.expires(0.2, 'late'): time.sleep(60)", **environment)
        run = subprocess.run([client, "run", "--timeout", "0.2", "--dir", self.dir, "--", "sleep", "60"],
                             timeout=suite.BOUND_S, stderr=subprocess.PIPE)
        self.assertEqual(run.returncode, 124, run.stderr)
        for worker, scope in ((late, "late"), (hung, "hung"), (hung_piped, "hung")):
            self.check_killed(worker, scope)
        self.do(healthy, f"assert scope.renew({FAR_S}) and scope.release()")
        subprocess.run([client, "release", "--scope", "far", "--pid", str(piped.pid), "--dir", self.dir], check=True)
        self.client("ping")
        self.assertEqual(self.open_scopes(healthy.pid) + self.open_scopes(piped.pid), [])
        self.stop()  # the log is written to its end
        self.assertEqual([healthy.poll(), piped.poll(), len(self.records("expired"))], [None, None, 4])

    def test_an_old_server_watches_new_workers(self):
        self.check(self.new, self.old)

    def test_a_new_server_watches_old_workers(self):
        self.check(self.old, self.new)

    def test_a_new_server_follows_a_crash_of_the_old_one(self):
        self.check(self.old, self.old, self.new, end=self.crash)

    def test_an_old_server_follows_a_crash_of_the_new_one(self):
        self.check(self.new, self.new, self.old, end=self.crash)

    def test_a_new_server_follows_the_end_of_the_old_one(self):
        self.check(self.new, self.old, self.new, end=self.stop)

    def test_an_old_server_follows_the_end_of_the_new_one(self):
        self.check(self.old, self.new, self.old, end=self.stop)


def page_fields(data):
    """Returns what belongs to the process of a page, its boot or its time; see docs/protocol.md."""
    slots, statistics = struct.unpack_from("<II", data, 64)
    fields = [("boot", 16), ("pid", 32), ("uid", 36), ("start_time", 40), ("time", 48)]
    for at in range(1024, 1024 + 64 * slots, 64):
        is_free = struct.unpack_from("<q", data, at) == (0,)  # then it has the time of a release
        fields += [("time", at), ("time", at + 8), ("time", at + 16), ("pid", at + 48), *[("time", at + 40)] * is_free]
    for at in range(331_776, 331_776 + 1792 * statistics, 1792):
        fields += [("time", at + 320 + 16 * ended) for ended in range(16)]
    return [(kind, at) for kind, at in fields if kind == "uid" or any(data[at:at + 8])]


class Make(Case):
    """Writes the files of this version."""

    options = ("--max-timeout", "1h", "--default-timeout", "30s", "--warn-at", "0.5", "--grace", "5s",
               "--on-expiry", "true", "--evidence-command", "sleep 0.3; echo 71 C")
    kept = COMPAT / filetimer.__version__

    def setUp(self):
        super().setUp()
        self.start()
        self.kept.mkdir(exist_ok=True)
        self.job = {"FILETIMER_DIR": self.dir, "TORCHELASTIC_RUN_ID": "8812", "LOCAL_RANK": "0"}

    def keep(self, name, path, fields=None):
        data, moment = path.read_bytes(), time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        parts = ((at, data[at:at + 32].rstrip(b"\0")) for at in range(0, len(data), 32))
        lines = [f"size {len(data)}", f"moment {moment}", *(f"{kind} {at}" for kind, at in fields or page_fields(data)),
                 *(f"{at}: {part.hex()}" for at, part in parts if part)]
        (self.kept / name).write_text("\n".join(lines) + "\n")

    def keep_text(self, name, text):
        """Without what only this machine has."""
        text = text.replace(self.folder, "/tmp").replace(str(COMPAT.parents[1]), "/opt")
        text = re.sub(r'"host":"[^"]*"', '"host":"node07"', text)
        (self.kept / name).write_text(re.sub(r'"uid":\d+', '"uid":1000', text))

    def page(self, worker):
        return next(pathlib.Path(self.dir, "scopes").glob(f"{worker.pid}-*"))

    def wait_for(self, text, pattern="expired.jsonl"):
        suite.wait_until(lambda: any(text in path.read_text() for path in pathlib.Path(self.dir).glob(pattern)))

    def test_make_pages(self):
        cpp = subprocess.Popen([os.path.join(os.environ["FILETIMER_BIN_DIR"], "client_worker")], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, env={**os.environ, **self.job, "RANK": "0"})
        self.addCleanup(suite.end, cpp)
        self.assertEqual(cpp.stdout.readline(), "ready\n")
        self.do(cpp, "connect", "open data 1000", "release data", "open epoch 3600000", "open exchange 3600000",
                "pause exchange", "open forward 5000")
        snake = self.worker(
            "filetimer.configure(idle_timeout=7200)",
            "for _ in range(3): filetimer.Scope(60, 'load').__enter__().release()",
            "a = filetimer.Scope(3600, 'größe', signal=signal.SIGTERM, grace=7); a.acquire()",
            "b = filetimer.Scope(math.inf, 'endless', warn_after=3000); b.acquire()",
            "c = filetimer.heartbeat(3600, 'beat', first_timeout=7200); c.__enter__()",
            "d = filetimer.Scope(3600, 'ask', on_expiry='raise', grace=20); d.acquire()", **self.job, RANK="1")
        pipe = self.acquire("epoch", "1h")
        self.client("acquire", "--scope", "copy", "--timeout", "5s", "--pid", str(pipe.pid))
        self.client("ping")
        self.crash()
        self.keep("status-page", pathlib.Path(self.dir, "server"),
                  [("boot", 16), ("pid", 32), ("namespace", 40), ("time", 64)])
        self.keep("page-cpp", self.page(cpp))
        self.keep("page-python", self.page(snake))
        self.keep("page-pipe", pathlib.Path(self.dir, "scopes/server", str(pipe.pid)))

    def test_make_kill(self):
        worker = self.worker("signal.signal(signal.SIGTERM, signal.SIG_IGN)",
                             "a = filetimer.Scope(0.2, 'hung', signal=signal.SIGTERM); a.acquire()", **self.job)
        self.wait_for('"signalled"', "kills/*")
        self.crash()
        self.keep("page-killed", self.page(worker))
        self.keep_text("kill.jsonl", next(pathlib.Path(self.dir, "kills").iterdir()).read_text())

    def test_make_lines(self):
        self.server.close()
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDWR)
        ours = ["--scope", "ours", "--pid", str(os.getpid()), "--fifo", pipe]
        for program in ([CLIENT, "acquire", *ours, "--timeout", "1h", "--warn-after", "50m"],
                        [CLIENT, "release", *ours],
                        [CLIENT, "run", "--scope", "run", "--timeout", "1h", "--signal", "TERM", "--grace", "5s",
                         "--fifo", pipe, "--", "true"],
                        [sys.executable, "-c", f"import torch.distributed.elastic.timer as timer\n"
                         f"timer.configure(timer.FileTimerClient({pipe!r}))\nwith timer.expires(3600, 'torch'): pass"]):
            subprocess.run(program, check=True)
        self.keep_text("lines.jsonl", os.read(reader, 65536).decode() + (  # and what docs/protocol.md has besides
            '{"version": 1, "pid": 4711, "scope_id": "other", "expiration_time": Infinity, "signal": 10, '
            '"x_timeout_s": Infinity, "x_grace_s": 20, "x_tid": 4711, "x_signal_first": true, "later_key": [{}]}\n'
            '{"version": 1, "x_page": "4711-8d2f60c1a5b37e94"}\n'))

    def test_make_log(self):
        hung, late, left, stopped = (
            self.worker("a = filetimer.Scope(60, 'load'); a.acquire(); a.release(); a.acquire()", **self.job,
                        RANK=str(rank)) for rank in range(4))
        self.do(hung, "a = filetimer.Scope(0.4, 'forward', signal=signal.SIGTERM); a.acquire()")
        self.wait_for('"killed"')
        time.sleep(3)  # the next incident has evidence commands of its own
        self.do(late, "a = filetimer.Scope(0.2, 'exchange'); a.acquire()",
                "while a.times().remaining > -0.1: time.sleep(0.001)", "a.release()")
        left.stdin.close()
        self.do(stopped, "a = filetimer.Scope(0.3, 'stopped'); a.acquire()")
        stopped.send_signal(signal.SIGSTOP)
        pathlib.Path(self.server.fifo).write_text("no request\n")
        joins = [CLIENT, "rendezvous", "--dir", self.dir, "--world", "2", "--timeout"]
        subprocess.run([*joins, "0.2s", "--rank", "0"])
        first = subprocess.Popen([*joins, "20s", "--rank", "0"])
        subprocess.run([*joins, "20s", "--rank", "1"], check=True)
        first.wait()
        for event in ("released_late", "left_open", "worker_ended", "deferred", "hook", "rejected"):
            self.wait_for(f'"event":"{event}"')
        self.server.close()
        self.keep_text("log.jsonl", pathlib.Path(self.server.log).read_text())


if os.environ.get("FILETIMER_UPDATE_COMPAT"):
    del Bytes, Programs
else:
    globals().update({f"Bytes of {path.name}": type(path.name, (Bytes,), {"kept": path})
                      for path in COMPAT.iterdir() if path.is_dir()})
    del Bytes, Make
del Case

if __name__ == "__main__":
    suite.main()
