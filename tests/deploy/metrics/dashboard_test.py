# SPDX-License-Identifier: MIT
"""scripts/examples/filetimer_dashboard.json: its queries, by Prometheus's own promtool, over the metrics
of a real server. Grafana itself is not started.
"""
import itertools
import json
import os
import re
import unittest

from metrics_case import EXAMPLES, MISSING, WORKER, MetricsCase, promtool, unknown_families
import suite

# What Grafana puts in the place of variables: "All" of each, and times.
VALUES = {"instance": ".*", "dir": ".*", "__rate_interval": "1m"}
VARIABLE = re.compile(r"\$\{?(\w+)\}?")
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


def read_dashboard():
    with open(os.path.join(EXAMPLES, "filetimer_dashboard.json")) as file:
        return json.load(file)


def filled_in(query):
    return VARIABLE.sub(lambda variable: VALUES[variable[1]], query)


def panels_of(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def variables_of(dashboard):
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def queries_of(dashboard):
    """Returns (what it is for, expression, labels that must be in its result) of each query."""
    queries = [(f"panel \"{panel['title']}\" {target['refId']}", filled_in(target["expr"]),
                re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
               for panel in panels_of(dashboard) for target in panel["targets"]]
    for name, variable in variables_of(dashboard).items():
        if variable["type"] == "query":
            selector, label = LABEL_VALUES.fullmatch(variable["query"]["query"]).groups()
            queries.append((f"variable {name}", filled_in(selector), [label]))
    return queries


def series_of(text):
    """Returns the text's series as `promtool test rules` has them, on a host, each with one value."""
    samples = re.findall(r"^(filetimer_\w+){(.*)} (\S+)$", text, re.MULTILINE)
    return [{"series": f'{name}{{instance="host17:9100",{labels}}}', "values": f"{value} {value}"}
            for name, labels, value in samples]


def with_value(text, name, value):
    return re.sub(f"^(filetimer_{name}{{.*}}) .*", f"\\g<1> {value}", text, flags=re.MULTILINE)


def rectangle(panel):
    at = panel["gridPos"]
    return {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}


class Dashboard(unittest.TestCase):
    def test_each_query_asks_the_data_source_that_the_user_chooses(self):
        dashboard = read_dashboard()
        self.assertEqual(variables_of(dashboard)["datasource"]["type"], "datasource")
        for panel in panels_of(dashboard):
            for asks in (panel, *panel["targets"]):
                self.assertEqual(asks["datasource"], DATA_SOURCE, panel["title"])
        for variable in variables_of(dashboard).values():
            self.assertEqual(variable.get("datasource", DATA_SOURCE), DATA_SOURCE, variable["name"])

    def test_each_panel_has_an_id_and_a_place_of_its_own(self):
        panels = read_dashboard()["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        for panel in panels:
            self.assertLessEqual(panel["gridPos"]["x"] + panel["gridPos"]["w"], 24, panel["title"])
        for one, other in itertools.combinations(panels, 2):
            self.assertFalse(rectangle(one) & rectangle(other), (one["title"], other["title"]))

    def test_promtool_has_nothing_against_the_queries(self):
        rules = [{"record": f"query:{number}", "expr": expression}
                 for number, (_, expression, _) in enumerate(queries_of(read_dashboard()))]
        text = json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
        status, out = promtool("check", "rules", "/dev/stdin", stdin=text)
        self.assertEqual(status, 0, out)
        self.assertIn(f"{len(rules)} rules found", out)


class Queries(MetricsCase):
    def test_each_query_finds_series_of_a_server_with_the_labels_of_its_legend(self):
        text = self.metrics_of_a_kill()
        tests = []
        for what, expression, labels in queries_of(read_dashboard()):
            self.assertEqual(unknown_families(re.findall(r"\bfiletimer_\w+", expression), text), set(),
                             what)
            # "yes" for each label: some series of the result has it.
            wanted = expression
            for label in labels:
                wanted = f'label_replace({wanted}, "has_{label}", "yes", "{label}", ".+")'
            by = ", ".join(f"has_{label}" for label in labels)
            found = "{" + ", ".join(f'has_{label}="yes"' for label in labels) + "}"
            tests.append({"expr": f"group by ({by}) ({wanted})", "eval_time": "1m",
                          "exp_samples": [{"labels": found, "value": 1}]})
        self.assert_promtool_finds(text, tests)

    def test_servers_that_write_no_more_are_counted_unless_they_have_ended(self):
        text = self.metrics_of_a_kill()
        self.assert_counted(text, {"Servers": 1, "Servers gone": 0, "Logs that fail": 0})
        old = with_value(text, "collected_time_seconds", -100)  # and it is 60 now
        failed = with_value(old, "log_working", 0)
        self.assert_counted(failed, {"Servers": 0, "Servers gone": 1, "Logs that fail": 1})
        ended = with_value(failed, "up", 0)
        self.assert_counted(ended, {"Servers": 0, "Servers gone": 0, "Logs that fail": 0})

    def assert_counted(self, text, values):
        """Asserts what the panels of these titles show."""
        expressions = {what: expression for what, expression, _ in queries_of(read_dashboard())}
        self.assert_promtool_finds(text, [
            {"expr": expressions[f'panel "{title}" A'], "eval_time": "1m",
             "exp_samples": [{"labels": "{}", "value": value}]} for title, value in values.items()])

    def metrics_of_a_kill(self):
        """Returns metrics of a server that has killed a worker and has another with an open scope."""
        victim, worker = self.start(WORKER), self.start(WORKER)
        for started in (victim, worker):
            self.tell(started, "connect")
        self.assertIn("yes", self.tell(worker, "open forward 60000"))
        self.tell(victim, "open load 50")
        self.assertEqual(victim.wait(timeout=suite.BOUND_S), -9)
        return self.metrics_when(r"^filetimer_killed_total{.*} 1$", r"^filetimer_open_scopes{.*} 1$")

    def assert_promtool_finds(self, text, expression_tests):
        path = os.path.join(self.folder, "queries_test.yml")
        with open(path, "w") as file:
            json.dump({"rule_files": [], "evaluation_interval": "1m",
                       "tests": [{"interval": "1m", "input_series": series_of(text),
                                  "promql_expr_test": expression_tests}]}, file)
        status, out = promtool("test", "rules", path)
        self.assertEqual(status, 0, out)


if __name__ == "__main__":
    suite.main(MISSING)
