# SPDX-License-Identifier: MIT
"""--help of each program and subcommand has examples with existing options, and the exit codes."""
import re
import unittest

import suite
from installed import CLIENT, SERVER, options_of, run, subcommands


def examples_of(help_text):
    """Returns the command lines under Example: or Examples:, up to -- or a |."""
    listed = re.search(r"^Examples?:\n((?:  .*\n)+)", help_text, re.MULTILINE)
    return re.findall(r"^  (timer_\w+.*?)(?: -- .*| [|#].*)?$", listed[1] if listed else "",
                      re.MULTILINE)


class Help(unittest.TestCase):
    def check(self, *program, begins):
        text = run(*program, "--help")
        examples = examples_of(text)
        self.assertTrue(examples, f"no example in {program} --help")
        self.assertTrue([line for line in examples if line.startswith(begins)], examples)
        self.assertRegex(text, r"Exit (codes|status):")
        for line in text.splitlines():
            self.assertLessEqual(len(line), 100, line)

    def test_of_the_server(self):
        self.check(SERVER, begins="timer_server ")

    def test_one_letter_is_enough(self):
        for program in ((SERVER,), (CLIENT,), *((CLIENT, name) for name in subcommands())):
            self.assertEqual(run(*program, "-h"), run(*program, "--help"))

    def test_of_the_client_and_its_subcommands(self):
        self.check(CLIENT, begins="timer_client ")
        self.assertIn("acquire", subcommands())
        for name in subcommands():
            with self.subTest(name):
                self.check(CLIENT, name, begins=f"timer_client {name} ")

    def test_examples_use_options_that_there_are(self):
        programs = [(SERVER,), (CLIENT,), *((CLIENT, name) for name in subcommands())]
        checked = 0
        for program in programs:
            for line in examples_of(run(*program, "--help")):
                name, word, *_ = line.split() + [""]
                known = options_of(*((SERVER,) if name == "timer_server" else (CLIENT, word)))
                for option in re.findall(r" (--[a-z][a-z-]*)", line):
                    self.assertIn(option, known, line)
                    checked += 1
        self.assertGreater(checked, 10)


if __name__ == "__main__":
    suite.main()
