# SPDX-License-Identifier: MIT
"""Compiles source files one at a time, without generating code. If several files are compiled as one,
a file may lack an #include that a file before it has, and shadowed names go unnoticed.
usage: compile_alone.py BUILD COMMIT   (BUILD has compile_commands.json; compiles the files that have
changed since COMMIT, at most the last 6)
"""
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys

MOST = 6  # files; a usual change, and half a minute on two cores beside tests


def listed(*command):
    done = subprocess.run(["git", *command, "-z", "--name-only"], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode().split("\0")


build, commit = sys.argv[1:]
# The latest changes first, each file once.
changed = dict.fromkeys([*listed("diff", "HEAD"), *listed("log", "--format=", f"{commit}..HEAD")])
with open(os.path.join(build, "compile_commands.json")) as file:
    known = {entry["file"]: entry for entry in json.load(file)}
commands = [known[path] for path in map(os.path.abspath, changed) if path in known]
left_out = len(commands) - MOST
commands = commands[:MOST]


def compiles(entry):
    command = [*shlex.split(entry["command"]), "-fsyntax-only"]
    done = subprocess.run(command, cwd=entry["directory"], stderr=subprocess.PIPE)
    sys.stdout.write(done.stderr.decode(errors="replace"))
    return done.returncode == 0


with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
    results = list(threads.map(compiles, commands))
print(f"{sum(results)} of {len(results)} changed files compile by themselves")
if left_out > 0:
    print(f"{left_out} that changed before these were left out")
sys.exit(0 if all(results) else 1)
