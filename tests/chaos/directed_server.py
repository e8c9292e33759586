# SPDX-License-Identifier: MIT
"""Adversities that found a fault of the server, each under a name of its own. An adversity makes the
situation, and history_check judges it by the promises; what the histories do not show it judges itself
(World.fail). The limits of time are those of docs/kill_policy.md.
"""
import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time

from world import BOUND_S, Bound, Freezer, Gone, Skip, built, old_records, stat_of, wait_until

MISSED_S = 1  # a server that wakes later than planned by more than this has missed time
REUSES = 100  # tries to get a pid, in which other processes of the machine start
CATCHABLE = ("--evidence", "none", "--max-interval", "1h")  # no sweep that finds what was missed


def _line(world, **keys):
    """Writes a line into the request pipe."""
    pipe = os.open(world.dir / "requests", os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(pipe, (json.dumps({"version": 1, **keys}) + "\n").encode())
    finally:
        os.close(pipe)


def _has_news(world, *processes):
    """Waits until the server has judged or refused, or one of the processes has ended."""
    wait_until(lambda: any(not each.is_alive for each in processes) or
               world.records("expired") or world.records("deferred") or world.records("rejected"), "news")


def _wait_until_caught(world, worker, times=1, **bound):
    """Waits until the worker has handled so many signals, or its grace period was too short for it."""
    history = world.histories / f"{worker.name}.history"
    wait_until(lambda: not worker.is_alive or history.read_text().count('"caught"') >= times, "caught", **bound)


def _open(worker, **words):
    """Opens the scope k of a worker that may be killed before it answers."""
    with contextlib.suppress(Gone):
        worker.do("open", key="k", **words)


def _release(world, worker):
    """Releases it. The worker may be dead. The server has read everything before."""
    world.ask("ping")
    with contextlib.suppress(Gone):
        return worker.do("release", key="k").get("in_time")


def resumed_kill_forgets_release(world):
    """The server is killed in the grace period of a scope that was signalled first, and the scope is left."""
    server = world.server(*CATCHABLE)
    worker = world.worker()
    worker.fork()
    worker.do("catch", signal=signal.SIGUSR1)
    _open(worker, timeout_ms=100, grace_ms=4000, signal=int(signal.SIGUSR1), spare=True)
    _wait_until_caught(world, worker)
    server.restart()
    with contextlib.suppress(Bound):  # the next server may signal again; a release before that spares the worker
        _wait_until_caught(world, worker, times=2, bound_s=2)
    is_in_time = _release(world, worker)
    world.worker().do("open", key="later", timeout_ms=4500, signal=0)
    world.wait_for("killed")
    if is_in_time and not worker.is_alive:
        world.fail("the worker was killed, though it released its scope in the grace period")


def scope_opened_while_server_stopped(world):
    """Scopes are opened, and their deadlines pass, while the server cannot run."""
    server = world.server(*CATCHABLE)
    workers = [world.worker(kind) for kind in ("cpp", "pipe", "torch")]
    server.halt()
    for worker in workers:
        worker.do("open", key="k", timeout_ms=1100, via={"cpp": "page"}.get(worker.kind, worker.kind))
    time.sleep(MISSED_S + 0.3)
    server.resume()
    for worker in workers:
        _release(world, worker)


def line_of_pytorch_waits(world):
    """A line that does not say when it was written waits for the server until long after its deadline."""
    server = world.server(*CATCHABLE)
    worker = world.worker("torch")
    server.halt()
    worker.do("open", key="k", timeout_ms=500, via="torch")
    time.sleep(2 * MISSED_S + 0.8)
    server.resume()
    _release(world, worker)


def pause_between_two_wakes(world):
    """All processes stop and run again before the next deadline, so the server wakes when it planned to."""
    server = world.server(*CATCHABLE)
    worker = world.worker()
    _open(worker, timeout_ms=2000)
    world.ask("ping")
    world.halt(server, worker)
    time.sleep(MISSED_S + 0.6)
    world.resume(server, worker)
    _has_news(world, worker)
    _release(world, worker)


def _freeze_in_sight_of_another_namespace(world, root):
    world.need_namespaces(("cgroup",))
    own = Freezer(f"filetimer-chaos-{os.getpid()}-server", root)
    world.freezers.append(own)
    enter = f'echo $$ > {own.folder}/cgroup.procs && exec unshare --cgroup "$@"'
    world.server(*CATCHABLE, prefix=("sh", "-c", enter, "sh"))
    worker = world.worker()
    _open(worker, timeout_ms=400)
    world.halt(worker, how="freeze", roots=[root])
    _has_news(world)
    worker.resume()
    _release(world, worker)


def frozen_seen_from_another_namespace(world):
    """A worker is frozen (version 2). The server is in another cgroup namespace."""
    unified = pathlib.Path("/sys/fs/cgroup/unified")
    _freeze_in_sight_of_another_namespace(world, unified if unified.exists() else unified.parent)


def frozen_seen_from_another_namespace_v1(world):
    """A worker is frozen (version 1). The server is in another cgroup namespace."""
    _freeze_in_sight_of_another_namespace(world, pathlib.Path("/sys/fs/cgroup/freezer"))


def _process_with(world, pid):
    """Starts a process that has this pid, which is free."""
    for _ in range(REUSES):
        stranger = world.bystander(pid)
        if stranger.pid == pid:
            return stranger
    raise Skip(f"pid {pid} was not free in {REUSES} tries")


def _line_read_after_pid_reuse(world, via):
    server = world.server(*CATCHABLE)
    worker = world.worker(via)
    server.halt()
    worker.do("open", key="k", timeout_ms=50, via=via)
    worker.exit()
    wait_until(lambda: worker.is_reaped, "the worker is reaped")
    time.sleep(0.1)  # the deadline and a tick of the clock that counts the ages of processes
    stranger = _process_with(world, worker.pid)
    server.resume()
    _has_news(world, stranger)
    world.ask("ping")


def pid_reused_before_line_is_read(world):
    """A worker writes a line and exits. Another process has its pid when the server reads the line."""
    _line_read_after_pid_reuse(world, "pipe")


def pid_reused_before_line_is_read_torch(world):
    """The same with a line of PyTorch's client."""
    _line_read_after_pid_reuse(world, "torch")


def status_page_cut(world):
    """The status page is truncated while a scope is open."""
    server = world.server(*CATCHABLE)
    worker = world.worker()
    _open(worker, timeout_ms=300)
    world.files("server is truncated")
    os.truncate(world.dir / "server", 0)
    wait_until(lambda: not worker.is_alive or not server.is_alive, "the end of the worker")
    if server.is_alive:
        late = world.worker()  # finds the page whole again
        _open(late, timeout_ms=100)
        late.wait()


def status_page_cut_and_removed(world):
    """The status page is truncated, and its directory is removed before the server has looked."""
    server = world.server("--max-interval", "100ms")
    world.files("server is truncated, and removed")
    server.halt()
    os.truncate(world.dir / "server", 0)
    shutil.rmtree(world.dir)
    server.resume()
    wait_until(lambda: not server.is_alive or (world.dir / "server").exists(), "the status page is made again")


def page_found_after_a_stop(world):
    """The directory is removed, a worker opens a scope in a new one, and the server is stopped until after the
    sweep that would have found it.
    """
    server = world.server("--evidence", "none", "--max-interval", "1s")
    worker = world.worker()
    world.ask("ping")  # it has read the page
    world.files("the directory is removed", removes_pages=True)
    shutil.rmtree(world.dir)
    time.sleep(0.4)
    _open(worker, timeout_ms=400)
    server.halt()
    time.sleep(1.2)
    server.resume()
    worker.wait()


def resumed_during_a_stop(world):
    """A scope is resumed while the server is stopped, and its deadline passes before the server continues."""
    server = world.server(*CATCHABLE)
    worker = world.worker()
    server.halt()
    worker.do("open", key="k", timeout_ms=1200)
    time.sleep(0.6)
    worker.do("pause", key="k")
    server.resume()
    time.sleep(0.5)  # until the server sleeps without a deadline
    server.halt()
    worker.do("resume", key="k")
    time.sleep(1.5)
    server.resume()
    worker.wait()


def removed_pipe_page(world):
    """The page that the server keeps for a worker of the pipe is removed. Later the server is killed."""
    server = world.server("--evidence", "none", "--max-interval", "100ms")
    worker = world.worker("pipe")
    _open(worker, timeout_ms=3500, via="pipe")
    page = world.dir / f"scopes/server/{worker.pid}"

    def has_scope():  # the file is there before the scope is in it
        return not worker.is_alive or subprocess.check_output(
            [built("timer_client"), "list", "--json", "--dir", world.dir], stderr=subprocess.DEVNULL)
    wait_until(has_scope, "the page")
    world.files("a page of the server is removed", removes_pages=True)
    page.unlink(missing_ok=True)
    with contextlib.suppress(Bound):
        wait_until(has_scope, "the page is made again", 3)
    server.restart()
    worker.wait()


def removed_page(world):
    """The page of a worker is removed, while the worker runs. Later the server is killed."""
    server = world.server("--evidence", "none", "--max-interval", "100ms")
    worker = world.worker()
    worker.do("open", key="k", timeout_ms=60_000)
    folder = world.dir / "scopes"
    world.wait_for_page()
    world.files("a page is removed", removes_pages=True)
    for page in folder.glob("*-*"):
        page.unlink()

    def is_made_again():
        worker.post("renew", key="k", timeout_ms=1000)
        return any(folder.glob("*-*"))
    with contextlib.suppress(Bound):
        wait_until(is_made_again, "the page is made again", 1.5)
    server.restart()
    worker.wait()


def log_shared_by_equal_directories(world):
    """Two containers with the same path of their directories, which differ, share a log."""
    world.need_namespaces(("mount",))
    own = [world.folder / name for name in ("a", "b")]
    for folder in (*own, world.dir):
        folder.mkdir(0o700)
    bind = f'mount --bind "$0" {world.dir} && exec "$@"'

    def server(folder):
        return world.server(*CATCHABLE, prefix=("unshare", "--mount", "sh", "-c", bind, folder))
    server(own[0])
    worker = world.worker(dir=own[0])
    worker.do("catch", signal=signal.SIGTERM)
    _open(worker, timeout_ms=50, signal=int(signal.SIGTERM), grace_ms=3000)
    _wait_until_caught(world, worker)
    server(own[1])
    worker.wait()


def exec_without_address_randomisation(world):
    """A worker inside a scope runs its program anew, and the stack begins at the same address."""
    server = world.server(*CATCHABLE)
    worker = world.worker(connect=False)
    worker.exec(no_aslr=True)  # so that both programs are started with strings of one length
    worker.do("connect")
    worker.do("open", key="k", timeout_ms=60_000)
    world.wait_for_page()
    server.halt()
    worker.do("renew", key="k", timeout_ms=500)
    worker.exec(no_aslr=True)
    server.resume()
    wait_until(lambda: world.records("left_open") or world.records("expired"), "a verdict")
    if world.records("expired"):
        world.fail("the new program was judged for a scope of the old one")


def _traced(world, calls):
    """Returns the words before a server whose system calls are traced, and the file of the trace."""
    if not shutil.which("strace"):
        raise Skip("no strace")
    trace = world.folder / "trace"
    return ("strace", "-D", "-f", "-qq", "-e", f"trace={calls}", "-e", "signal=none", "-o", trace), trace


def thousand_threads(world):
    """A worker with many threads is killed. The server may not read all of them before it stops the worker."""
    threads = 1000 + os.stat("/proc").st_nlink  # with less than there are processes, it is less work to read all
    most_looks = 200
    prefix, trace = _traced(world, "openat,pidfd_send_signal")
    world.server(*CATCHABLE, prefix=prefix)
    worker = world.worker()
    worker.do("threads", count=threads)
    _open(worker, timeout_ms=100)
    world.wait_for("killed")
    looks = sum(f"/proc/{worker.pid}/task/" in line for line in trace.read_text().splitlines())
    if looks > most_looks:
        world.fail(f"files of its threads were read {looks} times")


def log_full_of_verdicts(world):
    """The log is full while workers with long records are killed. The outcomes must not be lost."""
    workers, scopes = 40, 300
    name = "\x01" * 250  # six bytes each in a record
    disk = world.tmpfs("64k")
    log = disk / "log.jsonl"
    server = world.server(*CATCHABLE, log=log)
    trouble = world.history.begin("log_trouble", what="full")
    world.history.begin("load")  # 20 MB of lines
    world.fill(disk)
    hung = [world.worker("pipe") for _ in range(workers)]
    pipe = os.open(world.dir / "requests", os.O_WRONLY)
    for worker in hung:
        for number in range(scopes):
            os.write(pipe, (json.dumps({"version": 1, "pid": worker.pid, "scope_id": f"{number}{name}", "signal": 9,
                                        "expiration_time": float("inf"), "x_timeout_s": float("inf")}) + "\n").encode())
        _open(worker, timeout_ms=1000, via="pipe")
    os.close(pipe)
    for worker in hung:
        worker.wait()
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    world.history.end(trouble)
    server.stop()
    killed = {record["pid"] for record in world.records("killed")}
    if len(killed) < workers:
        world.fail(f"{workers} workers were killed, and {len(killed)} have a `killed` record")


def tracer_looks_now_and_then(world):
    """A debugger attaches for a moment whenever a deadline passes. A hung worker must die all the same."""
    timeout_s, looks, before_s = 1, 4, 0.3  # before a deadline, longer than it takes to attach
    server = world.server(*CATCHABLE)
    worker = world.worker()
    _open(worker, timeout_ms=int(timeout_s * 1000))
    begun = due = time.monotonic()
    for look in range(looks):
        due += timeout_s
        time.sleep(max(due - before_s - time.monotonic(), 0))
        if not worker.is_alive:
            return
        worker.halt("trace")
        with contextlib.suppress(Bound):
            wait_until(lambda: len(world.records("deferred")) > look, "the look is noticed", 2 * before_s)
        worker.resume()
        wait_until(lambda: world.said(server.name).count("is resumed") > look or not worker.is_alive, "the end of a halt")
        due = time.monotonic()
    world.fail(f"a scope of {timeout_s} s is open after {time.monotonic() - begun:.1f} s, "
               f"because a debugger has looked {looks} times", "bounded-hang")
    worker.wait()


def verdict_behind_a_long_log(world):
    """Eight megabytes of records follow a verdict, and the server is killed in the grace period."""
    server = world.server(*CATCHABLE)
    worker = world.worker()
    worker.do("catch", signal=signal.SIGTERM)
    _open(worker, timeout_ms=50, signal=int(signal.SIGTERM), grace_ms=1500)
    _wait_until_caught(world, worker)
    server.kill()
    with open(world.log, "a") as log:
        log.write(old_records(2500, 4000))
    server.restart()
    worker.wait()


def default_directory_of_another_user(world):
    """Another user has made the default directory. A server around a command needs no well-known one."""
    world.need_namespaces(("mount",))
    if world.folder.is_relative_to("/dev/shm"):
        raise Skip("the temporary folder is in /dev/shm, which this hides")
    taken = f"/dev/shm/filetimer-{os.geteuid()}"
    take = f'mount -t tmpfs tmpfs /dev/shm && mkdir {taken} && chown 65534 {taken} && unset FILETIMER_DIR && exec "$@"'
    server = world.start("around", ["unshare", "--mount", "sh", "-c", take, "sh", built("timer_server"),
                                    "--log", world.log, "--", "true"], env={"XDG_RUNTIME_DIR": ""})
    status = server.wait(BOUND_S)  # not a Server, because it chooses its directory
    if status != 0:
        world.fail(f"timer_server -- true: exit status {status}: {world.said('around')}")


def stop_before_a_catchable_signal(world):
    """A job in the foreground of a shell gets a signal that it may handle. A stop gives its terminal back."""
    prefix, trace = _traced(world, "pidfd_send_signal")
    server = world.server(*CATCHABLE, prefix=prefix)
    worker = world.worker()
    worker.do("catch", signal=signal.SIGTERM)
    server.halt()
    worker.do("open", key="k", timeout_ms=50, signal=int(signal.SIGTERM), grace_ms=300)
    wait_until(lambda: worker.has_threads_only_in("S"), "the worker waits")  # one that runs may be stopped
    server.resume()
    worker.wait()
    sent = trace.read_text()
    if "SIGSTOP" in sent.partition("SIGTERM")[0]:
        world.fail("the worker was stopped before its SIGTERM")


def line_about_a_kernel_thread(world):
    """A line has the pid of a kernel thread, which no server can kill."""
    of_kernel = 0x00200000  # PF_KTHREAD
    threads = [int(pid) for pid in os.listdir("/proc")
               if pid.isdigit() and (stat := stat_of(pid)) and int(stat[6]) & of_kernel]
    if not threads or os.geteuid() != 0:
        raise Skip("no kernel thread of this user is in sight")
    server = world.server(*CATCHABLE, "--kill-wait", "100ms")
    _line(world, pid=threads[0], scope_id="k", expiration_time=time.time() + 0.05, signal=9, x_timeout_s=0.05)
    _has_news(world)
    server.stop()
    if world.records("expired", pid=threads[0]):
        world.fail(f"kernel thread {threads[0]} was watched; the server ended with status {server.status}")


def no_descriptor_at_an_acquire(world):
    """The server has no descriptor for the pidfd of a worker of the pipe, and soon has some again."""
    server = world.server("--evidence", "none", "--max-interval", "100ms")
    worker = world.worker("pipe")
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{server.pid}/fd")), hard))
    worker.do("open", key="k", timeout_ms=300, via="pipe")
    world.wait_for("rejected")
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
    worker.wait()


def closed_standard_error(world):
    """The server is started without standard error, so that its first file has that number, and has a message."""
    world.server(*CATCHABLE, stderr="closed")
    worker = world.worker()
    _open(worker, timeout_ms=100)
    worker.wait()
    begin = (world.dir / "server").read_bytes()[:60]
    if not begin.startswith(b"TMRBOARD"):
        world.fail(f"the server wrote over its status page: {begin}")
