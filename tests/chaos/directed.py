# SPDX-License-Identifier: MIT
"""Adversities that found a fault of the server, the client or timer_client, each under a name of its own. An
adversity makes the situation, and checker.py judges it by the promises; what the histories do not show it
judges itself (World.fail). The limits of time are those of docs/kill_policy.md.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from world import Freezer, Gone, Skip, stat_of, wait_until

LOOK_S = 1.1  # a client looks at its files at most this often
CATCHABLE = ("--evidence", "none", "--max-interval", "1h")  # no sweep that finds what was missed


def _has_news(world):
    """Waits until the server has judged, deferred or refused a scope."""
    wait_until(lambda: world.records("expired") or world.records("deferred") or world.records("rejected"), "news")


def _open(worker, **words):
    """Opens the scope k of a worker that may be killed before it answers."""
    with contextlib.suppress(Gone):
        worker.do("open", key="k", **words)


def _freeze_in_sight_of_another_namespace(world, root):
    world.need_namespaces(("cgroup",))
    own = Freezer(f"{world.folder.name}-server", root)
    world.freezers.append(own)
    enter = f'echo $$ > {own.folder}/cgroup.procs && exec unshare --cgroup "$@"'
    world.server(*CATCHABLE, prefix=("sh", "-c", enter, "sh"))
    worker = world.worker()
    _open(worker, timeout_ms=400)
    world.halt(worker, how="freeze", roots=[root])
    _has_news(world)
    worker.resume()
    world.ask("ping")  # the server has read everything before
    with contextlib.suppress(Gone):
        worker.do("release", key="k")


def frozen_seen_from_another_namespace(world):
    """A worker is frozen (version 2). The server is in another cgroup namespace."""
    unified = pathlib.Path("/sys/fs/cgroup/unified")
    _freeze_in_sight_of_another_namespace(world, unified if unified.exists() else unified.parent)


def frozen_seen_from_another_namespace_v1(world):
    """A worker is frozen (version 1). The server is in another cgroup namespace."""
    _freeze_in_sight_of_another_namespace(world, pathlib.Path("/sys/fs/cgroup/freezer"))


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


def exec_while_a_warning_is_prepared(world):
    """Workers run their program anew while evidence is collected for a warning about their scopes."""
    world.server("--evidence", "proc", "--max-interval", "1h")
    for _ in range(3):
        worker = world.worker()
        worker.do("open", key="k", timeout_ms=200, signal=int(signal.SIGUSR2), spare=True, grace_ms=2000)
        time.sleep(0.205)  # the timeout has passed, and the CPU is sampled for 25 ms
        worker.exec(no_aslr=True)
        worker.do("connect")
        worker.do("open", key="k", timeout_ms=60_000)
    wait_until(lambda: len(world.records("left_open")) + len(world.records("expired")) == 3, "the verdicts")


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
    (world.dir / "requests").write_text(json.dumps({
        "version": 1, "pid": threads[0], "scope_id": "k", "expiration_time": time.time() + 0.05, "signal": 9,
        "x_timeout_s": 0.05}) + "\n")
    _has_news(world)
    server.stop()
    if world.records("expired", pid=threads[0]):
        world.fail(f"kernel thread {threads[0]} was watched; the server ended with status {server.status}")


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
