#!/usr/bin/python3
"""PyTorch's unmodified timer, driven by filetimer_bench.

torch_timer.py server FIFO        serves until standard input closes
torch_timer.py client FIFO COUNT  prints the median microseconds of one `with expires()`
"""
# SPDX-License-Identifier: MIT
import logging
import statistics
import sys
import time

try:
    from torch.distributed.elastic.timer import (FileTimerClient, FileTimerServer, configure,
                                                 expires)
except ImportError:
    print("no torch", flush=True)
    sys.exit(1)

# The value of PyTorch's elastic agent; the default of the class is 10 s.
MAX_INTERVAL = 0.1
# PyTorch's client raises when the pipe is full, so the server gets time to read.
PAUSE = 0.001


def serve(fifo):
    logging.disable(logging.INFO)
    server = FileTimerServer(fifo, max_interval=MAX_INTERVAL)
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.run_once()


def cost(fifo, count):
    configure(FileTimerClient(fifo))

    taken = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        with expires(after=3600, scope="forward"):
            pass
        taken.append(time.perf_counter_ns() - begin)
        time.sleep(PAUSE)
    print(statistics.median(taken) / 1000)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[2])
    else:
        cost(sys.argv[2], int(sys.argv[3]))
