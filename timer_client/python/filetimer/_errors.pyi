# SPDX-License-Identifier: MIT
from collections.abc import Sequence
from typing import Any

class TimerError(Exception): ...
class ServerUnavailable(TimerError): ...
class InvalidArgument(TimerError, ValueError): ...

class RpcTimeoutError(TimerError, TimeoutError):
    request: str
    waited: float

class RendezvousTimeoutError(TimerError, TimeoutError):
    name: str
    joined: Sequence[int]
    missing: Sequence[int]
    left: Sequence[int]

class ServerBusy(TimerError):
    reason: str
    timed_out: bool
    open_scope_count: int
    open_scopes: Sequence[dict[str, Any]]

class ScopeExpired(TimerError, TimeoutError):
    scope: str
    timeout: float
    elapsed: float
    def __init__(self, scope: str = "", timeout: float = 0.0, elapsed: float = 0.0) -> None: ...
