# SPDX-License-Identifier: MIT
"""What `timer_server --metrics` writes, and the example alerts, by Prometheus's own promtool."""
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest

import suite

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER = os.environ["FILETIMER_SERVER"]
WORKER = os.path.join(os.environ["FILETIMER_BIN_DIR"], "client_worker")
ALERTS = os.path.join(os.environ["FILETIMER_EXAMPLES_DIR"], "filetimer_alerts.yml")
PROMTOOL = shutil.which("promtool")
# A word of client_worker, so it has no blank.
HOSTILE = '"}\\{scope="é",le="1"}\\'


def promtool(*arguments, stdin=None):
    """Returns what promtool prints; its status is 0 only if it has nothing against the input."""
    done = subprocess.run([PROMTOOL, *arguments], input=stdin, text=True, timeout=suite.BOUND_S,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


class Metrics(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="filetimer metrics ")
        self.addCleanup(folder.cleanup)
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

    def metrics_when(self, pattern):
        """Returns the file once a line of it matches."""
        until = time.monotonic() + suite.BOUND_S
        while time.monotonic() < until:
            if os.path.exists(self.file):
                with open(self.file, newline="") as file:
                    text = file.read()
                if re.search(pattern, text, re.MULTILINE):
                    return text
            time.sleep(0.002)
        self.fail(f"no line matches {pattern}")

    def test_promtool_has_nothing_against_the_metrics_of_a_server(self):
        worker = self.start(WORKER)

        def tell(line):
            worker.stdin.write(line + "\n")
            worker.stdin.flush()
            return worker.stdout.readline()

        tell("connect")
        for name in ("forward", HOSTILE):
            self.assertIn("yes", tell(f"open {name} 60000"))
            self.assertIn("yes", tell(f"release {name}"))
        tell(f"open {HOSTILE} 50")  # it expires, and the worker with it
        self.assertEqual(worker.wait(timeout=suite.BOUND_S), -9)
        text = self.metrics_when(r"^filetimer_killed_total{.*} 1$")
        self.assertEqual(promtool("check", "metrics", stdin=text), (0, ""))
        escaped = HOSTILE.replace("\\", "\\\\").replace('"', '\\"')
        self.assertIn(f'scope="{escaped}"}} 1\n', text)  # filetimer_expired_total
        self.assertIn(f'_count{{dir="{self.dir}",scope="forward"}} 1\n', text)
        self.assertIn(f'_count{{dir="{self.dir}",scope="{escaped}"}} 1\n', text)

    def test_each_metric_of_the_alerts_is_one_of_the_server(self):
        text = self.metrics_when("^filetimer_up")
        families = set(re.findall("^# TYPE (\\S+)", text, re.MULTILINE))
        with open(ALERTS) as file:
            named = set(re.findall(r"\bfiletimer_\w+", file.read()))
        self.assertIn("filetimer_up", named)
        self.assertEqual({re.sub("_(bucket|count)$", "", name) for name in named} - families, set())


class Alerts(unittest.TestCase):
    def test_promtool_has_nothing_against_the_rules(self):
        status, out = promtool("check", "rules", ALERTS)
        self.assertEqual(status, 0, out)

    def test_each_alert_fires_for_its_cause_alone(self):
        status, out = promtool("test", "rules", os.path.join(HERE, "alerts_test.yml"))
        self.assertEqual(status, 0, out)


if __name__ == "__main__":
    suite.main(missing="" if PROMTOOL else "no promtool here (Debian's package prometheus)")
