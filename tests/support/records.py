# SPDX-License-Identifier: MIT
"""The records in a server's log, for tests in Python."""
import contextlib
import json
import pathlib
import subprocess

import suite

HISTORY_CHECK = pathlib.Path(__file__).resolve().parents[1] / "chaos/history_check"


def judge_logs(test, folder):
    """Fails the test if a log below the folder breaks a promise of docs/promises.md."""
    for log in pathlib.Path(folder).rglob("*.jsonl"):
        done = subprocess.run([HISTORY_CHECK, "-", log],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        test.assertEqual((done.returncode, done.stdout), (0, ""), log.read_text()[:20_000])


def records(logs, event=None, pid=None, **fields):
    """Returns the records of that event with these fields (None: any) from all `logs` that exist, older parts first."""
    found = []
    for part in (pathlib.Path(f"{log}{end}") for log in logs for end in (".1", "")):
        for line in part.read_text(errors="replace").splitlines() if part.exists() else []:
            with contextlib.suppress(ValueError):  # half a line, which history_check judges
                found.append(json.loads(line))
    fields |= {"event": event, "pid": pid}
    return [record for record in found if all(value in (None, record.get(key)) for key, value in fields.items())]


def wait_for_record(test, log, event, pid=None, bound_s=suite.BOUND_S):
    """Waits for a record of that event, and returns it if it is the only one."""
    found = suite.wait_until(lambda: records([log], event, pid), f"no {event} record of {pid}", bound_s)
    test.assertEqual(len(found), 1, found)
    return found[0]
