# SPDX-License-Identifier: MIT
"""The harness of the tests of launchers: a folder for each test, programs whose output is kept in
it, and bounded waits.
"""
import contextlib
import ctypes
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import unittest

import suite
from records import judge_logs
from suite import state_of

BIN = pathlib.Path(os.environ["FILETIMER_BIN_DIR"])
EXAMPLES = pathlib.Path(os.environ["FILETIMER_EXAMPLES_DIR"])
RANK = [sys.executable, str(pathlib.Path(__file__).resolve().parent / "rank.py")]
BOUND_S = 240  # of every wait; far more than a wait normally takes
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def free_port():
    """Returns one that no program is given which asks for any."""
    while True:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", random.randrange(20_000, 32_768)))
            return one.getsockname()[1]


def die_with_the_test():
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def wait_until(what, condition, bound_s=BOUND_S):
    return suite.wait_until(condition, what, bound_s)


def processes_of(session):
    """Returns a line for each process: pid, state, wait channel in the kernel, command line."""
    lines = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) != session:
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            waits_in = (folder / "wchan").read_text()
        except OSError:
            continue  # it has ended meanwhile
        lines.append(f"{folder.name} {state_of(folder.name)} {waits_in} {command[:100]}\n")
    return "".join(lines)


class JobCase(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        # Not below $TMPDIR, because programs may run as other users, and paths of sockets are
        # short.
        self.folder = pathlib.Path(suite.folder_of(self, "jobs", below="/tmp"))
        self.addCleanup(judge_logs, self, self.folder)
        self.programs = {}

    def start(self, name, argv, **environment):
        """Starts a program in the test's folder, with its output in NAME.out."""
        # PATH: the examples expect the programs there.
        environment = dict(os.environ, PATH=f"{BIN}:{EXAMPLES}:{os.environ['PATH']}", **environment)
        with open(self.folder / f"{name}.out", "wb") as output:
            started = subprocess.Popen(
                [str(word) for word in argv], cwd=self.folder, env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=die_with_the_test)
        self.programs[name] = started
        self.addCleanup(self.end, started)
        return started

    def end(self, started):
        """Ends a program with SIGTERM, or else SIGKILL, and then kills what it left behind."""
        if started.poll() is None:
            started.terminate()
            try:
                started.wait(timeout=10)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(started.pid, signal.SIGKILL)  # a group of its own, by start()
        except ProcessLookupError:
            pass
        started.wait(timeout=BOUND_S)

    def status_of(self, started):
        """Returns the status of a program that ends by itself. If it does not, fails the test with
        the states of all programs and their output."""
        try:
            return started.wait(timeout=BOUND_S)
        except subprocess.TimeoutExpired:
            doing = "".join(f"--- {name}\n{processes_of(one.pid)}"
                            for name, one in self.programs.items())
            said = "".join(f"--- {path.name}\n{path.read_text(errors='replace')}"
                           for path in sorted(self.folder.glob("*.out")))
            raise AssertionError(f"not ended in {BOUND_S} s\n{doing}{said}") from None

    def output(self, name):
        path = self.folder / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def only(self, found):
        self.assertEqual(len(found), 1, found)
        return found[0]
