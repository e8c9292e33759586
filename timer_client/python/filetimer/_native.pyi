# SPDX-License-Identifier: MIT
from datetime import timedelta
from types import TracebackType
from typing import Callable, Final, Literal, ParamSpec, TypeVar, final

from ._client import Client as _PublicClient

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Seconds = float | timedelta

@final
class Times(tuple[float, float, bool, bool]):
    __match_args__: Final = ("elapsed", "remaining", "paused", "expired")
    n_fields: Final = 4
    n_sequence_fields: Final = 4
    n_unnamed_fields: Final = 0
    @property
    def elapsed(self) -> float: ...
    @property
    def remaining(self) -> float: ...
    @property
    def paused(self) -> bool: ...
    @property
    def expired(self) -> bool: ...

@final
class Scope:
    def __init__(
        self,
        timeout: _Seconds,
        name: str | None = None,
        *,
        signal: int = 9,
        grace: _Seconds | None = None,
        warn_after: _Seconds | None = None,
        first_timeout: _Seconds | None = None,
        on_expiry: Literal["kill", "raise"] = "kill",
        client: _PublicClient | None = None,
    ) -> None: ...
    def __enter__(self) -> Scope: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def __call__(self, function: Callable[_P, _R], /) -> Callable[_P, _R]: ...
    def acquire(self) -> None: ...
    def release(self) -> bool: ...
    def renew(self, timeout: _Seconds | None = None, /) -> bool: ...
    def pause(self) -> bool: ...
    def resume(self) -> bool: ...
    def times(self) -> Times | None: ...
    @property
    def name(self) -> str: ...
    @property
    def timeout(self) -> float: ...
    @property
    def elapsed(self) -> float | None: ...
    @property
    def remaining(self) -> float | None: ...
    @property
    def is_open(self) -> bool: ...

@final
class Heartbeat:
    def __enter__(self) -> Heartbeat: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def beat(self) -> bool: ...
    def release(self) -> bool: ...
    def pause(self) -> bool: ...
    def resume(self) -> bool: ...
    def times(self) -> Times | None: ...

@final
class Paused:
    def __enter__(self) -> Paused: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

class Client:
    def expires(
        self,
        timeout: _Seconds,
        name: str | None = None,
        *,
        signal: int = 9,
        grace: _Seconds | None = None,
        warn_after: _Seconds | None = None,
        first_timeout: _Seconds | None = None,
        on_expiry: Literal["kill", "raise"] = "kill",
    ) -> Scope: ...
    def heartbeat(
        self,
        timeout: _Seconds,
        name: str | None = None,
        *,
        signal: int = 9,
        grace: _Seconds | None = None,
        warn_after: _Seconds | None = None,
        first_timeout: _Seconds | None = None,
    ) -> Heartbeat: ...
    def paused(self, name: str | None = None, /) -> Paused: ...
    def start(self, timeout: _Seconds | None = None, /) -> None: ...
    def stop(self) -> bool: ...
    def close(self) -> None: ...
    @property
    def is_watched(self) -> bool: ...
    @property
    def target(self) -> str: ...
    @property
    def closed(self) -> bool: ...

def expires(
    timeout: _Seconds,
    name: str | None = None,
    *,
    signal: int = 9,
    grace: _Seconds | None = None,
    warn_after: _Seconds | None = None,
    first_timeout: _Seconds | None = None,
    on_expiry: Literal["kill", "raise"] = "kill",
) -> Scope: ...
def heartbeat(
    timeout: _Seconds,
    name: str | None = None,
    *,
    signal: int = 9,
    grace: _Seconds | None = None,
    warn_after: _Seconds | None = None,
    first_timeout: _Seconds | None = None,
) -> Heartbeat: ...
def paused(name: str | None = None, /) -> Paused: ...
def unlimited(name: str | None = None, /) -> Paused: ...
