# SPDX-License-Identifier: MIT
"""Regions in which the time of a thread's scopes is stopped."""
from __future__ import annotations

from _thread import get_ident

from . import _native
from ._caller import name_of_caller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._native import Client


class Paused:
    """A context in which the time of scopes is stopped; paused() makes one."""

    __slots__ = ("_client", "_name", "_regions")

    def __init__(self, name: str, client: Client | None) -> None:
        self._client = client
        self._name = _native.Scope(1, name, client=client).name  # checks both
        # The threads that have entered it. The end of a region ends its pause.
        self._regions: list[tuple[int, object]] = []

    def __enter__(self) -> Paused:
        client = _native._default_client() if self._client is None else self._client
        self._regions.append((get_ident(), client._pause_thread(self._name)))
        return self

    def __exit__(self, *_: object) -> None:
        own = [each for each in self._regions if each[0] == get_ident()]
        if own or self._regions:
            self._regions.remove((own or self._regions)[-1])


def paused(name: str | None = None, /, *, client: Client | None = None) -> Paused:
    """Returns a context that stops the time of all scopes that this thread has open or opens in it:

        with filetimer.paused("checkpoint"):
            save(model)

    In asyncio these are the scopes of all tasks of the thread; Scope.pause() stops one scope.

    name: the name of the region, which is a scope without a deadline and shows where the thread is;
      None: the caller's file and line. The server's --max-timeout applies to the region.
    client: a Client; None: the client of configure(). The scopes of a Client for another runtime
      directory continue.

    Contexts may be nested, and must be left in the thread that entered them. Raises as expires().
    """
    return Paused(name_of_caller() if name is None else name, client)
