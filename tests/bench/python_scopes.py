#!/usr/bin/python3
"""The cost of a scope in Python, for filetimer_bench.

python_scopes.py PATHS scopes DIR BATCHES  prints nanoseconds, medians of batches that took turns:
    an empty context of C's, a prepared Scope, the 50th percentile of single entries of that,
    expires() with a name and with the caller's line
python_scopes.py PATHS import              prints what `import filetimer` took: ms, KiB of memory
PATHS: where the modules are, joined by colons.
"""
# SPDX-License-Identifier: MIT
import os
import statistics
import sys
import time

BATCH = 2000


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def import_it():
    before = resident_kib()
    begin = time.perf_counter()
    import filetimer  # noqa: F401
    took = time.perf_counter() - begin
    print(took * 1e3, resident_kib() - before)


def scopes(folder, batches):
    import timeit

    import filetimer
    import noop_context

    filetimer.configure(folder)
    scope = filetimer.Scope(3600, "forward")
    names = {"noop": noop_context.context, "scope": scope, "expires": filetimer.expires}
    # The collector of garbage runs, too, as in a program; timeit stops it.
    kinds = [timeit.Timer(f"with {context}: pass", "import gc; gc.enable()", globals=names)
             for context in ("noop", "scope", "expires(30, 'x')", "expires(30)")]
    clock = time.perf_counter_ns
    taken = [[] for _ in kinds]
    singles = []
    for _ in range(batches):
        for samples, timer in zip(taken, kinds):
            samples.append(timer.timeit(BATCH) * 1e9 / BATCH)
        for _ in range(200):  # one by one, with a look at the clock on both sides
            begin = clock()
            with scope:
                pass
            singles.append(clock() - begin)
    noop, prepared, with_name, without_name = map(statistics.median, taken)
    print(noop, prepared, statistics.median(singles), with_name, without_name)


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1].split(":")
    if sys.argv[2] == "scopes":
        scopes(sys.argv[3], int(sys.argv[4]))
    else:
        import_it()
