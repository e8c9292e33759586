# SPDX-License-Identifier: MIT
"""Python stacks for the server's evidence, see docs/protocol.md. faulthandler writes them into a
file of the runtime directory on a signal of the server, whichever thread holds the interpreter's
lock.
"""
from __future__ import annotations

import faulthandler
import os

from . import _native
from ._kept import above_standard
from .errors import TimerError

# SIGRTMIN + 12 to SIGRTMAX of Linux; SIGUSR2 belongs to schedulers and to users. They are numbers
# because importing the module signal takes longer than all the code here.
_SIGNALS = range(34 + 12, 65)
_offered: dict[str, tuple[int, int]] = {}  # by the file's path: its descriptor, and the signal


def offer(client: _native.Client) -> None:
    """Offers this process's stacks to the server of `client`. If that is not possible, evidence has
    no Python stacks. Raises no error.
    """
    try:
        path = client._stacks_file()
        number = next(filter(_native._is_free, _SIGNALS), 0)
        if not path or path in _offered or number == 0:
            return
        file = above_standard(os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        try:
            faulthandler.register(number, file=file, all_threads=True, chain=False)
            client._offer_stacks(number, file)
        except BaseException:
            os.close(file)
            raise
    except TimeoutError:  # of a signal handler, as ScopeExpired is
        raise
    except (OSError, RuntimeError, TimerError):  # a full disk, a server that is ending
        return
    _offered[path] = file, number


def _become_child() -> None:
    # Closed at once: later these descriptors may be other files; they may be already, if the parent
    # has closed them. The child registers its own file when it opens its first scope, which makes
    # its page.
    for file, number in _offered.values():
        faulthandler.unregister(number)
        if _native._is_stacks_file_kept(number):
            os.close(file)
    _offered.clear()


os.register_at_fork(after_in_child=_become_child)
