# SPDX-License-Identifier: MIT
"""Client: set-up and questions to the server. Scopes are in the compiled part."""
import atexit
import os
from contextvars import ContextVar

from . import _native
from ._errors import InvalidArgument

_rpc_timeout = ContextVar("filetimer_rpc_timeout", default=None)

_MISSING = ("wait", "raise", "ignore")
_WAIT_S = 10


class _Result:
    """Fields with names, as a server or a rendezvous gave them."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __repr__(self):
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other):
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None


class ServerStatus(_Result):
    """What status() gives.

    server_pid, server_version, uptime (seconds), dir, fifo, log, announcement ("none", "draining",
    "shutdown"), workers, open_scopes; since the server's start: requests, rejected, expired,
    killed; kills_under_way, unkillable, askers (that wait for an answer), descriptors,
    descriptor_limit, worker_limit, log_trouble (empty: the log can be written), command_pid (0: it
    runs none), json (all of it, one line).
    """


class Rendezvous(_Result):
    """What rendezvous() gives: round (int, the same for all who met), joined ({rank: pid})."""


class rpc_timeout:
    """A context in which questions wait at most `timeout` for the server's answer.

        with filetimer.rpc_timeout(5):
            print(filetimer.status())

    timeout: seconds, or a timedelta; math.inf: for ever. Contexts nest, the inner one counts. It
    holds for this thread (and this asyncio task).
    """

    def __init__(self, timeout):
        self._timeout = timeout
        self._tokens = []
        _native._check_timeout(timeout)

    def __enter__(self):
        self._tokens.append(_rpc_timeout.set(self._timeout))
        return self

    def __exit__(self, *_):
        _rpc_timeout.reset(self._tokens.pop())


def _folder(value, what):
    if value is None:
        return ""
    path = os.fsdecode(value)
    if "\0" in path:
        raise InvalidArgument(f"{what} has a NUL in it: expected a path")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} is no UTF-8: {ascii(path)}") from None
    return path


class Client(_native.Client):
    """A connection to the timer server of a run folder; configure() makes the default one.

    dir: the run folder; None: $FILETIMER_DIR, then the user's default folder.
    fifo: the pipe itself, where it is elsewhere; then scopes travel as lines (some microseconds
      each).
    missing: when no server is there: "wait" for it up to `timeout` seconds, then raise
      ServerUnavailable; "raise" that at once; "ignore" it: scopes are watched from the time a
      server is there.
    timeout: seconds, or a timedelta, for "wait"; math.inf: for ever. Ctrl-C ends the wait.
    statistics: count scopes, and their times, by name: `timer_client list --stats`.
    idle_timeout: seconds after which this process expires, too, when it has been in no scope at
      all since it left its first one. None: never.
    rpc_timeout: seconds that a question waits for its answer. None: $FILETIMER_RPC_TIMEOUT, else
      60 s.
    stacks: offer this process's Python stacks as evidence (faulthandler).

    Raises ServerUnavailable, InvalidArgument, TypeError, and TimerError when there is no room for
    this process's page. May be used from several threads. After a fork the child is a worker of
    its own and may use the client that it inherited.
    """

    def __init__(self, dir=None, *, fifo=None, missing="wait", timeout=_WAIT_S, statistics=True,
                 idle_timeout=None, rpc_timeout=None, stacks=True):
        if missing not in _MISSING:
            raise InvalidArgument(f"missing is {missing!r}: expected 'wait', 'raise' or 'ignore'")
        self._connect(_folder(dir, "dir"), _folder(fifo, "fifo"),
                      timeout if missing == "wait" else 0, missing == "ignore", statistics,
                      rpc_timeout, idle_timeout)
        if stacks:
            from . import _stacks
            _stacks.offer(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<filetimer.Client {'closed' if self.closed else self.target}>"

    def ping(self):
        """Returns when the server has answered.

        As every question it waits for at most the rpc_timeout, and raises RpcTimeoutError, and
        ServerUnavailable where no server is, or none that answers (PyTorch's). Ctrl-C ends the
        wait, but not what was asked for.
        """
        self._ping(_rpc_timeout.get())

    def status(self):
        """A ServerStatus. Raises as ping()."""
        return ServerStatus(**self._status(_rpc_timeout.get()))

    def drain(self, on=True):
        """While the server drains it watches no new scopes; open ones go on. False: no longer.

        Returns how many scopes are open. Raises as ping().
        """
        return self._drain(on, _rpc_timeout.get())

    def shutdown(self, *, graceful=True, workers=False, force=False, timeout=30):
        """Ends the server, and returns when it has ended: how many scopes were left open.

        graceful: wait for open scopes to end, at most `timeout` seconds; False: refuse at once
          while some are open. workers: wait for the workers to end, too. force: end whatever is
          open; with graceful once the time is up.
        Raises ServerBusy when it has not ended because of what is open; and as ping().
        """
        return self._shutdown(graceful, workers, force, timeout, _rpc_timeout.get())

    def rendezvous(self, rank, world, timeout, name="default", *, retries=0, backoff=1):
        """Waits until all ranks of `world` are there: a Rendezvous.

        rank: 0 to world - 1. timeout: seconds, or a timedelta, for all to come; math.inf: none.
        name: ranks of one name and world meet; 1 to 255 bytes.
        retries: how often to try again after RendezvousTimeoutError, and no other error, `backoff`
          seconds later and twice as long each time, at most a minute.
        Raises RendezvousTimeoutError, which names the ranks that are missing; and as ping(). No
        scope is opened: a rank that hangs here ends with the timeout.
        """
        number, joined = self._rendezvous(rank, world, timeout, name, retries, backoff,
                                          _rpc_timeout.get())
        return Rendezvous(round=number, joined=dict(joined))

    def on_shutdown(self, function):
        """Has `function` called, once, from a thread of its own, when the server announces that it
        shuts down: finish what is open, save a checkpoint. Also a decorator.

        What it raises is written to standard error. The client's end, and the interpreter's, wait
        for one that runs. Raises ServerUnavailable where there is no run folder. A forked child
        has none of its parent's.
        """
        return self._on_shutdown(function)


atexit.register(_native._end_callbacks)
