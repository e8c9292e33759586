# SPDX-License-Identifier: MIT
"""Scopes with on_expiry="raise", and the signal that the server sends when their timeout has passed: a
real-time signal without a handler, because SIGUSR1 and SIGUSR2 belong to schedulers and to users.

The handler of the signal raises ScopeExpired at any line that the main thread runs, except in the
methods here: a scope that is being left must be released, and _after_exit checks whether the signal came.
That line is in the scope unless the code that has entered it is suspended meanwhile: a coroutine, for
which an event loop runs others, or a generator. Such a scope is refused when it is entered.
"""
from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref

from . import _native
from ._decorator import _CO_ASYNC_GENERATOR, _CO_COROUTINE, _CO_GENERATOR
from .errors import ScopeExpired, TimerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta
    from types import FrameType

    from ._native import Times

_FIRST = signal.SIGRTMIN + 4
_number = 0
_installed_in = 0  # the process whose main thread gets the signal; 0: no handler is installed
_is_ending = False
_is_waiting = False  # the signal came while a method here ran
_entered: list[weakref.ref[RaisingScope]] = []  # each once, the outermost first


class RaisingScope(_native.Scope):
    """A Scope that raises ScopeExpired. Scope() with on_expiry="raise" makes one."""

    _raised: int  # how many of its entries have raised: those whose deadline came first

    # A handler of another signal may raise in the methods here. So the scope is not open while the two
    # that __enter__ and __exit__ call run.

    def _before_enter(self) -> None:
        self._prepare()

    def _after_exit(self, times: Times | None, kind: type[BaseException] | None) -> None:
        """times: None in a forked child, and where it was not watched."""
        was_signalled = times is not None and times.remaining <= 0 and _has_signal()
        self._forget()
        has_raised = self._forget_raised(times)
        if times is not None and was_signalled and kind is None and not has_raised:
            raise ScopeExpired(self.name, times.timeout, times.elapsed)

    def acquire(self) -> None:
        self._prepare()
        super().acquire()

    def release(self) -> bool:
        times = self.times()
        in_time = super().release()
        self._forget()
        has_raised = self._forget_raised(times)
        return in_time and not has_raised

    def renew(self, timeout: float | timedelta | None = None, /) -> bool:
        times = self.times()
        is_renewed = super().renew(timeout)
        if is_renewed:
            self._forget_raised(times)  # it may raise again at its next deadline
        return is_renewed

    def _prepare(self) -> None:
        if threading.get_native_id() != os.getpid():
            raise TimerError(f"scope '{self.name}' has on_expiry='raise': only the main thread can "
                             "enter it")
        try:
            entering: FrameType | None = sys._getframe(2)
        except ValueError:
            entering = None  # native code calls the method
        if who := _other_code(entering):
            raise TimerError(f"scope '{self.name}' has on_expiry='raise': {who} would get the "
                             "exception: use on_expiry='kill'")
        if not self._all_times():
            self._raised = 0
        prepare()
        if all(each() is not self for each in _entered):
            # Without those that other threads have left and let go: _forget() has kept them.
            _entered[:] = [*(each for each in _entered if each() is not None), weakref.ref(self)]

    def _to_raise(self) -> list[Times]:
        """Returns the times of the entries that are due and have not raised; first the one that is next."""
        return sorted(filter(_is_due, self._all_times()), key=_turn)[self._raised:]

    def _forget_raised(self, times: Times | None) -> bool:
        """Returns whether the entry that had these times, and has ended or was renewed, had raised."""
        if times is None or not _is_due(times):
            return False
        due = filter(_is_due, self._all_times())
        if sum(_turn(each) < _turn(times) for each in due) >= self._raised:
            return False
        self._raised -= 1
        return True

    def _forget(self) -> None:
        if threading.get_native_id() != os.getpid():
            return  # the main thread may be entering it again, or another one
        done = (None,) if self._all_times() else (None, self)
        _entered[:] = [each for each in _entered if each() not in done]
        if _is_ending and not _entered:
            _ignore_signal()  # atexit calls no function that was registered meanwhile


def _is_due(times: Times) -> bool:
    return times.remaining <= 1e-9  # what an entry that is paused after its deadline has left


def _turn(times: Times) -> tuple[bool, float]:
    """Returns by what entries that are due are sorted: those that have raised come first."""
    return not times.paused, times.remaining


_OWN_CODE = {getattr(RaisingScope, name).__code__
             for name in ("_before_enter", "_after_exit", "acquire", "release", "renew")}


def _is_in_own_code(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _OWN_CODE:
            return True
        frame = frame.f_back
    return False


def _enters_for_caller(frame: FrameType | None) -> bool:
    # contextlib's "inner" wraps a decorated function and enters the context manager for itself.
    return frame is not None and (
        frame.f_code.co_name == "__enter__"
        or (frame.f_globals.get("__name__") == "contextlib" and frame.f_code.co_name != "inner"))


def _other_code(frame: FrameType | None) -> str:
    """Returns what may run while a scope is open that this frame enters; empty: the frame alone. A
    context manager, or a stack of them, is entered by the frame that uses it. each() leaves its scope
    before it yields.
    """
    if frame is not None and frame.f_globals.get("__name__") == "filetimer._each":
        return "the event loop" if frame.f_code.co_flags & _CO_ASYNC_GENERATOR else ""
    while frame is not None and (_enters_for_caller(frame) or (
            frame.f_code.co_flags & _CO_GENERATOR and _enters_for_caller(frame.f_back))):
        frame = frame.f_back
    flags = 0 if frame is None else frame.f_code.co_flags
    if flags & (_CO_COROUTINE | _CO_ASYNC_GENERATOR):
        return "the event loop"
    return "the code that uses this generator" if flags & _CO_GENERATOR else ""


def _has_signal() -> bool:
    return _is_waiting or _number in signal.sigpending()


def _handle(number: int, frame: FrameType | None) -> None:
    global _is_waiting
    _is_waiting = _is_in_own_code(frame)
    if _is_waiting:
        return  # the native part sends the signal again
    due = [(scope, times) for reference in list(_entered) if (scope := reference()) is not None
           for times in scope._to_raise()]
    if len(due) < 2:  # else it is sent again for the next one
        _native._stop_sending()
    if due:
        scope, times = due[0]
        error = ScopeExpired(scope.name, times.timeout, times.elapsed)
        try:
            scope._raised += 1  # just before it raises: this handler may run within itself
            raise error
        finally:
            del error  # it refers to this frame


def _ignore_signal() -> None:
    # At its end the interpreter gives every signal with a Python handler its default action, which
    # ends the process. A signal for a scope that was left may still be pending, so it is ignored
    # before that. A scope that is still open ends with SIGKILL.
    global _installed_in, _is_ending
    _native._stop_sending()
    signal.signal(_number, signal.SIG_IGN)
    _installed_in = 0
    _is_ending = True


def prepare() -> tuple[type[RaisingScope], int]:
    """Returns the class of scopes that raise, and the signal's number. Installs the handler if the
    caller is the main thread.
    """
    global _number, _installed_in
    if _number == 0:
        _number = next(filter(_native._is_free, range(_FIRST, signal.SIGRTMAX)), 0)
        if _number == 0:
            raise TimerError("no real-time signal is free for on_expiry='raise'")
    if threading.get_native_id() == os.getpid():  # main_thread() may be the one that imported threading
        if _installed_in == 0:
            signal.signal(_number, _handle)
            atexit.register(_ignore_signal)
        if _installed_in != os.getpid():
            _native._send_to_main_thread(_number)
            _installed_in = os.getpid()
    return RaisingScope, _number
