# SPDX-License-Identifier: MIT
"""The errors of this package. Timeouts are also TimeoutErrors, and wrong values ValueErrors."""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class TimerError(Exception):
    """The base of every error of this package."""


class ServerUnavailable(TimerError):
    """No server runs, none started in time, or the server answers no control requests."""


class InvalidArgument(TimerError, ValueError):
    """An argument is invalid, such as a timeout of zero or less, or a name with a NUL."""


class RpcTimeoutError(TimerError, TimeoutError):
    """The server did not answer a control request in time.

    request: its name, as "status". waited: seconds.
    """

    request: str = ""
    waited: float = 0.0


class RendezvousTimeoutError(TimerError, TimeoutError):
    """Not all ranks joined a rendezvous in time.

    name: of the rendezvous. joined, missing, left: ranks (lists of int); those in `left` had joined
    and did not wait to the end.
    """

    name: str = ""
    joined: Sequence[int] = ()
    missing: Sequence[int] = ()
    left: Sequence[int] = ()


class ServerBusy(TimerError):
    """The server refused a control request, or scopes were open at the end of a shutdown's wait.

    reason: in words. timed_out: the server waited first. open_scope_count: how many are open.
    open_scopes: up to 64 of them, dicts with pid, rank, scope, elapsed and remaining (seconds;
    None: not known, no deadline).
    """

    reason: str = ""
    timed_out: bool = False
    open_scope_count: int = 0
    open_scopes: Sequence[dict[str, Any]] = ()


class ScopeExpired(TimerError, TimeoutError):
    """A scope with on_expiry="raise" was open at its deadline.

    scope: its name. timeout, elapsed: seconds; the timeout is that of a file of timeouts, if one
    replaced that in the code.
    """

    def __init__(self, scope: str = "", timeout: float = 0.0, elapsed: float = 0.0) -> None:
        super().__init__(scope)  # three would be an OSError's errno, strerror and filename
        self.scope = scope
        self.timeout = timeout
        self.elapsed = elapsed

    def __str__(self) -> str:
        return (f"'{self.scope}' was open for {self.elapsed:.3g} s of {self.timeout:g} s: it has "
                "to be left within the grace, or the timer server kills this process")
