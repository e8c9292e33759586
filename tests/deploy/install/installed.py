# SPDX-License-Identifier: MIT
"""The harness of the tests of an installation: the place of the build, a folder for each test, and
commands with a time limit.
"""
import os
import pathlib
import re
import subprocess
import unittest

import suite

BUILD = os.environ["BUILD"]
SOURCE = str(pathlib.Path(__file__).resolve().parents[3])
VERSION = os.environ["VERSION"]
BOUND_S = 240  # of every command; a compiler on a busy machine is the slowest

SERVER = os.path.join(BUILD, "bin", "timer_server")
CLIENT = os.path.join(BUILD, "bin", "timer_client")

# Prints the version of the Python package, and how many scopes its server sees.
PYTHON_WORKER = """
import filetimer
with filetimer.Server() as server, filetimer.Client(server.dir) as client:
    with client.expires(60, "x"):
        print(filetimer.__version__, filetimer.admin.status(client=client).open_scopes)
"""


def run(*command, status=0, **options):
    """Returns both outputs of a command together. It must end with this status."""
    options = {"timeout": BOUND_S, "stdin": subprocess.DEVNULL, **options}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, **options)
    if done.returncode != status:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def files_below(folder):
    """Returns the paths of all files, relative to the folder."""
    return {os.path.relpath(os.path.join(where, name), folder)
            for where, _, names in os.walk(folder) for name in names}


def subcommands():
    """Returns the subcommands of timer_client that --help lists."""
    listed = run(CLIENT, "--help").partition("\nWatch:\n")[2].partition("\nExamples:\n")[0]
    return re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)


def options_of(*program):
    """Returns {"--option": the name of its value, or ""} of a --help."""
    return dict(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z-]*)(?: (\S+))?", run(*program, "--help"),
                           re.MULTILINE))


def can_mount():
    """Returns whether mounts are allowed. They are not in most containers, nor in a chroot whose /
    is not a mount point."""
    done = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/run"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = suite.folder_of(self, "install")

    def path(self, *names):
        return os.path.join(self.folder, *names)
