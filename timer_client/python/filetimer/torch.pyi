# SPDX-License-Identifier: MIT
import os

from torch.distributed.elastic.timer import TimerClient

from ._client import Client

class FileTimerClient(TimerClient):
    def __init__(
        self,
        file_path: str | os.PathLike[str] | None = None,
        signal: int = ...,
        *,
        client: Client | None = None,
    ) -> None: ...
    def acquire(self, scope_id: str, expiration_time: float) -> None: ...
    def release(self, scope_id: str) -> None: ...
