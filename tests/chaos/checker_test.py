# SPDX-License-Identifier: MIT
"""The checker on a history and a log that hold, and on the same with one thing wrong: wrong_histories has them."""
import pathlib
import re
import subprocess
import tempfile
import unittest

import checker
import suite

HERE = pathlib.Path(__file__).resolve().parent


def expanded(text):
    text = re.sub(r"@([\d.]+)", lambda found: str(round(float(found[1]) * 1e9)), text)
    text = re.sub(r"\$(\d+) (\d+)", r'{"schema":1,"time":"t","host":"h","boot_id":"b","server_pid":\1,"mono_ns":\2', text)
    return re.sub(r"\*(\d+)", r'"start_time":9,"uid":0,"comm":"c","pid":\1', text)


def broken(log, history):
    """Returns the promises that are broken, and what is said of them."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("log", log), ("calls.history", history)):
            pathlib.Path(folder, name).write_text(expanded(text))
        said = checker.check(folder, [folder + "/log"])
    return {line.partition(":")[0] for line in said}, said


class Checker(unittest.TestCase):
    def setUp(self):
        self.log, self.history, self.wrong = re.split(r"## .*\n", (HERE / "wrong_histories").read_text())[1:]

    def test_a_history_that_holds_breaks_no_promise(self):
        self.assertEqual(broken(self.log, self.history), (set(), []))

    def test_each_promise_is_judged(self):
        page = (HERE.parents[1] / "docs/promises.md").read_text()
        for line in self.wrong.splitlines():
            promise, old, new = line.replace("\\n", "\n").split(" | ")
            with self.subTest(line):
                self.assertIn(old, self.history + self.log)
                log = self.log if old in self.history else self.log.replace(old, new, 1)
                found, said = broken(log, self.history.replace(old, new, 1))
                if promise == "none":
                    self.assertEqual(said, [])
                else:
                    self.assertIn(f"| `{promise}` |", page)
                    self.assertIn(promise, found, said)

    def test_the_program_prints_what_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            log = folder + "/log"
            for name in "log", "calls.history":
                pathlib.Path(folder, name).write_text("{}\n")
            both, of_log = checker.check(folder, [log]), checker.check(None, [log])
            for words, given, status, found in (((folder, log), "", 1, both), (("-", log), "", 1, of_log),
                                                (("--each",), f"{folder}\t{log}\n", 0, [*both, ""])):
                done = subprocess.run([HERE / "history_check", *words], input=given, stdout=subprocess.PIPE, text=True)
                self.assertEqual((done.returncode, done.stdout), (status, "\n".join([*found, ""])))


suite.main()
