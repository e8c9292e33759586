# SPDX-License-Identifier: MIT
"""Python stacks for the server's evidence, as docs/protocol.md has them: faulthandler writes them
into a file of the runtime directory when the server asks, whoever holds the interpreter's lock.
"""
from __future__ import annotations

import faulthandler
import os

from . import _native
from .errors import TimerError

# SIGRTMIN + 12 of Linux, to SIGRTMAX; SIGUSR2 belongs to schedulers and to users. Without the module
# signal, which costs more than all of this.
_SIGNALS = range(34 + 12, 65)
_offered: dict[str, tuple[int, int]] = {}  # by the file's path: its descriptor, and the signal
_is_watching_forks = False


def offer(client: _native.Client) -> bool:
    """Has the server of `client` ask this process for its stacks. False: it cannot, and the evidence
    will have none. Raises nothing.
    """
    global _is_watching_forks
    file = -1
    try:
        path = client._stacks_file()
        number = next(filter(_native._is_free, _SIGNALS), 0)
        if not path or path in _offered or number == 0:
            return path in _offered
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW,
                       0o600)
        faulthandler.register(number, file=file, all_threads=True, chain=False)
        client._offer_stacks(number, file)
    except (OSError, RuntimeError, TimerError):  # a full disk, a server that is on its way out
        if file >= 0:
            os.close(file)
        return False
    _offered[path] = file, number
    if not _is_watching_forks:
        _is_watching_forks = True
        os.register_at_fork(after_in_child=_become_child)
    return True


def _become_child() -> None:
    # At once: later these descriptors may be somebody else's. The child's own file comes with its
    # page, which comes with its first scope.
    if _offered:
        for file, number in _offered.values():
            faulthandler.unregister(number)
            os.close(file)
        _offered.clear()
        _native._child_offers_stacks()
