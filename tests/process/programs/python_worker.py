#!/usr/bin/env python3
"""A Python worker with a scope page, made by docs/protocol.md alone, for the process tests.

python_worker.py RUNFOLDER NAME WAY
Registers faulthandler on SIGUSR2, which its page names, prints "ready", and opens a scope of MS
milliseconds for the line "open MS" of its standard input, then hangs in WAY. Dies with its parent.
"""

import ctypes
import faulthandler
import fcntl
import mmap
import os
import signal
import struct
import sys
import threading
import time

PAGE_BYTES = 2_166_784
SLOTS_AT, NAMES_AT = 1024, 69_632
NEVER_GRACE = 0xFFFF_FFFF  # the server's --grace


def boot_id():
    with open("/proc/sys/kernel/random/boot_id") as file:
        return bytes.fromhex(file.read().strip().replace("-", ""))


def start_time():
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


class Page:
    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        path = f"{folder}/scopes/.{name}"
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(self.file, PAGE_BYTES)
        for begin in (0, NAMES_AT):
            os.posix_fallocate(self.file, begin, 4096)
        self.map = mmap.mmap(self.file, PAGE_BYTES)
        fcntl.lockf(self.file, fcntl.LOCK_EX)
        struct.pack_into(
            "<8sII16siIQq", self.map, 0, b"TMERPAGE", 1, 1024, boot_id(),
            os.getpid(), os.geteuid(), start_time(), time.monotonic_ns())
        struct.pack_into("<II", self.map, 72, 0, signal.SIGUSR2)
        os.rename(path, f"{folder}/scopes/{name}")

    def open_scope(self, scope, milliseconds):
        now = time.monotonic_ns()
        timeout = milliseconds * 1_000_000
        text = scope.encode()
        struct.pack_into(f"<B{len(text)}s", self.map, NAMES_AT, len(text), text)
        struct.pack_into(
            "<qqqIIIIiHHII", self.map, SLOTS_AT + 8, now, now, timeout, NEVER_GRACE, 0, 0, 0,
            threading.get_native_id(), signal.SIGKILL, 0, 0, 0)
        struct.pack_into("<I", self.map, 64, 1)
        struct.pack_into("<q", self.map, SLOTS_AT, now + timeout)
        pipe = os.open(f"{self.folder}/requests", os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b'{"version": 1, "x_page": "%s"}\n' % self.name.encode())
        os.close(pipe)


def register_dump(folder, name):
    # Kept open for the life of the process: the handler can open nothing.
    file = os.open(f"{folder}/scopes/.stacks/{name}",
                   os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)


def hang_sleeping():
    time.sleep(100)


def hang_spinning():
    while True:
        pass


def hang_in_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def hang_holding_gil():
    # PyDLL holds the interpreter's lock during the call, which never returns here.
    libc = ctypes.PyDLL(None)
    while True:
        libc.sleep(100)


waiting = threading.Semaphore(0)


def start_threads():
    for i in range(15):
        threading.Thread(target=wait_in_thread, name=f"loader-{i}", daemon=True).start()
        waiting.acquire()


def wait_in_thread():
    waiting.release()
    threading.Event().wait()


def hang_with_threads():
    hang_in_lock()


def hang_until_asked():
    # The C library's _exit as the handler: it ends with the signal's number as its status.
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGUSR2, ctypes.cast(libc._exit, ctypes.c_void_p))
    hang_sleeping()


WAYS = {way.__name__: way for way in
        (hang_sleeping, hang_spinning, hang_in_lock, hang_holding_gil, hang_with_threads,
         hang_until_asked)}


def main():
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    signal.alarm(100)
    folder, name, way = sys.argv[1:4]
    register_dump(folder, name)
    page = Page(folder, name)
    if way == "hang_with_threads":
        start_threads()
    print("ready", flush=True)
    for line in sys.stdin:
        page.open_scope("step", int(line.split()[1]))
        WAYS[way]()


main()
