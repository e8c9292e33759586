# SPDX-License-Identifier: MIT
"""Regions in which the time of scopes is stopped: of a thread, and in asyncio of a task."""
from __future__ import annotations

import sys
from _thread import get_ident

from ._caller import name_of_caller
from ._native import Scope, _default_client, _pause_task
from .errors import TimerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._native import Client


def _is_in_task() -> bool:
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio.current_task() is not None
    except (AttributeError, RuntimeError):  # half imported; no loop runs in this thread
        return False


class Paused:
    """A context in which the time of scopes is stopped; paused() makes one."""

    __slots__ = ("_client", "_marker", "_region", "_thread")

    def __init__(self, name: str, client: Client | None) -> None:
        self._client = client
        self._marker = Scope(float("inf"), name, client=client)  # shows where the thread is
        self._region: object = None  # its destruction ends the pause; None: not entered
        self._thread: int  # that has entered it

    def __enter__(self) -> Paused:
        if self._region is not None:
            raise TimerError("this paused() context is open already: it can't be entered twice")
        self._thread = get_ident()
        if _is_in_task():
            self._marker.acquire()
            self._region = _pause_task()
        else:
            client = _default_client() if self._client is None else self._client
            self._region = client._pause_thread(self._marker.name)
        return self

    def __exit__(self, *_: object) -> None:
        if self._region is None:
            raise TimerError("this paused() context was not entered")
        self._region = None
        self._marker.release()
        if self._thread != get_ident():
            raise TimerError("a paused() context is left in another thread than it was entered "
                             "in: it was ended")


def paused(name: str | None = None, /, *, client: Client | None = None) -> Paused:
    """Returns a context that stops the time of all scopes that this thread has open or opens in it:

        with filetimer.paused("checkpoint"):
            save(model)

    In an asyncio task it stops the scopes of that task only, not those of other tasks nor scopes
    that were opened around the event loop.

    name: the name of the region, which is a scope without a deadline and shows where the thread is;
      None: the caller's file and line. The server's --max-timeout applies to the region.
    client: a Client; None: the client of configure().

    Contexts may be nested, and must be left in the thread that entered them. Raises as expires().
    """
    return Paused(name_of_caller() if name is None else name, client)
