# SPDX-License-Identifier: MIT
"""Adversities that found a fault of the client, of timer_client or of the Python package, each under a name of
its own; see directed_server.py. Programs that are no workers of the driver's compare themselves what they see
with what docs/python.md promises, and exit with 0.
"""
import json
import os
import shutil
import subprocess
import time

from world import BOUND_S, Process, Skip, built, wait_until

LOOK_S = 1.1  # a client looks at its files at most this often
QUIET_S = 0.8  # long enough for a timeout that should not count


def _run(world, script, *words, status=0, prefix=(), **environment):
    """Runs a Python program to its end, and compares its exit status. It finds the package and the programs."""
    name = f"p{len(world.processes) + 1}"
    path = world.folder / f"{name}.py"
    path.write_text("import filetimer, filetimer.admin, os, sys, threading, time\n" + script)
    spawn = world.history.begin("spawn", subject=name, role="worker")
    popen = world.start(name, [*prefix, "/usr/bin/python3", path, *words],
                        {"PYTHONPATH": built("../python"), "PROGRAMS": os.path.dirname(built("timer_client")),
                         "FILETIMER_SERVER": built("timer_server"), **environment})
    process = world.made(Process(world, name, popen.pid, popen), spawn)
    world.excuse("known-scopes", "the program keeps no history of its own", subject=name)
    process.wait()
    wait_until(lambda: process.is_reaped, f"the status of {name}")
    if process.status != status:
        world.fail(f"{name} ended with {process.status}, not {status}: {world.said(name)[-500:]}", "worker-unharmed")


def _strace(world, calls, how, us):
    """Returns the words before a program that make these calls slow."""
    if not shutil.which("strace"):
        raise Skip("no strace")
    return ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:{how}={us}")


def _check_files(world, worker):
    answer = worker.do("check_files")
    if not answer["ok"]:
        world.fail(answer["error"], "worker-unharmed")


def closed_descriptors_as_the_page_grows(world):
    """A worker closes all descriptors, opens files of its own, and uses more names than its page had room for. The
    first server starts after that."""
    worker = world.worker("python")
    worker.do("close_fds")
    for number in range(40):
        worker.do("open", key=f"k{number}", timeout_ms=60_000)
    _check_files(world, worker)
    world.server()
    watched = json.loads(world.ask("status", "--json")[1])["open_scopes"]
    if watched != 40:
        world.fail(f"{watched} of 40 scopes are watched", "hang-is-judged")


def closed_descriptors_at_a_fork(world):
    """A worker closes all descriptors and opens files of its own, and its child closes what it inherited."""
    world.server()
    worker = world.worker("python")
    worker.do("close_fds")
    child = worker.fork()
    _check_files(world, child)
    child.do("open", key="k", timeout_ms=60_000)
    _check_files(world, child)


def closed_descriptors_at_a_dump(world):
    """A worker closes all descriptors and opens files of its own, and the server asks for its stacks."""
    world.server()
    worker = world.worker("python")
    worker.do("open", key="k", timeout_ms=60_000)
    world.wait_for_page()
    worker.do("close_fds")
    status, said = world.ask("dump")
    if status != 0:
        world.fail(f"dump ends with {status}: {said}")
    _check_files(world, worker)


def closed_descriptors_of_a_private_server(world):
    """A program with a private server and a request under way closes all descriptors, and opens its own."""
    _run(world, """
server = filetimer.Server()
filetimer.configure(server.dir)
def ask():
    try:
        filetimer.admin.rendezvous(0, 2, 15)
    except filetimer.TimerError:
        pass
thread = threading.Thread(target=ask)
thread.start()
while not filetimer.admin.status().askers:
    time.sleep(0.01)
# The request looks at the server now and then, and has a descriptor of its own meanwhile.
while open(f"/proc/self/task/{thread.native_id}/stat").read().rpartition(")")[2].split()[0] != "S":
    pass
os.closerange(3, 1000)
mine = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]
if os.fork() == 0:
    for number in mine:
        os.fstat(number)
    os._exit(0)
_, status = os.wait()
thread.join()
server.close()
for number in mine:
    os.fstat(number)
sys.exit(status)
""")


def heartbeat_with_a_file_of_timeouts(world):
    """A heartbeat has a longer first timeout, and a file of timeouts has its name."""
    world.server()
    timeouts = world.folder / "timeouts.toml"
    timeouts.write_text('k = "200ms"\n')
    worker = world.worker("python", env={"FILETIMER_TIMEOUTS": timeouts})
    worker.do("open", key="k", via="heartbeat", timeout_ms=60_000, first_ms=600_000)
    time.sleep(QUIET_S)
    for record in world.records("expired"):
        world.fail(f"a timeout of 600 s expired after {record['elapsed_s']} s", "not-early")


def exit_beside_waiting_threads(world):
    """The interpreter ends while daemon threads wait for a server and for an answer, and the process ends later."""
    strace = _strace(world, "clock_nanosleep,poll", "delay_exit", 2_000_000)
    world.server()
    # on_exit(sleep): sleep(1) is called after the interpreter's end, as the exit status is 1. The pauses of the
    # threads take 2 s longer, and end meanwhile; so does that sleep.
    _run(world, """
import ctypes
filetimer.configure()
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)
for call in (lambda: filetimer.Client(os.devnull, missing="wait", timeout=60),
             lambda: filetimer.admin.rendezvous(0, 2, 60)):
    threading.Thread(target=call, daemon=True).start()
threading.Event().wait(0.5)
sys.exit(1)
""", status=1, prefix=strace)


def subinterpreters_that_are_refused(world):
    """Interpreters import the package, which is refused, and end. Then the process hangs in a scope of the main one."""
    world.server()
    _run(world, """
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
# From Python 3.12 on an interpreter is isolated, and then takes no module that does not say so.
how = {} if sys.version_info < (3, 12) else {"isolated": False} if sys.version_info < (3, 13) else {"config": "legacy"}
script = "try: import filetimer\\nexcept ImportError: pass\\nelse: raise SystemError"
filetimer.configure()
with filetimer.expires(60, "main") as outer:
    for _ in range(3):
        one = interpreters.create(**how)
        if interpreters.run_string(one, script) is not None:  # before Python 3.13 it raises
            sys.exit("an interpreter has imported the package")
        interpreters.destroy(one)
    if filetimer.admin.status().open_scopes != 1 or outer.times().paused:
        sys.exit("the scopes of the main interpreter have changed")
    with filetimer.expires(0.2, "hung"):
        time.sleep(60)
""", status=-9)
    world.wait_for("killed")
    scopes = [record["scope"] for record in world.records("expired")]
    if scopes != ["hung"]:
        world.fail(f"expired: {scopes}", "hang-is-judged")


def fork_during_the_first_connect(world):
    """A process forks again and again while another of its threads connects and asks for the first time."""
    # The calls that are slow are those of a thread that connects: so children are forked between all of them.
    strace = _strace(world, "madvise,openat,readlink,fallocate,rename,fcntl,mkdir,mknodat,mknod", "delay_enter", 20_000)
    world.server()
    _run(world, """
children = []
def use():
    filetimer.configure()
    with filetimer.expires(60):
        filetimer.admin.ping()
thread = threading.Thread(target=use)
thread.start()
while thread.is_alive() and len(children) < 20:
    child = os.fork()
    if child == 0:
        use()
        os._exit(0)
    children.append(child)
    time.sleep(0.02)
end = time.monotonic() + 10
while children and time.monotonic() < end:
    children = [each for each in children if os.waitpid(each, os.WNOHANG)[0] == 0]
    time.sleep(0.02)
for child in children:
    os.kill(child, 9)
sys.exit(f"{len(children)} children never return" if children else 0)
""", prefix=strace)


def paused_region_after_the_directory_was_made_again(world):
    """The scope that opens a paused region is the first one to find that the directory was made again."""
    server = world.server()
    worker = world.worker()
    worker.do("open", key="before", timeout_ms=60_000)
    worker.do("release", key="before")
    server.kill()
    world.files("the runtime directory was removed", removes_pages=True)
    shutil.rmtree(world.dir)
    server.restart()
    time.sleep(LOOK_S)
    worker.do("enter", key="region")
    worker.do("open", key="k", timeout_ms=200)
    time.sleep(QUIET_S)
    worker.post("leave", key="region")  # the scope may expire before its release
    worker.post("release", key="k")


def scope_moves_to_a_new_page(world):
    """The status page is cut without a server, and made again; then a scope is renewed, and counted once."""
    server = world.server()
    worker = world.worker()
    server.kill()
    world.files("the status page is cut")
    os.truncate(world.dir / "server", 0)
    worker.do("open", key="k", timeout_ms=60_000)
    server = server.restart()
    time.sleep(LOOK_S)
    worker.do("renew", key="k", timeout_ms=60_000)
    worker.do("release", key="k")
    worker.exit()
    server.stop()


def pause_after_the_deadline(world):
    """A deadline passes without a server; then the scope is paused and resumed, and the next server judges it."""
    server = world.server()
    worker = world.worker()
    server.kill()
    worker.do("open", key="k", timeout_ms=100)
    time.sleep(QUIET_S)
    worker.do("pause", key="k")
    worker.do("resume", key="k")
    server.restart()
    worker.wait()


def renewal_after_the_page_was_cut(world):
    """The page of a worker is truncated. A scope with a known name is opened, renewed on the next page, and hangs."""
    world.server()
    worker = world.worker()
    worker.do("open", key="before", scope="k", timeout_ms=60_000)
    worker.do("release", key="before")
    page = next(each for each in world.dir.glob("scopes/*-*") if each.is_file())
    world.files("a page is truncated")
    os.truncate(page, 0)
    worker.do("open", key="k", timeout_ms=60_000)
    time.sleep(LOOK_S)
    worker.post("renew", key="k", timeout_ms=100)
    worker.wait()


def exception_in_a_task(world):
    """A scope with on_expiry="raise" is entered in an asyncio task, and in a function that one calls."""
    world.server()
    _run(world, """
import asyncio
filetimer.configure()
async def work():
    try:
        with filetimer.expires(0.2, "task", on_expiry="raise", grace=10):
            await asyncio.sleep(60)
    except filetimer.TimerError as error:
        return "caught" if "the event loop" in str(error) else error
def call():
    try:
        with filetimer.expires(0.2, "function", on_expiry="raise", grace=10):
            time.sleep(60)
    except filetimer.ScopeExpired:
        return "raised"
async def main():
    other = asyncio.create_task(asyncio.sleep(0.4, "ended"))
    return await work(), call(), await other
sys.exit(asyncio.run(main()) != ("caught", "raised", "ended"))
""")


def exception_in_a_generator(world):
    """A scope with on_expiry="raise" is entered in a generator, and in one that is a context manager."""
    world.server()
    _run(world, """
import contextlib
filetimer.configure()
@contextlib.contextmanager
def step():
    with filetimer.expires(0.2, "step", on_expiry="raise", grace=10):
        yield
try:
    with step(), contextlib.ExitStack() as stack:
        stack.enter_context(filetimer.expires(60, "stack", on_expiry="raise"))
        time.sleep(60)
    sys.exit("it was not raised")
except filetimer.ScopeExpired:
    pass
def numbers():
    with filetimer.expires(0.2, "generator", on_expiry="raise", grace=3):
        yield 1
steps = numbers()
try:
    next(steps)
    time.sleep(10)
except filetimer.TimerError as error:
    if "this generator" not in str(error):
        raise
    time.sleep(5)  # longer than the grace period and the time that a busy server gives back
""")


def standard_error_cannot_be_written(world):
    """Programs have something to say, and standard error is closed, full, or has no reader."""
    read, broken = os.pipe()
    os.close(read)
    full = os.open("/dev/full", os.O_WRONLY)
    run = ("timer_client", "run", "--timeout", "10s", "--", "true")
    started = []
    for how, number, close in (("closed", full, "2>&-"), ("full", full, ""), ("broken", broken, "")):
        for words, expected in ((("timer_client", "ping"), 4), (run, 125), (("timer_server", "--no"), 2)):
            if words[0] == "timer_server" and how == "broken":
                continue
            argv = [built(words[0]), *words[1:]]
            program = subprocess.Popen(["sh", "-c", f'exec "$@" {close}', "sh", *argv], stderr=number,
                                       env=world.environment({}))
            started.append((f"{' '.join(words)} with standard error {how}", program, expected))
    for what, program, expected in started:
        if program.wait(BOUND_S) != expected:
            world.fail(f"{what} ends with {program.returncode}, not {expected}")
    os.close(full)
    os.close(broken)


def decorated_function_that_runs_later(world):
    """A scope decorates what only looks like a function: its work runs after the call."""
    world.server()
    _run(world, """
import asyncio, contextlib, functools
filetimer.configure()
unguarded = []
def look():
    if filetimer.admin.status().open_scopes != 1:
        unguarded.append(kind)
async def coroutine(_=0):
    await asyncio.sleep(0)
    look()
def generator():
    look()
    yield
class Callable:
    async def __call__(self):
        look()
    async def method(self):
        look()
def wrap(function):
    @functools.wraps(function)
    def wrapper():
        return function()
    return wrapper
def step_into(made):
    with made:
        pass
kinds = {"partial": (functools.partial(coroutine, 1), asyncio.run), "wrapper": (wrap(coroutine), asyncio.run),
         "object": (Callable(), asyncio.run), "method": (Callable().method, asyncio.run),
         "context manager": (contextlib.contextmanager(generator), step_into),
         "wrapped manager": (wrap(contextlib.contextmanager(generator)), step_into),
         "partial generator": (functools.partial(generator), next), "wrapped generator": (wrap(generator), next)}
for kind, (function, use) in kinds.items():
    try:
        use(filetimer.expires(60, kind)(function)())
    except TypeError:
        pass  # refused
sys.exit(", ".join(unguarded) or 0)
""")


def suggestion_from_heartbeats(world):
    """A worker beats quickly, and `suggest` measures the time between two beats, not the lives of the heartbeats."""
    world.server()
    _run(world, """
import json, subprocess
filetimer.configure()
for _ in range(102):
    with filetimer.heartbeat(60, "queue") as heart:
        for _ in range(20):
            heart.beat()
said = subprocess.check_output([os.environ["PROGRAMS"] + "/timer_client", "suggest", "--format", "json",
                                "--floor", "1ms"], text=True)
queue = next(each for each in map(json.loads, said.splitlines()) if each["scope"] == "queue")
if queue["count"] + queue["firsts"] != 102 * 21:  # the time before each beat, and behind the last one
    sys.exit(f"{queue}, where 102 heartbeats had 20 beats each")
""")


def exit_status_of_run(world):
    """timer_client run: --max-timeout cuts --timeout; the server dies, and COMMAND succeeds or is killed by somebody
    else; none runs; it is switched off."""
    def status(*words, **environment):
        return subprocess.Popen([built("timer_client"), "run", *words],
                                env=world.environment(environment), stderr=subprocess.DEVNULL, cwd=world.folder)
    server = world.server("--max-timeout", "200ms")
    cut = status("--timeout", "1h", "--", "sleep", "10")
    found = {"expired at --max-timeout": (cut.wait(BOUND_S), 124)}
    expired = world.wait_for("expired")
    world.excuse("known-scopes", "COMMAND keeps no history", subject=f"pid {expired['pid']}")
    server.stop()
    server = world.server()
    server.halt()
    unwatched = status("--timeout", "500ms", "--", "sh", "-c", "echo > started; sleep 1")
    killed = status("--timeout", "500ms", "--", "sh", "-c", "echo > started2; sleep 1; kill -9 $$")
    wait_until(lambda: (world.folder / "started").exists() and (world.folder / "started2").exists(), "COMMAND")
    server.kill()
    found["succeeded without a server"] = unwatched.wait(BOUND_S), 0
    found["killed by somebody else"] = killed.wait(BOUND_S), 137
    found["FILETIMER_MISSING=ignore"] = status("--", "sh", "-c", "exit 3", FILETIMER_MISSING="ignore").wait(BOUND_S), 3
    found["FILETIMER_MISSING=raise"] = status("--", "true", FILETIMER_MISSING="raise").wait(BOUND_S), 125
    found["FILETIMER=off"] = status("--", "true", FILETIMER="off").wait(BOUND_S), 0
    for what, (seen, expected) in found.items():
        if seen != expected:
            world.fail(f"{what}: exit status {seen}, not {expected}")


def closed_standard_error_of_a_worker(world):
    """A worker is started without standard error, so that files of the client may get its number, and complains. Then
    it hangs.
    """
    world.server()
    worker = world.worker(stderr="closed")
    worker.do("open", key="k", timeout_ms=60_000)
    worker.do("complain")
    pages = [each for each in world.dir.glob("scopes/*-*") if each.is_file()]
    if [each.read_bytes()[:8] for each in pages] != [b"TMERPAGE"]:
        world.fail(f"the worker wrote over its page: {pages}", "worker-unharmed")
    worker.post("open", key="hung", timeout_ms=200)
    worker.wait()


def region_begun_without_a_page(world):
    """A paused region begins while no page can be made, and a scope is opened in it once one can be made."""
    world.dir.mkdir(mode=0o700)
    (world.dir / "server").write_text("no status page")
    world.excuse("record-links", "a region that begins without a page is not watched", key="region")
    worker = world.worker()
    worker.do("enter", key="region")
    (world.dir / "server").unlink()
    world.server()
    time.sleep(LOOK_S)
    worker.do("open", key="k", timeout_ms=200)
    time.sleep(QUIET_S)
