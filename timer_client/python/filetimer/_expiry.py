# SPDX-License-Identifier: MIT
"""The signal by which scopes with on_expiry="raise" end: one that nobody else uses, and its
handler.

A real-time signal: SIGUSR1 and SIGUSR2 belong to schedulers and to users.
"""
import signal
import threading

from . import _native

_FIRST = 4  # above SIGRTMIN
_number = 0
_is_installed = False


def prepare():
    """The signal's number, with the handler installed if this is the main thread."""
    global _number, _is_installed
    if _number == 0:
        free = (number for number in range(signal.SIGRTMIN + _FIRST, signal.SIGRTMAX)
                if signal.getsignal(number) is signal.SIG_DFL)
        _number = next(free, 0)
        if _number == 0:
            raise _native_error("no real-time signal is free for on_expiry='raise'")
    if threading.current_thread() is threading.main_thread():
        if not _is_installed:
            signal.signal(_number, _native._scope_signal)
            _is_installed = True
        _native._send_to_main_thread(_number)  # in a forked child once more
    return _number


def _native_error(text):
    from ._errors import TimerError
    return TimerError(text)
