#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the includes of timer_server/ by the list of folders in docs/design.md: a file includes
files of its own folder and of the folders above it in the list, and the includes have no circle."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def floors():
    """Returns the text of each folder's entry, in order; '.' is timer_server/ itself."""
    text = (ROOT / "docs/design.md").read_text()
    block = text[text.index("\ntimer_server/ "):text.index("\ntimer_client/ ")]
    entries = re.findall(r"^  ([a-z]+/|\.)  +(.*\n(?: {9,}.*\n)*)", block, re.M)
    return [(folder.rstrip("/"), words) for folder, words in entries]


def floor_of(path, entries):
    folder = "." if path.parent.name == "timer_server" else path.parent.name
    for number, (name, words) in enumerate(entries):
        if name == folder and (name != "." or re.search(rf"\b{path.stem}\b", words)):
            return number
    sys.exit(f"{path.relative_to(ROOT)} has no place in the list of docs/design.md")


def main():
    entries = floors()
    files = [path for path in sorted((ROOT / "timer_server").rglob("*")) if path.suffix in (".cpp", ".hpp")]
    floor = {str(path.relative_to(ROOT)): floor_of(path, entries) for path in files}
    includes = {name: [each for each in re.findall(r'#include "([^"]+)"', (ROOT / name).read_text())
                       if each.startswith("timer_")] for name in floor}
    wrong = [f"{name} includes {each}" for name in includes for each in includes[name]
             if floor.get(each, len(floor)) > floor[name]]
    done = set()

    def visit(name, path):
        if name in path:
            wrong.append("a circle: " + " ".join(path[path.index(name):]))
        elif name not in done:
            for each in includes.get(name, []):
                visit(each, [*path, name])
            done.add(name)

    for name in includes:
        visit(name, [])
    print("\n".join(wrong) or f"{len(files)} files include only what stands above them")
    return 1 if wrong else 0


sys.exit(main())
