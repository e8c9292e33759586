# SPDX-License-Identifier: MIT
"""A watchdog for distributed training: scopes with deadlines, and a server that enforces them.

    import filetimer

    filetimer.configure()                       # $FILETIMER_DIR, or the user's own directory
    for batch in batches:
        with filetimer.expires(30, "forward"):  # killed if still here in 30 s
            loss = model(batch)

One timer_server on each host kills a process whose scope is still open at its deadline, to the
millisecond, and records what hung, and where. Entering and leaving a scope takes a fraction of a
microsecond, without a system call or a lock. Timeouts are seconds (int or float) or timedelta.

expires, Scope      a scope: a context, or a decorator
each                a scope around every step of a loop's iterator
heartbeat           a scope that a loop renews
paused              a region in which the time of scopes is stopped
configure, close    make and end the default client of this process
Client              a further client, for another server
Server              a private server

filetimer.admin         control requests: ping, status, drain, shutdown, rendezvous
filetimer.errors        all errors; they are TimerErrors
filetimer.torch         FileTimerClient for torch.distributed.elastic.timer
filetimer.lightning     TimerCallback for Lightning
filetimer.transformers  TimerCallback for Hugging Face's Trainer
"""
from __future__ import annotations

from ._client import Client, close, configure
from ._each import each
from ._heartbeat import Heartbeat, heartbeat
from ._native import Scope, _check_interpreter, expires
from ._paused import paused
from .errors import ScopeExpired, ServerUnavailable, TimerError

_check_interpreter()  # also where CPython copies the native module of the main interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import admin as admin
    from ._server import Server as Server

__version__ = "0.2.0"
__all__ = ["Client", "Heartbeat", "Scope", "ScopeExpired", "Server", "ServerUnavailable",
           "TimerError", "close", "configure", "each", "expires", "heartbeat", "paused"]


def __getattr__(name: str) -> object:
    # These need more of the standard library than a worker does.
    if name == "Server":
        from ._server import Server
        globals()["Server"] = Server
        return Server
    if name == "admin":
        import filetimer.admin
        return filetimer.admin
    raise AttributeError(f"module 'filetimer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "Server", "admin"})
