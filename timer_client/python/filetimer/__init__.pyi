# SPDX-License-Identifier: MIT
import os
from datetime import timedelta
from typing import Callable, Literal, TypeVar

from ._client import Client as Client, Rendezvous as Rendezvous, ServerStatus as ServerStatus
from ._client import rpc_timeout as rpc_timeout
from ._errors import InvalidArgument as InvalidArgument
from ._errors import RendezvousTimeoutError as RendezvousTimeoutError
from ._errors import RpcTimeoutError as RpcTimeoutError, ScopeExpired as ScopeExpired
from ._errors import ServerBusy as ServerBusy, ServerUnavailable as ServerUnavailable
from ._errors import TimerError as TimerError
from ._native import Heartbeat as Heartbeat, Scope as Scope, Times as Times
from ._native import expires as expires, heartbeat as heartbeat, paused as paused
from ._native import unlimited as unlimited
from ._server import Server as Server

_Seconds = float | timedelta
_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_Call = TypeVar("_Call", bound=Callable[[], object])

__version__: str
__all__ = [
    "Client", "Heartbeat", "InvalidArgument", "Rendezvous", "RendezvousTimeoutError",
    "RpcTimeoutError", "Scope", "ScopeExpired", "Server", "ServerBusy", "ServerStatus",
    "ServerUnavailable", "TimerError", "Times", "close", "configure", "drain", "expires",
    "heartbeat", "is_watched", "on_shutdown", "paused", "ping", "rendezvous", "rpc_timeout",
    "shutdown", "start", "status", "stop", "unlimited"]

def configure(
    dir: _Path | None = None,
    *,
    fifo: _Path | None = None,
    missing: Literal["wait", "raise", "ignore"] = "wait",
    timeout: _Seconds = 10,
    statistics: bool = True,
    idle_timeout: _Seconds | None = None,
    rpc_timeout: _Seconds | None = None,
    stacks: bool = True,
) -> Client: ...
def close() -> None: ...
def is_watched() -> bool: ...
def start(timeout: _Seconds | None = None) -> None: ...
def stop() -> bool: ...
def ping() -> None: ...
def status() -> ServerStatus: ...
def drain(on: bool = True) -> int: ...
def shutdown(
    *, graceful: bool = True, workers: bool = False, force: bool = False, timeout: _Seconds = 30
) -> int: ...
def rendezvous(
    rank: int,
    world: int,
    timeout: _Seconds,
    name: str = "default",
    *,
    retries: int = 0,
    backoff: _Seconds = 1,
) -> Rendezvous: ...
def on_shutdown(function: _Call) -> _Call: ...
