# SPDX-License-Identifier: MIT
"""A rank of a job that Slurm or mpirun started. Works in steps, after each of which the ranks wait
for each other, through files in the folder SHARED.

    rank.py SHARED [--timeout S] [--whole S] [--steps N] [--hang RANK:STEP]

With --whole a scope of that timeout is open all the time; without it no scope is open between two
steps. With --hang that rank hangs, unless there is a checkpoint to resume from. Ends after N steps,
by SIGUSR1, or when SHARED/stop exists.
"""
import argparse
import contextlib
import os
import pathlib
import signal
import sys
import time

import filetimer

LOOK_S = 0.01
STEPS_BETWEEN_CHECKPOINTS = 5


def first_number(*names):
    return next(int(os.environ[name]) for name in names if name in os.environ)


def put(path, number):
    new = path.with_name(path.name + ".new")
    new.write_text(str(number))
    new.replace(path)


def get(path):
    return int(path.read_text()) if path.exists() else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shared", type=pathlib.Path)
    parser.add_argument("--timeout", type=float, default=10)
    parser.add_argument("--whole", type=float)
    parser.add_argument("--steps", type=int, default=sys.maxsize)
    parser.add_argument("--hang", default="")
    options = parser.parse_args()
    rank = first_number("SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
    ranks = first_number("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    attempt = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    steps_done = [options.shared / f"attempt{attempt}-rank{each}" for each in range(ranks)]
    checkpoint = options.shared / "checkpoint"

    stopping = []
    signal.signal(signal.SIGUSR1, lambda *_: stopping.append("SIGUSR1"))
    filetimer.configure()
    start = get(checkpoint)
    print(f"rank {rank} (pid {os.getpid()}) starts after step {start}, "
          f"watched in {os.environ['FILETIMER_DIR']}", flush=True)
    whole = contextlib.ExitStack()
    if options.whole:
        whole.enter_context(filetimer.expires(options.whole, "whole"))
    for step in range(start + 1, options.steps + 1):
        with filetimer.expires(options.timeout, "forward"):
            while options.hang == f"{rank}:{step}" and start == 0:
                signal.pause()
        if (options.shared / "stop").exists():
            stopping.append("stop")
        put(steps_done[rank], sys.maxsize if stopping else step)
        with filetimer.expires(2 * options.timeout, "exchange"):
            while any(get(each) < step for each in steps_done):
                time.sleep(LOOK_S)
        if stopping:
            break
        if rank == 0 and step % STEPS_BETWEEN_CHECKPOINTS == 0:
            put(checkpoint, step)
    whole.close()
    put(steps_done[rank], sys.maxsize)
    print(f"rank {rank} ends: {stopping[0] if stopping else 'done'}", flush=True)


if __name__ == "__main__":
    main()
