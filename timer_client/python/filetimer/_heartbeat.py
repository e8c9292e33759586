# SPDX-License-Identifier: MIT
"""Heartbeat: a scope that is open at once and that each beat renews."""
from __future__ import annotations

from ._caller import name_of_caller
from ._native import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._native import Client, Times, _Seconds


class Heartbeat:
    """An open scope that each beat() renews; heartbeat() makes one.

    It is released by release(), at the end of a `with`, and when the object is destroyed.
    """

    # The scope's own methods, so that a beat costs no more than the renewal of a scope.
    __slots__ = {
        "beat": "Moves the deadline to `timeout` from now. Returns False if the scope is not open: "
                "it expired, was released, or was never watched.",
        "release": "Releases the scope. Returns False if it was not open, or if the server's "
                   "verdict came first.",
        "pause": "Stops the scope's time until resume(). Returns False if it is not open.",
        "resume": "Continues the scope's time. Returns False if it is not open.",
        "times": "Returns Times(elapsed, remaining, paused, expired, timeout), in seconds; None: it "
                 "is not open."}
    beat: Callable[[], bool]
    release: Callable[[], bool]
    pause: Callable[[], bool]
    resume: Callable[[], bool]
    times: Callable[[], Times | None]

    def __init__(self, scope: Scope, /) -> None:
        self.beat = scope.renew
        self.release = scope.release
        self.pause = scope.pause
        self.resume = scope.resume
        self.times = scope.times

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


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
    scope = Scope(timeout, name_of_caller() if name is None else name, signal=signal, grace=grace,
                  warn_after=warn_after, first_timeout=first_timeout, client=client)._beginning()
    scope.acquire()
    return Heartbeat(scope)
