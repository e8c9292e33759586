# SPDX-License-Identifier: MIT
"""Heartbeat: a scope that is open at once and that each beat renews."""
from __future__ import annotations

from ._caller import name_of_caller
from ._native import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ._native import Client, _Seconds


class Heartbeat(Scope):
    """An open scope that each beat() renews; heartbeat() makes one.

    It is released by release(), at the end of a `with`, and when the object is destroyed.
    """

    # Scope's own methods: a beat costs no more than the renewal of a scope, and no handler of a signal
    # raises in __enter__ when it has opened the scope, or in __exit__ before it has released it.
    __slots__ = ()
    beat = Scope.renew

    def __call__(self, function: object, /) -> NoReturn:
        raise TypeError("a heartbeat is no decorator: expected filetimer.Scope or expires()")


def heartbeat(timeout: _Seconds, name: str | None = None, *, signal: int = 9,
              grace: _Seconds | None = None, warn_after: _Seconds | None = None,
              first_timeout: _Seconds | None = None, client: Client | None = None) -> Heartbeat:
    """Opens a scope that expires if beat() is not called for `timeout`: for a loop that has no
    natural end to wrap a scope around.

        with filetimer.heartbeat(60, "queue", first_timeout=600) as heart:
            for item in queue:
                heart.beat()

    first_timeout: seconds in place of `timeout` until the first beat. The other arguments and the
    errors are those of Scope.
    """
    heart = Heartbeat(timeout, name_of_caller() if name is None else name, signal=signal, grace=grace,
                      warn_after=warn_after, first_timeout=first_timeout, client=client)._beating()
    try:
        heart.__enter__()
    except BaseException:  # of a signal handler, whose traceback keeps the heartbeat alive
        heart.release()
        raise
    return heart
