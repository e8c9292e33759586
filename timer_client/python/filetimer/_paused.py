# SPDX-License-Identifier: MIT
"""Regions in which the time of a thread's scopes is stopped."""
from __future__ import annotations

from ._caller import name_of_caller
from ._native import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ._native import Client


class Paused(Scope):
    """A context in which the time of scopes is stopped; paused() makes one."""

    # Scope's own methods: a handler of a signal that raised in them would leave the region open.
    __slots__ = ()

    def __call__(self, function: object, /) -> NoReturn:
        raise TypeError("a pause is no decorator: expected filetimer.Scope or expires()")

    def __repr__(self) -> str:
        return f"<filetimer.Paused {self.name!r}>"


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
    return Paused(1, name_of_caller() if name is None else name, client=client)._pausing()
