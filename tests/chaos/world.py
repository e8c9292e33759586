# SPDX-License-Identifier: MIT
"""A world of one chaos run, in a folder of its own: timer servers, workers of all kinds, bystanders, and
what is done to them. Whatever happens is noted in histories, one file for each process that takes part,
which checker.py judges together with the logs. docs/promises.md says by which promises.

    def hang(world):
        world.server("--grace", "1s")
        worker = world.worker()
        worker.do("open", key="k1", timeout_ms=300)
        world.wait_for("killed", pid=worker.pid)
    print(World().judge(hang))

Every wait has a bound. A wait that is in vain raises Bound; a world that this machine cannot make raises
Skip. All processes of a world end with judge().
"""
import contextlib
import ctypes
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from checker import check

SOURCES = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCES / "tests/support"))
from records import records  # noqa: E402
from suite import BOUND_S, Bound, stat_of, wait_until  # noqa: E402

REFUSALS = 6  # to trace a process without a tracer, which may have had one a moment before
POLL_S = 0.005
SAMPLE_S = 0.1  # between two looks at what a server uses
BUSY_S = 1.0  # no server may use a whole core for this long
CLOSE_S = 5  # for a process to exit by itself at the end of its world
SERVER_RSS_BYTES = 256 << 20
SERVER_FILES = 1000
# Of both versions of cgroups: the file that freezes, its values, the file that shows when it is done, and how.
FREEZERS = (("freezer.state", ("THAWED", "FROZEN"), "freezer.state", "{}\n"),
            ("cgroup.freeze", ("0", "1"), "cgroup.events", "frozen {}\n"))
WORKER_KINDS = ("cpp", "heartbeat", "pipe", "torch", "python", "run")

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_CHILD_SUBREAPER = 36
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 17, 0x4206, 0x4207, 0x40000000


class Skip(Exception):
    """This machine cannot do it, for the reason that the exception has."""


class Gone(Exception):
    """The worker ended before it answered."""


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def seize(process):
    """Begins to trace a process, when the helper of a server traces it no more. Returns False if it has ended."""
    refusals = 0
    while libc.ptrace(PTRACE_SEIZE, process.pid, None, None) != 0:
        error = os.strerror(ctypes.get_errno())
        if (stat_of(process.pid) or "X")[0] in "ZX":
            return False
        refusals = 0 if is_traced(process.pid) else refusals + 1
        if refusals == REFUSALS:
            raise Skip(f"no process can be traced here: {error}")
        time.sleep(POLL_S)
    return True


def is_traced(pid):
    with contextlib.suppress(OSError):  # it has ended
        return "\nTracerPid:\t0\n" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    return False


def built(name):
    """Returns the path of a program, or of what is at that path from the folder of programs."""
    folder = os.environ.get("FILETIMER_BIN_DIR") or SOURCES / "build/shipped/bin"
    path = os.path.normpath(os.path.join(folder, name))
    if not os.path.exists(path):
        raise Skip(f"{path} is not built")
    return path


class History:
    """Appends lines to a file, each by one write, so that none is lost with the process."""

    def __init__(self, path, who):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.who = who

    def note(self, **fields):
        line = (json.dumps({"t": now(), "who": self.who, **fields}) + "\n").encode()
        os.write(self.file, line)
        return line

    def begin(self, op, **fields):
        """Returns the number of the call, the time at which it begins. So the numbers also rise over an exec."""
        number = now()
        self.note(n=number, op=op, **fields)
        return number

    def end(self, number, ok=True, **fields):
        return self.note(n=number, end=True, ok=ok, **fields)

    def once(self, op, **fields):
        self.end(self.begin(op, **fields))

    def close(self):
        os.close(self.file)


class Process:
    """A process of the world, held by its pidfd."""

    def __init__(self, world, name, pid, popen=None):
        self.world, self.name, self.pid, self.popen = world, name, pid, popen
        self.fd = os.pidfd_open(pid)
        self.start = int((stat_of(pid) or [0] * 20)[19])
        self.halts = []
        self.is_alive = True
        self.status = None  # the exit code, or minus the signal; None: not known (yet)

    def send(self, number):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, number)

    def kill(self, number=signal.SIGKILL):
        """Ends it as a stranger would; the server has no part in it."""
        self.world.history.once("kill", subject=self.name, signal=int(number))
        self.send(number)

    def wait(self, bound_s=BOUND_S):
        """Waits for its end."""
        wait_until(lambda: not self.is_alive, f"the end of {self.name} ({self.pid})", bound_s)

    def reap(self):
        """Returns its status, or None if it cannot be reaped yet, or by this process."""
        if self.status is None:
            with contextlib.suppress(ChildProcessError):
                if result := os.waitid(os.P_PIDFD, self.fd, os.WEXITED | os.WNOHANG):
                    self.status = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
                    if self.popen:
                        self.popen.returncode = self.status
        return self.status

    def has_threads_only_in(self, letters):
        try:
            states = [stat_of(self.pid, thread) for thread in os.listdir(f"/proc/{self.pid}/task")]
        except OSError:
            return True  # it has ended
        return all(state is None or state[0] in letters for state in states)

    def halt(self, how="stop"):
        """how: stop (SIGSTOP), freeze (its cgroup), trace (by a tracer)."""
        self.world.halt(self, how=how)

    def resume(self):
        self.world.resume(self)


class Server(Process):
    """A timer_server, which was started with these arguments and options."""

    def __init__(self, world, name, popen, args, options):
        super().__init__(world, name, popen.pid, popen)
        self.args, self.options = args, options
        self.samples = []
        self.may_end = False

    def is_ready(self):
        return "ready dir=" in self.world.said(self.name)

    def judge_use(self, t):
        """Fails if it uses too much at this time, or has used a whole core until then. Looks now and then."""
        stat = stat_of(self.pid)
        if stat is None or stat[0] == "Z" or self.samples and t - self.samples[-1][0] < SAMPLE_S * 1e9:
            return
        cpu_ns = (int(stat[11]) + int(stat[12])) * (10**9 // os.sysconf("SC_CLK_TCK"))
        self.samples = [each for each in self.samples if t - each[0] < 2 * BUSY_S * 1e9] + [(t, cpu_ns)]
        oldest = next((each for each in self.samples if t - each[0] >= BUSY_S * 1e9), None)
        if oldest and cpu_ns - oldest[1] > 0.98 * (now() - oldest[0]):
            self.world.fail(f"{self.name} used a whole core for {BUSY_S} s", "bounded-server")
        rss_bytes, files = int(stat[21]) * os.sysconf("SC_PAGE_SIZE"), 0
        with contextlib.suppress(OSError):
            files = len(os.listdir(f"/proc/{self.pid}/fd"))
        if rss_bytes > SERVER_RSS_BYTES or files > SERVER_FILES:
            self.world.fail(f"{self.name} uses {rss_bytes} bytes, {files} descriptors", "bounded-server")

    def kill(self):
        """Kills it as the kernel does when memory runs out."""
        self._end("kill_server", signal.SIGKILL)

    def stop(self):
        """Asks it to stop, and waits for its end."""
        self._end("stop_server", signal.SIGTERM)

    def _end(self, op, number):
        self.may_end = True
        call = self.world.history.begin(op, subject=self.name)
        self.send(number)
        if number != signal.SIGKILL or "freeze" in dict(self.halts):  # version 1 holds the dying, too
            self.resume()
        self.wait()
        self.world.history.end(call)

    def restart(self):
        """Starts the next server, with the same options. Kills this one if it still runs."""
        if self.is_alive:
            self.kill()
        return self.world.server(*self.args, **self.options)


class Worker(Process):
    """A process that carries out commands; see worker.cpp and worker.py."""

    def __init__(self, world, name, pid, kind, connection, popen=None):
        super().__init__(world, name, pid, popen)
        self.kind = kind
        self.connection = connection
        self.owed = 0  # answers to commands that were posted
        self.children = 0

    def post(self, op, **words):
        """Sends a command, and does not wait for its answer."""
        if op == "open":
            words = {"via": "page", **({} if "raise" in words else {"signal": int(signal.SIGKILL)}), **words}
        words = {key.replace("_ms", "_ns"): value * 1_000_000 if key.endswith("_ms") and value else value
                 for key, value in words.items() if value is not False and value is not None}
        self.owed += 1
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps({"op": op, **words}).encode())

    def answers(self, bound_s=BOUND_S):
        """Waits for all answers that are owed, and returns the last one. Raises Gone if the worker ended."""
        answer = None
        self.connection.settimeout(bound_s)
        while self.owed:
            try:
                line = self.connection.recv(4096)
            except TimeoutError:
                raise Bound(f"{self.name} ({self.pid}) does not answer within {bound_s} s") from None
            except OSError:
                line = b""
            if not line:
                raise Gone(self.name)
            self.owed -= 1
            answer = json.loads(line)
        return answer

    def do(self, op, **words):
        """Has it carry out a command. Returns the end line of its history."""
        self.post(op, **words)
        return self.answers()

    def fork(self):
        """Returns the child, which is a worker with commands of its own."""
        self.children += 1
        name = f"{self.name}.{self.children}"
        call = self.world.history.begin("spawn", subject=name, role="child", parent=self.name)
        self.post("fork", child=name)
        connection, pid = self.world.accept(name, starter=self)
        self.answers()
        return self.world.made(Worker(self.world, name, pid, self.kind, connection), call)

    def exec(self, **words):
        """Starts its program anew in the same process, without address randomisation with no_aslr=True."""
        self.post("exec", **words)
        self.connection.close()
        self.connection, _ = self.world.accept(self.name, starter=self)
        self.owed = 0

    def exit(self):
        self.post("exit", code=0)
        self.wait()


class Freezer:
    """A cgroup of its own whose processes can be frozen."""

    def __init__(self, name, *roots):
        for root in map(pathlib.Path, roots or ("/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")):
            self.folder = root / name
            try:
                self.folder.mkdir()
            except OSError:
                continue
            for self.switch, self.values, self.shows, self.shown in FREEZERS:
                if (self.folder / self.switch).exists():
                    return
            self.folder.rmdir()
        raise Skip("no cgroup can be made and frozen here")

    def add(self, process):
        with contextlib.suppress(ProcessLookupError):
            (self.folder / "cgroup.procs").write_text(str(process.pid))

    def freeze(self, is_frozen=True):
        value = self.values[is_frozen]
        (self.folder / self.switch).write_text(value)
        shows = self.folder / self.shows
        wait_until(lambda: self.shown.format(value) in shows.read_text(), f"the cgroup shows {value}")

    def close(self):
        self.freeze(False)
        wait_until(lambda: not (self.folder / "cgroup.procs").read_text(), "the end of the cgroup's processes")
        self.folder.rmdir()


class Watcher(threading.Thread):
    """Notes the end of each process, and what servers use."""

    def __init__(self, world):
        super().__init__(daemon=True)
        self.world = world
        self.is_closing = False

    def run(self):
        seen_alive, unreaped, is_last = now(), [], False
        while not is_last:
            is_last = self.is_closing  # then all have ended
            alive = [each for each in self.world.processes if each.is_alive]
            poll = select.poll()
            for process in alive:
                poll.register(process.fd, select.POLLIN)
            looks = now()
            ended = {fd for fd, _ in poll.poll(10)}
            seen = now()
            for process in alive:
                if process.fd in ended:
                    unreaped.append((process, seen_alive, seen))
                    process.is_alive = False
                elif isinstance(process, Server):
                    process.judge_use(seen)
            seen_alive = looks
            # A child of a worker can be reaped only when its parent has ended, or never.
            for process, before, at in unreaped[:]:
                if process.reap() is not None or is_last:
                    unreaped.remove((process, before, at))
                    fields = {} if process.status is None else {"status": process.status}
                    self.world.history.note(op="ended", subject=process.name, before=before, **fields, t=at)


class World:
    def __init__(self, name="chaos"):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"filetimer-{name}-"))
        self.histories = self.folder / "histories"
        self.histories.mkdir()
        self.history = History(self.histories / "driver.history", "driver")
        self.dir = self.folder / "run"
        self.log = self.folder / "log.jsonl"
        self.logs = []
        self.servers, self.workers, self.processes = [], [], []
        self.freezers, self.mounts, self.joined = [], [], {}
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.bind(str(self.folder / "driver"))
        self.door.listen(64)
        self.door.setblocking(False)
        self.watcher = Watcher(self)
        self.watcher.start()

    # What takes part

    def environment(self, changes):
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("FILETIMER", "TORCHELASTIC", "SLURM", "LD_PRELOAD"))}
        environment |= {"FILETIMER_DIR": str(self.dir), "CHAOS_SOCKET": str(self.folder / "driver"),
                        "CHAOS_HISTORY": str(self.histories), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {key: str(value) for key, value in (changes or {}).items()}
        return environment

    def made(self, process, call):
        """Takes a process into the world, whose spawn began as `call`."""
        self.processes.append(process)
        self.history.end(call, pid=process.pid, start=process.start)
        return process

    def accept(self, name, starter=None):
        """Waits until a worker says its name. Returns its connection and its pid here. Raises Gone if the process
        that is to start it has ended."""
        def has_joined():
            is_gone = starter is not None and not starter.is_alive
            with contextlib.suppress(BlockingIOError):
                while True:
                    connection, _ = self.door.accept()
                    connection.settimeout(BOUND_S)
                    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                    # One that was killed before it could say its name says nothing.
                    self.joined[connection.recv(4096).decode()] = connection, int.from_bytes(peer[:4], sys.byteorder)
            return name in self.joined or is_gone
        wait_until(has_joined, f"{name} starts")
        if name not in self.joined:
            raise Gone(name)
        return self.joined.pop(name)

    def said(self, name):
        """Returns what the process wrote to its standard output and error."""
        return "".join(path.read_text(errors="replace") for path in
                       (self.folder / f"{name}.out", self.folder / f"{name}.err") if path.exists())

    def start(self, name, argv, env=None, stdin=subprocess.DEVNULL, stderr=None):
        """Starts a program. stderr: closed, full, or a file of its own."""
        with open(self.folder / f"{name}.out", "wb") as out, \
                open("/dev/full" if stderr == "full" else self.folder / f"{name}.err", "wb") as err:
            if stderr == "closed":
                argv = ["sh", "-c", 'exec "$@" 2>&-', "sh", *argv]
            return subprocess.Popen([str(each) for each in argv], stdin=stdin, stdout=out, stderr=err,
                                    env=self.environment(env), cwd=self.folder)

    def server(self, *args, env=None, log=None, stderr=None, prefix=(), is_ready=True):
        """Starts a server and waits until it is ready. `prefix`: words before the program, such as strace."""
        name = f"s{len(self.servers) + 1}"
        options = {"env": env, "log": log, "stderr": stderr, "prefix": prefix}
        log = pathlib.Path(log or self.log)
        if log not in self.logs:
            self.logs.append(log)
        call = self.history.begin("server", subject=name, dir=str(self.dir), log=str(log), args=list(args))
        spawn = self.history.begin("spawn", subject=name, role="server")
        popen = self.start(name, [*prefix, built("timer_server"), "--dir", self.dir, "--log", log, *args], env,
                           stderr=stderr)
        server = self.made(Server(self, name, popen, args, options), spawn)
        self.servers.append(server)
        if is_ready:
            wait_until(lambda: server.is_ready() or not server.is_alive, f"{name} is ready")
            server.may_end = not server.is_ready()
        self.history.end(call, ok=server.is_ready())
        return server

    def worker(self, kind="cpp", namespaces=(), env=None, prefix=(), connect=True, timeout_ms=None, **words):
        """Starts a worker. kind: one of WORKER_KINDS. namespaces: of pid, mount, cgroup, net, uts. `words`
        go with its command connect. A worker of kind run is the COMMAND of timer_client run; its scope "run"
        is open for timeout_ms."""
        name = f"w{len(self.workers) + 1}"
        program = [built("chaos_worker")] if kind != "python" else \
            ["/usr/bin/python3", SOURCES / "tests/chaos/worker.py"]
        if kind == "python":
            env = {"PYTHONPATH": built("../python"), **(env or {})}
        if namespaces:
            self.need_namespaces(tuple(namespaces))
            self.excuse("known-scopes", "a page that no server has read before its worker's end has the pid of the "
                        "worker's namespace", subject="pid 1")
            prefix = [*prefix, *unshare_words(namespaces)]
        argv = [*prefix, *program, name]
        if kind == "run":
            return self._run(name, argv, timeout_ms, env)
        spawn = self.history.begin("spawn", subject=name, role="worker")
        popen = self.start(name, argv, env)
        connection, pid = self.accept(name)
        # unshare forks for a pid namespace, and its exit status is not always that of its child.
        worker = Worker(self, name, pid, kind, connection, popen if pid == popen.pid else None)
        self.workers.append(self.made(worker, spawn))
        if connect and kind in ("cpp", "heartbeat", "python"):
            worker.do("connect", **words)
        return worker

    def _run(self, name, argv, timeout_ms, env):
        # timer_client run opens a scope of COMMAND, so COMMAND's history has it.
        spawn = self.history.begin("spawn", subject=name + "r", role="bystander")
        scope = History(self.histories / f"{name}r.history", name)
        opens = scope.begin("open", key="run", scope="run", via="run", timeout_ns=timeout_ms * 1_000_000)
        popen = self.start(name, [built("timer_client"), "run", "--scope", "run", "--timeout", f"{timeout_ms}ms",
                                  "--", *argv], env)
        parent = self.made(Process(self, name + "r", popen.pid, popen), spawn)
        spawn = self.history.begin("spawn", subject=name, role="worker", parent=name + "r")
        try:
            connection, pid = self.accept(name, starter=parent)
        except Gone:
            self.excuse("known-scopes", "COMMAND was killed before it could say its name")
            scope.end(opens, ok=False)
            raise
        scope.end(opens)
        scope.close()
        worker = Worker(self, name, pid, "run", connection)
        self.workers.append(self.made(worker, spawn))
        return worker

    def bystander(self, pid=None):
        """Starts a process that no server watches. No signal may reach it. `pid`: what it gets unless that is taken."""
        name = f"b{len(self.processes) + 1}"
        spawn = self.history.begin("spawn", subject=name, role="bystander")
        last_pid = pathlib.Path("/proc/sys/kernel/ns_last_pid")
        before = last_pid.read_text()
        if pid:
            try:
                last_pid.write_text(str(pid - 1))
            except OSError as error:
                raise Skip(f"the next pid cannot be chosen: {error.strerror}") from None
        popen = self.start(name, ["cat"], stdin=subprocess.PIPE)
        if pid:
            last_pid.write_text(before)  # else the next server may get the pid of an earlier one
        return self.made(Process(self, name, popen.pid, popen), spawn)

    def library_to_preload(self, name):
        """Returns a path without the spaces and colons at which the linker splits LD_PRELOAD."""
        link = self.folder / name
        link.symlink_to(built(f"../tests/process/{name}"))
        return link

    def ask(self, *words, bound_s=BOUND_S):
        """Runs timer_client, and returns its exit status and output."""
        try:
            done = subprocess.run([built("timer_client"), *words, "--dir", str(self.dir)],
                                  env=self.environment({}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=bound_s, check=False)
        except subprocess.TimeoutExpired:
            raise Bound(f"timer_client {' '.join(words)}: not within {bound_s} s") from None
        return done.returncode, done.stdout.decode(errors="replace")

    # What is done to them

    def halt(self, *processes, how="stop", roots=()):
        """Halts them together. Returns when it is certain that none of them runs. `roots`: of the freezer."""
        calls = [self.history.begin("halt", subject=each.name, how=how) for each in processes]
        group = None
        if how == "freeze":
            group = Freezer(f"{self.folder.name}-{len(self.freezers)}", *roots)
            self.freezers.append(group)
            for each in processes:
                group.add(each)
            group.freeze()
        for each in processes:
            if how == "stop":
                each.send(signal.SIGSTOP)
                wait_until(lambda: each.has_threads_only_in("TtZX"), f"the stop of {each.name}")
            elif how == "trace":
                if not seize(each):
                    continue  # it has ended
                libc.ptrace(PTRACE_INTERRUPT, each.pid, None, None)
                wait_until(lambda: libc.waitpid(each.pid, None, WALL | os.WNOHANG) != 0, f"{each.name} is traced")
            each.halts.append((how, group))
        for call in calls:
            self.history.end(call)

    def resume(self, *processes):
        """Ends all halts of these processes. A frozen one runs again with its whole group."""
        groups = [group for each in processes for _, group in each.halts if group]
        for each in self.processes:
            ended = [halt for halt in each.halts if each in processes or halt[1] in groups]
            each.halts = [halt for halt in each.halts if halt not in ended]
            for how, group in reversed(ended):
                call = self.history.begin("resume", subject=each.name, how=how)
                if how == "stop":
                    each.send(signal.SIGCONT)
                elif how == "trace" and each.is_alive:
                    libc.ptrace(PTRACE_DETACH, each.pid, None, None)
                elif group:
                    group.freeze(False)
                self.history.end(call)

    def files(self, what, **facts):
        """Notes that files are about to be removed, cut or replaced. removes_pages: those of workers."""
        self.history.once("files", what=what, **facts)

    def excuse(self, promises, reason, **of):
        """Notes a stated exception of promises, whose names are words. of: subject=..., key=..."""
        for promise in promises.split():
            self.history.once("excuse", promise=promise, reason=reason, **of)

    def tmpfs(self, size):
        """Returns a folder on a file system of its own, of `size` bytes."""
        folder = self.folder / f"disk{len(self.mounts)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
                              stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise Skip("no file system can be mounted here")
        self.mounts.append(folder)
        return folder

    def fill(self, folder):
        """Fills the file system of a folder, until the file `filler` is removed."""
        with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 1024)

    def need_namespaces(self, namespaces):
        done = subprocess.run([*unshare_words(namespaces), "true"], stderr=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise Skip(f"no namespaces ({', '.join(namespaces)}) can be made here")

    # What is seen

    def records(self, event, **fields):
        return records(self.logs, event, **fields)

    def wait_for(self, event, **fields):
        """Waits for a record, and returns the first one."""
        return wait_until(lambda: self.records(event, **fields), f"a record {event} {fields}")[0]

    def wait_for_page(self):
        """Waits until a server knows a page. Before, it belongs to the process that has its lock."""
        wait_until(lambda: any((self.dir / "scopes/.owners").iterdir()), "the server knows the page")

    def fail(self, what, promise="adversity"):
        """Notes a violation that the driver saw itself."""
        self.history.once("fault", promise=promise, what=what)

    # The end

    def close(self):
        """Stops the servers, has all processes exit, and ends those that do not."""
        self.resume(*[each for each in self.processes if each.halts])
        for server in self.servers:
            if not server.is_alive and not server.may_end:
                self.fail(f"{server.name} ended by itself: {self.said(server.name)[-500:]}", "server-lives")
            elif server.is_alive:
                server.stop()
        for process in self.processes:
            if isinstance(process, Worker):
                process.connection.close()
            elif process.popen and process.popen.stdin:
                process.popen.stdin.close()
        for process in self.processes:
            try:
                process.wait(CLOSE_S)
            except Bound:
                process.kill()
                process.wait()
        self.watcher.is_closing = True
        self.watcher.join()
        self.door.close()
        for group in self.freezers:
            group.close()
        self.history.close()

    def judge(self, act):
        """Has a function act on the world, ends it, and returns what the checker finds, one line a violation."""
        try:
            act(self)
        except (Bound, Gone) as error:
            self.fail(f"{type(error).__name__}: {error}", "liveness")
        finally:
            self.close()
        return check(self.histories, self.logs)

    def keep(self):
        """Keeps the files of a world that has ended, also those on file systems of its own."""
        for folder in self.mounts:
            kept = folder.with_name(folder.name + ".kept")
            shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("filler"))
            subprocess.run(["umount", folder], check=False)
        self.mounts.clear()

    def remove(self):
        """Removes what the world left on disk."""
        for folder in self.mounts:
            subprocess.run(["umount", "-l", folder], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def unshare_words(namespaces):
    return ["unshare", *[f"--{each}" for each in namespaces], *(["--fork"] if "pid" in namespaces else [])]
