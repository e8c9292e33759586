# SPDX-License-Identifier: MIT
"""Shared by the tests of the Python package: a server of the build in a temporary folder, workers in
their own processes, and the records of both.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import threading
import unittest

import filetimer
from records import judge_logs, records, wait_for_record
from suite import BOUND_S, end, folder_of, wait_until

SERVER = os.environ["FILETIMER_SERVER"]
CLIENT = os.environ["FILETIMER_CLIENT"]
FAR_S = 3600
# Options with which signals wait for $FILETIMER_DIR/go.
SIGNALS_WAIT = ("--evidence-timeout", "60s", "--evidence-command",
                'while ! [ -e "$FILETIMER_DIR/go" ] && [ -d "$FILETIMER_DIR" ]; do sleep 0.05; done')


def in_thread(call, *args):
    thread = threading.Thread(target=call, args=args)
    thread.start()
    thread.join(BOUND_S)


def with_slow(calls, how, us):
    """Returns the words before a program that make these calls slow."""
    if shutil.which("strace") is None:
        raise unittest.SkipTest("no strace")
    return ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:{how}={us}")


def run_python(script, *args, **options):
    """Runs a script in a process of its own."""
    return subprocess.run([sys.executable, "-c", script, *args], timeout=BOUND_S, **options)


class ServerCase(unittest.TestCase):
    """Starts a server for each test; workers find it by $FILETIMER_DIR."""

    options = ()

    def setUp(self):
        self.folder = folder_of(self, "python")
        self.addCleanup(judge_logs, self, self.folder)
        self.dir = os.path.join(self.folder, "run")
        self.server = filetimer.Server(*self.options, dir=self.dir)
        self.addCleanup(self.server.close)
        self.addCleanup(filetimer.close)

    def configure(self, **options):
        return filetimer.configure(self.dir, **options)

    def start_worker(self, script, *args, prefix=(), **environment):
        """Starts a process that runs `script` after PREAMBLE. prefix: words before it."""
        environment = {**os.environ, "FILETIMER_DIR": self.dir, **environment}
        # The script is a file, so that a spawned child can import it.
        self.workers = getattr(self, "workers", 0) + 1
        path = os.path.join(self.folder, f"worker{self.workers}.py")
        with open(path, "w") as file:
            file.write(PREAMBLE + textwrap.dedent(script))
        worker = subprocess.Popen(
            [*prefix, sys.executable, path, *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, env=environment)
        self.addCleanup(end, worker)
        return worker

    def wait_for_stage(self, stage):
        """Waits until a kill file has a line with this word."""
        kills = pathlib.Path(self.dir, "kills")
        wait_until(lambda: any(stage in each.read_text() for each in kills.glob("*")))

    def slow_server(self, calls, how, us, path=None):
        """Makes these calls of the running server slow. path: those alone that name it."""
        words = with_slow(calls, how, us) + (() if path is None else ("-P", str(path)))
        slow = subprocess.Popen([*words, "-p", str(self.server.pid)], stderr=subprocess.DEVNULL)
        self.addCleanup(end, slow)
        status = pathlib.Path(f"/proc/{self.server.pid}/status")
        wait_until(lambda: slow.poll() is not None or "\nTracerPid:\t0\n" not in status.read_text())
        if slow.poll() is not None:
            self.skipTest("strace may not trace the server")

    def run_worker(self, script, *args, status=0, says=None, **options):
        """Runs a worker to its end, with this exit status and no errors. Returns its standard output, which is
        `says` if that is given.
        """
        worker = self.start_worker(script, *args, **options)
        out, err = worker.communicate(timeout=BOUND_S)
        self.assertEqual((worker.returncode, err), (status, ""), out)
        if says is not None:
            self.assertEqual(out, says)
        return out

    def records(self, event, pid=None):
        return records([self.server.log], event, pid)

    def record(self, event, pid=None):
        """Waits for a record of that event, and returns it if it is the only one."""
        return wait_for_record(self, self.server.log, event, pid)

    def client(self, *words):
        """Runs timer_client, and returns its output."""
        done = subprocess.run([CLIENT, *words, "--dir", self.dir], stdout=subprocess.PIPE,
                              universal_newlines=True, timeout=BOUND_S)
        self.assertEqual(done.returncode, 0)
        return done.stdout

    def listed_scopes(self, pid=None):
        """Returns the scopes of this or another process, as in `timer_client list --json`."""
        listed = [json.loads(line) for line in self.client("list", "--json").splitlines()]
        return [each for each in listed if each["pid"] == (pid or os.getpid())]

    def open_scopes(self, pid=None):
        return sorted(each["scope"] for each in self.listed_scopes(pid))

    def statistics(self):
        """Returns the number of ended scopes by name."""
        listed = [json.loads(line)
                  for line in self.client("list", "--stats", "--json").splitlines()]
        counts = {}
        for each in listed:
            counts[each["scope"]] = counts.get(each["scope"], 0) + each["count"]
        return counts


def worker_test(script, **options):
    """Returns a test: a worker runs the script to its end; see run_worker()."""
    def test(case):
        case.run_worker(script, **options)
    return test


class ConfiguredCase(ServerCase):
    """The process has a client, too."""

    def setUp(self):
        super().setUp()
        self.configured = self.configure()


PREAMBLE = """
import filetimer, filetimer.admin, os, signal, sys, threading, time
def say(*words):
    print(*words, flush=True)
def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
def in_child(call):
    'Returns the exit status of a forked child that calls it.'
    pid = os.fork()
    if pid == 0:
        call()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

# Installs a handler that is not Python's, and of which Python does not know.
NATIVE_HANDLER = """
import ctypes
libc = ctypes.CDLL(None)
libc.signal.restype = ctypes.c_void_p
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
handler = ctypes.cast(libc.getpid, ctypes.c_void_p).value
def handle(number):
    return libc.signal(number, handler)
def is_handled(number):
    return handle(number) == handler
"""
