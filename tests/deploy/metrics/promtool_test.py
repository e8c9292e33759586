# SPDX-License-Identifier: MIT
"""What `timer_server --metrics` writes, and the example alerts, by Prometheus's own promtool."""
import os
import re
import unittest

from metrics_case import EXAMPLES, MISSING, WORKER, MetricsCase, promtool, unknown_families
import suite

HERE = os.path.dirname(os.path.abspath(__file__))
ALERTS = os.path.join(EXAMPLES, "filetimer_alerts.yml")
ALERTS_TEST = os.path.join(HERE, "alerts_test.yml")
OPERATIONS = os.path.join(HERE, "../../../docs/operations.md")
# A word of client_worker, so it has no blank.
HOSTILE = '"}\\{scope="é",le="1"}\\'


class Metrics(MetricsCase):
    def test_promtool_has_nothing_against_the_metrics_of_a_server(self):
        worker = self.start(WORKER)
        self.tell(worker, "connect")
        self.tell(worker, f"open {HOSTILE} 50")  # it expires, and the worker with it
        self.assertEqual(worker.wait(timeout=suite.BOUND_S), -9)
        text = self.metrics_when(r"^filetimer_killed_total{.*} 1$")
        self.assertEqual(promtool("check", "metrics", stdin=text), (0, ""))
        escaped = HOSTILE.replace("\\", "\\\\").replace('"', '\\"')
        self.assertIn(f'scope="{escaped}"}} 1\n', text)  # filetimer_expired_total

    def test_each_metric_of_the_alerts_is_one_of_the_server(self):
        with open(ALERTS) as file:
            named = set(re.findall(r"\bfiletimer_\w+", file.read()))
        self.assertIn("filetimer_up", named)
        self.assertEqual(unknown_families(named, self.metrics_when("^filetimer_up")), set())

    def test_the_table_of_the_documentation_has_each_metric_of_the_server(self):
        with open(OPERATIONS) as file:
            rows = re.findall(r"^\| (`filetimer_.*?) \|", file.read(), re.MULTILINE)
        listed = re.findall(r"`(\w+)`", " ".join(rows))
        text = self.metrics_when("^filetimer_up")
        self.assertEqual(sorted(listed), sorted(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)))


class Alerts(unittest.TestCase):
    def test_promtool_has_nothing_against_the_rules(self):
        status, out = promtool("check", "rules", ALERTS)
        self.assertEqual(status, 0, out)

    def test_there_is_a_test_for_each_alert(self):
        with open(ALERTS) as alerts, open(ALERTS_TEST) as tests:
            names = re.findall(r"- alert: (\w+)", alerts.read())
            tested = tests.read()
        self.assertGreater(len(names), 5)
        self.assertEqual([name for name in names if f'alertname="{name}"' not in tested], [])

    def test_each_alert_fires_for_its_cause_alone(self):
        status, out = promtool("test", "rules", ALERTS_TEST)
        self.assertEqual(status, 0, out)


if __name__ == "__main__":
    suite.main(MISSING)
