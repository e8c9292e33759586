#!/usr/bin/env python3
"""A stand-in for a rank of a PyTorch job, which does what DumpPipe and DebugInfoWriter do in
torch/csrc/distributed/c10d (ProcessGroupNCCL.hpp and .cpp, FlightRecorder.cpp).

flight_recorder.py WAY
Makes <TORCH_NCCL_DEBUG_INFO_PIPE_FILE><RANK>.pipe, removing what is there, opens it for reading
without blocking, and reads at most 128 bytes of it from time to time. A read with bytes is followed
by a dump: <TORCH_NCCL_DEBUG_INFO_TEMP_FILE><RANK> is truncated and written. Says "ready" when the
FIFO is open. WAY:
  dumps     the dump has SIZE bytes
  silent    reads the FIFO and never dumps
  unread    makes the FIFO and does not open it
  full      opens the FIFO, which has no room, and does not read it
  regular   has a regular file in place of the FIFO
  symlink   has a symlink to a FIFO that is read
Appends a line to <TORCH_NCCL_DEBUG_INFO_PIPE_FILE><RANK>.asked for each read that has bytes, with
their number. Dies with its parent.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

# TORCH_NCCL_COORD_CHECK_MILSEC is 1000 in PyTorch.
PERIOD_S = 0.05


def read_and_dump(fifo, stem, dump, size):
    while True:
        time.sleep(PERIOD_S)
        try:
            got = os.read(fifo, 128)
        except BlockingIOError:  # there is a writer, which has written nothing
            continue
        if not got:
            continue
        with open(stem + ".asked", "a") as file:
            file.write(f"{len(got)}\n")
        if size is not None:
            with open(dump, "wb") as file:
                file.write(bytes(size))


def main():
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    signal.alarm(100)
    way = sys.argv[1]
    rank = os.environ["RANK"]
    stem = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank
    dump = os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + rank
    path = stem + ".pipe"
    if os.path.lexists(path):
        os.unlink(path)
    if way == "regular":
        with open(path, "w") as file:
            file.write("text")
    elif way == "symlink":
        os.mkfifo(stem + ".real", 0o666)
        os.symlink(stem + ".real", path)
    else:
        os.mkfifo(path, 0o666)
    is_read = way in ("dumps", "silent", "symlink")
    fifo = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if is_read else -1
    if way == "full":
        fifo = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(fifo, bytes(4096))
    print("ready", flush=True)
    if not is_read:
        signal.pause()
    read_and_dump(fifo, stem, dump, int(sys.argv[2]) if way == "dumps" else None)


main()
