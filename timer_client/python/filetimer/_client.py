# SPDX-License-Identifier: MIT
"""Client, and configure(), which makes the default one."""
from __future__ import annotations

import os

from . import _native, _stacks
from ._heartbeat import Heartbeat, heartbeat
from ._paused import Paused, paused
from .errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ._native import Scope, _Path, _Seconds

_MISSING = ("ignore", "wait", "raise")  # as ConnectOptions::Missing has them
_WAIT_S = 10
_LONGEST_S = 1e9  # the longest timeout of a scope with a deadline
_configured_in = 0  # the process in which the program, not its first scope, called configure()


def _path(value: _Path | None, what: str) -> str:
    if value is None:
        return ""
    path = os.fsdecode(value)
    if not path:  # of a variable that is not set: it must not mean another server
        raise InvalidArgument(f"{what} is empty: expected a path, or None")
    if "\0" in path:
        raise InvalidArgument(f"{what} has a NUL in it: expected a path")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} is no path: {ascii(path)}") from None
    return path


class Client(_native.Client):
    """A connection to the timer server of a runtime directory; configure() makes the default one.

    dir: the runtime directory; None: $FILETIMER_DIR, then the user's default directory.
    missing: what to do if no server runs. "ignore": write one line on standard error and return; a
      server that starts later watches all scopes, including those already open. "wait": wait up to
      `timeout` seconds, then raise ServerUnavailable. "raise": raise it at once.
      $FILETIMER_MISSING takes precedence, and $FILETIMER=off makes a client that does nothing.
    timeout: seconds, or a timedelta, for "wait"; math.inf: no limit. Ctrl-C ends the wait.
    idle_timeout: the longest time in seconds that this process may be in no scope at all, once it
      has left a scope; then it expires. None, 0 or math.inf: no limit.
    rpc_timeout: seconds that a request of filetimer.admin waits for its answer. None:
      $FILETIMER_RPC_TIMEOUT, else 60 s.
    timeouts: a TOML file with timeouts by scope name, which replace those in the code, renewals
      included, for names that a thread has not used before; `timer_client suggest --format toml`
      writes one. A wrong file raises InvalidArgument. $FILETIMER_TIMEOUTS takes precedence; if that
      file is wrong, one line on standard error says so, and the timeouts in the code count.
    stacks: whether this process offers its Python stacks as evidence (faulthandler), and lets the
      server trace it, so that evidence has its native stacks (PR_SET_PTRACER).

    Raises ServerUnavailable, InvalidArgument, TypeError, and TimerError if this process's page
    cannot be made; with missing="ignore" scopes are not watched until it can be made. A Client may
    be used from several threads. A forked child is a worker of its own and may use the client that
    it inherited.
    """

    _own_rpc_timeout: float | None = None

    def __init__(self, dir: _Path | None = None, *,
                 missing: Literal["ignore", "wait", "raise"] = "ignore",
                 timeout: _Seconds = _WAIT_S,
                 idle_timeout: _Seconds | None = None, rpc_timeout: _Seconds | None = None,
                 timeouts: _Path | None = None, stacks: bool = True) -> None:
        if missing not in _MISSING:
            raise InvalidArgument(f"missing is {missing!r}: expected 'ignore', 'wait' or 'raise'")
        if rpc_timeout is not None:
            self._own_rpc_timeout = _native._seconds(rpc_timeout, "the rpc_timeout")
        self._has_stacks = stacks
        self._connect(os.fsencode(_path(dir, "dir")), timeout, _MISSING.index(missing), stacks, idle_timeout,
                      os.fsencode(_path(timeouts, "timeouts")))
        if stacks:
            _stacks.offer(self)

    def heartbeat(self, timeout: _Seconds, name: str | None = None, *, signal: int = 9,
                  grace: _Seconds | None = None, warn_after: _Seconds | None = None,
                  first_timeout: _Seconds | None = None) -> Heartbeat:
        """Returns a filetimer.heartbeat() of this client."""
        return heartbeat(timeout, name, signal=signal, grace=grace, warn_after=warn_after,
                         first_timeout=first_timeout, client=self)

    def paused(self, name: str | None = None, /) -> Paused:
        """Returns a filetimer.paused() of this client."""
        return paused(name, client=self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<filetimer.Client {'closed' if self.closed else self.target}>"


def configure(dir: _Path | None = None, *, missing: Literal["ignore", "wait", "raise"] = "ignore",
              timeout: _Seconds = _WAIT_S,
              idle_timeout: _Seconds | None = None, rpc_timeout: _Seconds | None = None,
              timeouts: _Path | None = None, stacks: bool = True) -> Client:
    """Connects this process to its timer server; the functions of this package use it from then on.
    The first scope of a process that has not called it does so, with the defaults below.

    dir: the runtime directory; None: $FILETIMER_DIR, then the user's default directory.
    missing: what to do if no server runs. "ignore": return; a server that starts later watches all
      scopes. "wait": wait up to `timeout` seconds, then raise ServerUnavailable. "raise": raise it
      at once. $FILETIMER_MISSING takes precedence, and $FILETIMER=off switches the package off.
    The other arguments and the errors are those of Client. Returns the Client. A forked child
    inherits it; a spawned child has a client of its own.
    """
    global _configured_in
    client = Client(dir, missing=missing, timeout=timeout,
                    idle_timeout=idle_timeout, rpc_timeout=rpc_timeout, timeouts=timeouts,
                    stacks=stacks)
    _native._set_default_client(client)
    _configured_in = os.getpid()
    return client


def client_of_callback(idle_timeout: _Seconds | None) -> Client | None:
    """Returns a Client for the callback of a trainer; None: this process has called configure(), or
    inherits its client closed. A process that was forked after configure() has a Client for the same
    server, because it inherits no idle timeout.
    """
    if not _configured_in:
        return Client(idle_timeout=idle_timeout)
    parents = _native._default_client()
    if _configured_in == os.getpid() or parents.closed:
        return None
    return Client(os.path.dirname(parents.target) or None, idle_timeout=idle_timeout, stacks=parents._has_stacks)


class Steps:
    """The scope "train step", and any other of the callback's: at most one is open.

    first_step: None: ten times `step`, as far as a scope may have it.

    A trainer may send its callback to another process before begin(); a Scope cannot be sent.
    """

    def __init__(self, step: _Seconds, first_step: _Seconds | None,
                 idle_timeout: _Seconds | None) -> None:
        self._step_s = _native._seconds(step, "step")
        self._first_s = (max(min(10 * self._step_s, _LONGEST_S), self._step_s)
                         if first_step is None else _native._seconds(first_step, "first_step"))
        self._idle_timeout = idle_timeout
        self._open: Scope | None = None
        self.client: Client | None = None
        self.first: Scope | None = None
        self.next: Scope | None = None
        self._step: Scope | None = None

    def begin(self) -> None:
        self.client = client_of_callback(self._idle_timeout)
        self.leave()  # what an exception has left open
        # The first step of every training, not only of the process.
        self.first = self.next = _native.Scope(self._step_s, "train step", client=self.client,
                                               first_timeout=self._first_s)._beginning()
        self._step = _native.Scope(self._step_s, "train step", client=self.client)

    def enter_next(self) -> None:
        self.enter(self.next)
        self.next = self._step

    def enter(self, scope: Scope | None) -> None:
        self.leave()
        if scope is not None:
            scope.acquire()
        self._open = scope

    def leave(self) -> None:
        if self._open is not None:
            self._open.release()
        self._open = None

    def end(self) -> None:
        self.leave()
        if self.client is not None:
            self.client.close()
        self.client = self.first = self.next = self._step = None


def _make_default() -> None:
    """Is called by the first scope, or request, of a program that has not called configure()."""
    client = Client()
    if not _native._has_default_client():  # by a configure() of another thread meanwhile
        _native._set_default_client(client)


def close() -> None:
    """Ends the client of configure(), if there is one. Scopes that are entered from then on are not
    watched; see Client.close().
    """
    if _native._has_default_client():
        _native._default_client().close()
