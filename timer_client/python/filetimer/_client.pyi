# SPDX-License-Identifier: MIT
import os
from datetime import timedelta
from typing import Callable, Literal, TypeVar

from . import _native

_Seconds = float | timedelta
_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_Call = TypeVar("_Call", bound=Callable[[], object])

class ServerStatus:
    server_pid: int
    server_version: str
    uptime: float
    dir: str
    fifo: str
    log: str
    announcement: Literal["none", "draining", "shutdown"]
    workers: int
    open_scopes: int
    requests: int
    rejected: int
    expired: int
    killed: int
    kills_under_way: int
    unkillable: int
    askers: int
    descriptors: int
    descriptor_limit: int
    worker_limit: int
    log_trouble: str
    command_pid: int
    json: str

class Rendezvous:
    round: int
    joined: dict[int, int]

class rpc_timeout:
    def __init__(self, timeout: _Seconds) -> None: ...
    def __enter__(self) -> rpc_timeout: ...
    def __exit__(self, *_: object) -> None: ...

class Client(_native.Client):
    def __init__(
        self,
        dir: _Path | None = None,
        *,
        fifo: _Path | None = None,
        missing: Literal["wait", "raise", "ignore"] = "wait",
        timeout: _Seconds = 10,
        statistics: bool = True,
        idle_timeout: _Seconds | None = None,
        rpc_timeout: _Seconds | None = None,
        stacks: bool = True,
    ) -> None: ...
    def __enter__(self) -> Client: ...
    def __exit__(self, *_: object) -> None: ...
    def ping(self) -> None: ...
    def status(self) -> ServerStatus: ...
    def drain(self, on: bool = True) -> int: ...
    def shutdown(
        self,
        *,
        graceful: bool = True,
        workers: bool = False,
        force: bool = False,
        timeout: _Seconds = 30,
    ) -> int: ...
    def rendezvous(
        self,
        rank: int,
        world: int,
        timeout: _Seconds,
        name: str = "default",
        *,
        retries: int = 0,
        backoff: _Seconds = 1,
    ) -> Rendezvous: ...
    def on_shutdown(self, function: _Call) -> _Call: ...
