# SPDX-License-Identifier: MIT
"""The main program of a test file in Python, folders of tests, and the end of processes that tests start.
A case that cannot run here is reported as one line, "skipped: NAME: REASON", which scripts/test counts. A
file of which no case ran exits with 77, which CTest shows as skipped.
"""
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
import time
import unittest

SKIPPED = 77
BOUND_S = 30  # of every wait; far longer than any wait of a working test


def folder_of(test, kind, below=None):
    """Makes a folder, which is removed after the test, and returns its path."""
    folder = tempfile.mkdtemp(prefix=f"filetimer-{kind}-", dir=below)
    test.addCleanup(shutil.rmtree, folder, ignore_errors=True)
    return folder


def library_to_preload(test, name):
    """Returns a path of a built library without the spaces and colons at which the linker splits LD_PRELOAD."""
    link = os.path.join(folder_of(test, "preload"), name)
    os.symlink(os.path.abspath(os.path.join(os.environ["FILETIMER_BIN_DIR"], "../tests/process", name)), link)
    return link


def end(process):
    """Kills the process if it still runs, and closes its pipes."""
    if process.poll() is None:
        process.kill()
    process.wait(timeout=BOUND_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def stat_of(pid, thread=None):
    """Returns the fields of /proc/PID/stat from the state on, of which 19 is the start time; None if it is gone."""
    try:
        path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
        return pathlib.Path(path).read_text().rpartition(")")[2].split()
    except OSError:
        return None


def state_of(pid):
    """Returns the state letter of /proc/PID/stat; empty if the process is gone."""
    return (stat_of(pid) or [""])[0]


class Bound(AssertionError):
    """Something did not happen within its bound."""


def wait_until(holds, what="it never came to hold", bound_s=BOUND_S):
    """Waits until `holds()` is true, and returns its value."""
    end = time.monotonic() + bound_s
    while True:
        result = holds()
        if result:
            return result
        if time.monotonic() > end:
            raise Bound(f"{what}: not within {bound_s} s")
        time.sleep(0.005)


def main(missing=""):
    """Runs the cases of the calling file. missing: one line why no case can run here."""
    if missing:
        print(f"skipped: {missing}")
        sys.exit(SKIPPED)
    result = unittest.main(verbosity=2, exit=False).result
    for case, reason in result.skipped:
        print(f"skipped: {case.id().removeprefix('__main__.')}: {reason}")
    if not result.wasSuccessful():
        sys.exit(1)
    # A class that is skipped as a whole counts as one result more than the cases that ran.
    sys.exit(SKIPPED if result.testsRun <= len(result.skipped) else 0)
