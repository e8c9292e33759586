# SPDX-License-Identifier: MIT
"""A worker of the chaos tests in Python, with the commands of worker.cpp through the Python package.

worker.py NAME      $CHAOS_SOCKET: the driver's socket; $CHAOS_HISTORY: the folder of histories

open knows `raise` (on_expiry="raise"; ScopeExpired ends the scope), and in place of a scope in the main
thread `task` (in asyncio), `generator` and `thread` (with threads that never end, in blocking calls).
"""
import asyncio
import ctypes
import json
import math
import os
import resource
import signal
import socket
import sys
import threading
import time

import filetimer
from world import History

LAST_RESORT_S = 600
SOCKET, HISTORY = 1000, 1001  # high, so that a program that closes and opens files does not meet them
OWN_FILES = 20  # more than the package keeps open
CHANGED = 4  # exit status: the package has changed which signals are blocked


def move_to(number, to):
    os.dup2(number, to, inheritable=False)
    os.close(number)


def blocked_signals():
    return signal.pthread_sigmask(signal.SIG_BLOCK, [])


class Worker(History):
    def __init__(self, name):
        super().__init__(os.path.join(os.environ["CHAOS_HISTORY"], name + ".history"), name)
        move_to(self.file, HISTORY)
        self.file = HISTORY
        self.scopes, self.raising = {}, []
        self.command = bytearray(4096)  # has what was read also if an exception comes right behind the call
        self.owes_answer = False
        self.loop = None
        self.blocked = blocked_signals()
        driver = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        driver.connect(os.environ["CHAOS_SOCKET"])
        move_to(driver.detach(), SOCKET)
        signal.alarm(LAST_RESORT_S)
        os.write(SOCKET, name.encode())

    def run(self):
        while True:
            try:
                while self.command[0] or os.readv(SOCKET, [self.command]):
                    self.carry_out(**json.loads(self.command.rstrip(b"\0")))
                    if blocked_signals() != self.blocked:
                        os._exit(CHANGED)
                os._exit(0)
            except filetimer.ScopeExpired:
                self.leave_expired()
                if self.owes_answer:  # to a command of which the history has no end
                    self.answer(b'{"ok": false}')

    def answer(self, line):
        self.owes_answer = False
        os.write(SOCKET, line)

    def carry_out(self, op, **args):
        number = self.begin(op, **args)
        self.owes_answer = True
        self.command[:] = bytes(len(self.command))
        try:
            result = getattr(self, "do_" + op)(**args) or {}
        except filetimer.ScopeExpired:
            raise
        except Exception as error:
            result = {"ok": False, "error": str(error)}
        self.answer(self.end(number, **result))

    def leave_expired(self):
        for key in self.raising[:]:
            times = self.scopes[key].times()
            if times is None or times.remaining <= 0:
                self.end(self.begin("release", key=key), **self.do_release(key))

    # The commands

    def do_connect(self, idle_ns=None):
        filetimer.configure(idle_timeout=idle_ns and idle_ns / 1e9)

    def do_open(self, key, via, signal=9, scope=None, timeout_ns=math.inf, grace_ns=None, **where):
        options = {"signal": signal, "grace": grace_ns and grace_ns / 1e9}
        opened = filetimer.Scope(timeout_ns / 1e9, scope or key, on_expiry="raise" if "raise" in where else "kill",
                                 **options)
        self.scopes[key] = opened
        if "raise" in where:
            self.raising.append(key)
        self.acquire(opened, where)
        return {"watched": opened.times() is not None}

    def acquire(self, scope, where):
        """Opens it in the main thread, an asyncio task, a generator, or a thread that then blocks."""
        if "task" in where:
            self.loop = self.loop or asyncio.new_event_loop()
            self.loop.run_until_complete(self.acquire_in_task(scope))
        elif "generator" in where:
            next(entered := self.acquire_in_generator(scope))
            self.scopes[scope] = entered  # keeps it open
        elif "thread" in where:
            is_open = threading.Event()
            threading.Thread(target=lambda: (scope.acquire(), is_open.set(), threading.Event().wait()),
                             daemon=True).start()
            is_open.wait()
        else:
            scope.acquire()

    async def acquire_in_task(self, scope):
        scope.acquire()
        await asyncio.sleep(0)

    def acquire_in_generator(self, scope):
        scope.acquire()
        yield scope

    def do_renew(self, key, timeout_ns=None):
        return {"ok": self.scopes[key].renew(timeout_ns / 1e9)}

    def do_pause(self, key):
        return {"ok": self.scopes[key].pause()}

    def do_resume(self, key):
        return {"ok": self.scopes[key].resume()}

    def do_release(self, key):
        scope = self.scopes.pop(key)
        if key in self.raising:
            self.raising.remove(key)
        if scope.times() is None:
            return {}
        return {"in_time": scope.release()}

    def do_fork(self, child):
        if os.fork() == 0:
            self.__init__(child)
            self.run()
        return {"child": child}

    def do_exec(self):
        os.execv(sys.executable, [sys.executable, sys.argv[0], self.who])

    def do_exit(self, code=0):
        for scope in self.scopes.values():  # the end of an object would release it
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(scope))
        sys.exit(code)

    def do_threads(self, count):
        """Starts threads that wait in blocking calls of all kinds when the interpreter ends."""
        end = socket.socketpair()
        waits = (threading.Event().wait, lambda: time.sleep(LAST_RESORT_S), lambda: end[0].recv(1),
                 lambda: filetimer.configure(os.devnull, missing="wait", timeout=LAST_RESORT_S))
        for number in range(count):
            threading.Thread(target=waits[number % len(waits)], daemon=True).start()

    def do_close_fds(self):
        """As a daemon does. Files that it opens then have the numbers of those that it closed."""
        os.closerange(3, SOCKET)
        os.closerange(HISTORY + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        for _ in range(OWN_FILES):
            os.open(os.devnull, os.O_RDONLY)

    def do_fill_stderr(self):
        move_to(os.open("/dev/full", os.O_WRONLY), 2)


Worker(sys.argv[1]).run()
