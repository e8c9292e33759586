# SPDX-License-Identifier: MIT
import os

class Server:
    dir: str
    fifo: str
    log: str
    pid: int
    def __init__(
        self,
        *options: str,
        dir: str | os.PathLike[str] | None = None,
        executable: str | os.PathLike[str] | None = None,
    ) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Server: ...
    def __exit__(self, *_: object) -> None: ...
