# SPDX-License-Identifier: MIT
"""A client for torch.distributed.elastic.timer, with which existing code uses filetimer:

    import torch.distributed.elastic.timer as timer
    import filetimer.torch

    timer.configure(filetimer.torch.FileTimerClient())
    with timer.expires(after=30, scope="forward"):
        loss = model(batch)
"""
from __future__ import annotations

import math
import os
import signal as _signal
import sys
import threading
import time

from torch.distributed.elastic.timer import TimerClient

from . import _native
from ._client import _LONGEST_S, Client
from ._decorator import _CO_GENERATOR
from .errors import InvalidArgument

_SOONEST_S = 1e-9  # the timeout for an expiration time that has passed already


def _client_of_pipe(path: str | os.PathLike[str]) -> Client:
    folder, name = os.path.split(os.fspath(path))
    if name != "requests":
        raise InvalidArgument(f"'{os.fspath(path)}' does not name a runtime directory DIR: expected "
                              "DIR/requests, client=, or no path where $FILETIMER_DIR names DIR")
    return Client(folder or ".")


class FileTimerClient(TimerClient):
    """Replaces torch.distributed.elastic.timer.FileTimerClient.

    file_path: the pipe of a timer_server, DIR/requests, as PyTorch's own client takes it. None: the
      client of filetimer.configure() is used.
    signal: the first signal of a kill; 0 or less: the server records the expiry and sends no signal.
    client: a filetimer.Client, instead of file_path.

    Unlike PyTorch's client it enforces each of several open timers of one name, and a timer takes a
    fraction of a microsecond. Raises InvalidArgument for another path, such as that of PyTorch's
    own server or of --fifo, and the errors of filetimer.Client.
    """

    def __init__(self, file_path: str | os.PathLike[str] | None = None,
                 signal: int = _signal.SIGKILL, *, client: _native.Client | None = None) -> None:
        super().__init__()
        if client is None and file_path is not None:
            client = _client_of_pipe(file_path)
        self._client = client
        self._signal = max(int(signal), 0)
        # The innermost last: (scope_id, id of the frame that has acquired it, thread, scope).
        self._open: list[tuple[str, int, int, _native.Scope]] = []

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Starts a timer. expiration_time: Unix seconds; over 1e9 s from now, or math.inf: none.
        A negative one is a release, as for PyTorch's server.
        """
        if expiration_time < 0:
            self.release(scope_id)
            return
        after = max(expiration_time - time.time(), _SOONEST_S)
        if after > _LONGEST_S:
            after = math.inf
        name = scope_id
        if isinstance(scope_id, str):
            name = scope_id.encode(errors="replace").decode()  # a path in it may not be UTF-8
        scope = _native.Scope(after, name, signal=self._signal, client=self._client)
        scope.acquire()
        self._open.append((scope_id, id(sys._getframe().f_back), threading.get_ident(), scope))

    def release(self, scope_id: str) -> None:
        """Ends the innermost timer of that name of the calling function, as expires() of its asyncio
        task, else of this thread, else one of another thread.
        """
        caller, thread = sys._getframe().f_back, threading.get_ident()
        # Another thread may have begun a generator, as expires() is one.
        may_move = caller is not None and bool(caller.f_code.co_flags & _CO_GENERATOR)
        while open_ones := [each for each in reversed(list(self._open)) if each[0] == scope_id]:
            found = max(open_ones, key=lambda each: (
                each[1] == id(caller) and (may_move or each[2] == thread), each[2] == thread))
            try:
                self._open.remove(found)
            except ValueError:  # another thread, or a handler of a signal, has ended it meanwhile
                continue
            found[3].release()
            return
