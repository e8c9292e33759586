# SPDX-License-Identifier: MIT
"""Python stacks for the server's evidence, as docs/protocol.md has them: faulthandler writes them
into a file of the run folder when the server asks, whoever holds the interpreter's lock.
"""
import faulthandler
import os

from . import _native

_FIRST = 12  # above SIGRTMIN (34 on Linux); SIGUSR2 belongs to schedulers and to users
_SIGRTMIN, _SIGRTMAX = 34, 64
_offered = {}  # by the file's path: its descriptor, open for the life of the process


def offer(client):
    """Has the server of `client` ask this process for its stacks. False: there is no page."""
    path = client._stacks_file()
    number = _SIGRTMIN + _FIRST + len(_offered)
    if not path or number > _SIGRTMAX:
        return False
    if path in _offered:
        return True
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW,
                       0o600)
    except OSError:
        return False  # a full disk, or a server that is on its way out: evidence without Python
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    client._offer_stacks(number)
    if not _offered:
        os.register_at_fork(after_in_child=_native._child_offers_stacks)
    _offered[path] = file
    return True


def offer_in_child(client):
    """Called in a forked child that has opened its first scope, and with it a page of its own."""
    inherited = list(_offered.values())
    _offered.clear()
    for i, file in enumerate(inherited):
        faulthandler.unregister(_SIGRTMIN + _FIRST + i)
        os.close(file)
    if inherited:
        offer(client)
