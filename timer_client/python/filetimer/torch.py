# SPDX-License-Identifier: MIT
"""A client for torch.distributed.elastic.timer, so that existing code goes through filetimer:

    import torch.distributed.elastic.timer as timer
    import filetimer.torch

    timer.configure(filetimer.torch.FileTimerClient())
    with timer.expires(after=30, scope="forward"):
        loss = model(batch)
"""
import os
import signal as _signal
import threading
import time

from torch.distributed.elastic.timer import TimerClient

from ._client import Client
from ._errors import TimerError
from ._native import Scope, _default_client

_SOONEST_S = 1e-9  # of an expiration time that has passed already


def _client_of_pipe(path):
    folder, name = os.path.split(os.fspath(path))
    if name == "requests" and os.path.exists(os.path.join(folder, "server")):
        return Client(folder)  # a run folder: scopes go on a page
    return Client(fifo=path)


class FileTimerClient(TimerClient):
    """In place of torch.distributed.elastic.timer.FileTimerClient.

    file_path: the server's pipe, as PyTorch's own client takes it ($TORCHELASTIC_TIMER_FILE); of a
      timer_server or of PyTorch's server. None: the client of filetimer.configure(), else the
      default run folder.
    signal: what the server kills with; 0: it records the expiry and kills nobody.
    client: a filetimer.Client, in place of file_path.

    Unlike PyTorch's it enforces each of several open timers of one name, raises nothing when the
    pipe is full, and takes some microseconds at most. Raises ServerUnavailable when there is no
    server.
    """

    def __init__(self, file_path=None, signal=_signal.SIGKILL, *, client=None):
        super().__init__()
        if client is None and file_path is not None:
            client = _client_of_pipe(file_path)
        elif client is None:
            try:
                client = _default_client()
            except TimerError:  # nobody has configured one
                client = Client()
        self._client = client
        self._signal = int(signal)
        self._open = {}  # scopes by (thread, scope_id), the innermost last

    def acquire(self, scope_id, expiration_time):
        """Starts a timer. expiration_time: Unix seconds; math.inf: none."""
        after = max(expiration_time - time.time(), _SOONEST_S)
        scope = Scope(after, scope_id, signal=self._signal, client=self._client)
        scope.acquire()
        self._open.setdefault((threading.get_ident(), scope_id), []).append(scope)

    def release(self, scope_id):
        """Ends the innermost timer of that name which this thread has open, else another one's."""
        key = (threading.get_ident(), scope_id)
        if key not in self._open:
            key = next((each for each in list(self._open) if each[1] == scope_id), None)
        scopes = self._open.get(key)
        if scopes:
            scopes.pop().release()
            if not scopes:
                self._open.pop(key, None)
