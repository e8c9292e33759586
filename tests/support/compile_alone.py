# SPDX-License-Identifier: MIT
"""Compiles source files one at a time, without making code. Where several files are compiled as one,
a file may lack an #include that the file before it has, and shadowed names are not seen.
usage: compile_alone.py BUILD COMMIT   (BUILD has compile_commands.json; what has changed since COMMIT)
"""
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys

build, commit = sys.argv[1:]
changed = subprocess.run(["git", "diff", "-z", "--name-only", "--diff-filter=d", commit],
                         check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
changed = {os.path.abspath(name) for name in changed if name.endswith(".cpp")}
with open(os.path.join(build, "compile_commands.json")) as file:
    commands = {entry["file"]: entry for entry in json.load(file) if entry["file"] in changed}


def compiles(entry):
    command = [*shlex.split(entry["command"]), "-fsyntax-only"]
    done = subprocess.run(command, cwd=entry["directory"], stderr=subprocess.PIPE)
    sys.stdout.write(done.stderr.decode(errors="replace"))
    return done.returncode == 0


with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
    results = list(threads.map(compiles, commands.values()))
print(f"{sum(results)} of {len(results)} changed files compile by themselves")
sys.exit(0 if all(results) else 1)
