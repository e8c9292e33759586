# SPDX-License-Identifier: MIT
"""What the tests of this folder share: promtool, and a server that writes metrics."""
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import suite

SERVER = os.environ["FILETIMER_SERVER"]
WORKER = os.path.join(os.environ["FILETIMER_BIN_DIR"], "client_worker")
EXAMPLES = os.environ["FILETIMER_EXAMPLES_DIR"]
PROMTOOL = shutil.which("promtool")
MISSING = "" if PROMTOOL else "no promtool here (Debian's package prometheus)"


def promtool(*arguments, stdin=None):
    """Returns what promtool prints; its status is 0 only if it has nothing against the input."""
    done = subprocess.run([PROMTOOL, *arguments], input=stdin, text=True, timeout=suite.BOUND_S,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def unknown_families(names, text):
    """Returns those of the series' names that are of no metric family in the text."""
    families = set(re.findall("^# TYPE (\\S+)", text, re.MULTILINE))
    return {re.sub("_(bucket|count|sum)$", "", name) for name in names} - families


class MetricsCase(unittest.TestCase):
    """Has a server that writes the file self.file, and starts its workers."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="filetimer metrics ")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.dir = os.path.join(folder.name, "run")
        self.file = os.path.join(folder.name, "filetimer.prom")
        self.server = self.start(SERVER, "--dir", self.dir, "--metrics", self.file,
                                 "--max-interval", "20ms")
        self.assertIn("ready", self.server.stdout.readline())

    def start(self, *command):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   env={**os.environ, "FILETIMER_DIR": self.dir})
        self.addCleanup(suite.end, process)
        return process

    @staticmethod
    def tell(worker, line):
        """Returns the answer of a client_worker to a command."""
        worker.stdin.write(line + "\n")
        worker.stdin.flush()
        return worker.stdout.readline()

    def metrics_when(self, *patterns):
        """Returns the file once each pattern matches a line of it."""
        def matching():
            with contextlib.suppress(FileNotFoundError), open(self.file, newline="") as file:
                text = file.read()
                return text if all(re.search(each, text, re.MULTILINE) for each in patterns) else None
        return suite.wait_until(matching, f"a line for each of {patterns}")
