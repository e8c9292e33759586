# SPDX-License-Identifier: MIT
"""The records in a server's log, for tests in Python."""
import json
import os
import pathlib
import subprocess
import time


def judge_logs(test, folder):
    """Fails the test if a log below the folder breaks a promise of docs/promises.md."""
    for log in pathlib.Path(folder).rglob("*.jsonl"):
        done = subprocess.run([os.path.join(os.environ["FILETIMER_BIN_DIR"], "history_check"), "-", log],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        test.assertEqual((done.returncode, done.stdout), (0, ""), log.read_text()[:20_000])


def records(logs, event=None, pid=None):
    """Returns the records of that event and that worker (None: any) from all `logs` that exist."""
    lines = [line for log in map(pathlib.Path, logs) if log.exists()
             for line in log.read_text().splitlines()]
    return [record for record in map(json.loads, lines)
            if event in (None, record.get("event")) and pid in (None, record.get("pid"))]


def wait_for_record(test, log, event, pid=None, bound_s=30):
    """Waits for a record of that event, and returns it if it is the only one."""
    end = time.monotonic() + bound_s
    while time.monotonic() < end:
        found = records([log], event, pid)
        if found:
            test.assertEqual(len(found), 1, found)
            return found[0]
        time.sleep(0.005)
    test.fail(f"no {event} record of {pid}")
