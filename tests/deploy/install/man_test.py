# SPDX-License-Identifier: MIT
"""The man pages have exactly the options, subcommands and exit codes of --help, and no error in
their markup.
"""
import os
import re
import shutil
import unittest

import suite
from installed import CLIENT, SERVER, SOURCE, options_of, run, subcommands

PAGES = os.path.join(SOURCE, "docs", "man")
ASKING = "Subcommands that ask the server"


def read(page):
    with open(os.path.join(PAGES, page)) as file:
        return file.read()


def parts(text, macro):
    """Returns {title: text} of the sections (Sh) or subsections (Ss)."""
    titles_and_texts = re.split(rf"^\.{macro} (.*)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(titles_and_texts[::2], titles_and_texts[1::2]))


def options_in(text):
    return {"--" + name for name in re.findall(r"^\.It Fl -([a-z-]+)", text, re.MULTILINE)}


def codes_in(text):
    return set(re.findall(r"^\.It (\d+(?:\+N)?)$", text, re.MULTILINE))


def codes_of(*program):
    """Returns the exit codes of a --help, from the beginning of their table."""
    text = re.split(r"Exit (?:codes|status):", run(*program, "--help"))[1]
    return set(re.findall(r"(?<![\w.-])(\d+(?:\+N)?)(?= \w)", text))


class Markup(unittest.TestCase):
    @unittest.skipUnless(shutil.which("mandoc"), "no mandoc here")
    def test_mandoc_finds_no_fault(self):
        for page in os.listdir(PAGES):
            self.assertEqual(run("mandoc", "-T", "lint", "-W", "warning",
                                 os.path.join(PAGES, page)), "")

    @unittest.skipUnless(shutil.which("man"), "no man here")
    def test_groff_finds_no_fault(self):
        for page in os.listdir(PAGES):
            out = run("sh", "-c", 'man --warnings=w -l "$1" 2>&1 >/dev/null', "sh",
                      os.path.join(PAGES, page), env={**os.environ, "LC_ALL": "C.UTF-8"})
            self.assertEqual(out, "")


class Server(unittest.TestCase):
    def test_options(self):
        self.assertEqual(options_in(read("timer_server.8")), set(options_of(SERVER)))

    def test_choices_of_options(self):
        """`--kill tree|process`: each of these words."""
        page = re.sub(r" ", "", read("timer_server.8"))
        choices = [(option, value) for option, value in options_of(SERVER).items()
                   if re.fullmatch(r"[a-z|]+", value)]
        self.assertGreaterEqual(len(choices), 3)
        for option, value in choices:
            self.assertIn(f".ItFl{option[1:]}Cm{value}\n", page)

    def test_exit_codes(self):
        self.assertEqual(codes_in(read("timer_server.8")), codes_of(SERVER))


class Client(unittest.TestCase):
    def setUp(self):
        self.page = read("timer_client.1")
        self.described = parts(parts(self.page, "Sh")["DESCRIPTION"], "Ss")
        self.common = options_in(self.described["All subcommands"])
        self.asking = options_in(self.described[ASKING])

    def test_subcommands(self):
        self.assertEqual(set(self.described) - {"All subcommands", ASKING}, set(subcommands()))

    def test_options(self):
        self.assertEqual(set(options_of(CLIENT)), {"--help", "--version"})
        self.assertLessEqual({"--help", "--version"}, self.common)
        askers = set()
        for name in subcommands():
            options = set(options_of(CLIENT, name))
            if self.asking <= options:
                askers.add(name)
                options -= self.asking
            self.assertEqual(options_in(self.described[name]) | (self.common - {"--version"}),
                             options, name)
        listed = re.match(r"These are (.*)\.", self.described[ASKING])[1]
        self.assertEqual(set(re.split(r", | and ", listed)), askers)

    def test_exit_codes(self):
        of_most, of_run = parts(self.page, "Sh")["EXIT STATUS"].split("That of run")
        self.assertEqual(codes_in(of_run), codes_of(CLIENT, "run"))
        self.assertEqual(codes_in(of_most), codes_of(CLIENT))
        for name in subcommands():
            if name != "run":
                self.assertLessEqual(codes_of(CLIENT, name), codes_in(of_most), name)


class Examples(unittest.TestCase):
    def test_they_use_options_that_there_are(self):
        checked = 0
        for page in os.listdir(PAGES):
            for line in re.findall(r"^(?:\$ |\.Dl )?(timer_(?:client|server) .*)$", read(page),
                                   re.MULTILINE):
                line = line.partition(" -- ")[0]
                program = ((SERVER,) if line.startswith("timer_server ")
                           else (CLIENT, line.split()[1]))
                for option in re.findall(r" (--[a-z][a-z-]*)", line):
                    self.assertIn(option, options_of(*program), line)
                    checked += 1
        self.assertGreater(checked, 10)


if __name__ == "__main__":
    suite.main()
