# SPDX-License-Identifier: MIT
"""A watchdog for distributed training: scopes with deadlines, and a server that keeps them.

    import filetimer

    filetimer.configure()                       # $FILETIMER_DIR, or the user's own folder
    for batch in batches:
        with filetimer.expires(30, "forward"):  # killed if still here in 30 s
            loss = model(batch)

One timer_server on each host kills the process whose scope is still open at its deadline, to the
millisecond, and records what hung, and where. To enter and leave a scope costs a fraction of a
microsecond, no system call and no lock. Timeouts are seconds (int or float) or timedelta.

expires, Scope      a scope: a context, or a decorator
heartbeat           a timer that a loop renews
paused, unlimited   a region in which time stands still
start, stop         one timer for the whole job
ping, status, drain, shutdown, rendezvous, rpc_timeout, on_shutdown   questions to the server
configure, Client   the connection; Server: a server of one's own
filetimer.torch     FileTimerClient for torch.distributed.elastic.timer

Errors are TimerError, wrong values also ValueError, those of time also TimeoutError.
"""
from ._client import Client, Rendezvous, ServerStatus, rpc_timeout
from ._errors import (InvalidArgument, RendezvousTimeoutError, RpcTimeoutError, ScopeExpired,
                      ServerBusy, ServerUnavailable, TimerError)
from ._native import Heartbeat, Scope, Times, expires, heartbeat, paused, unlimited
from ._native import _default_client, _set_default_client

__version__ = "0.1.0"
__all__ = [
    "Client", "Heartbeat", "InvalidArgument", "Rendezvous", "RendezvousTimeoutError",
    "RpcTimeoutError", "Scope", "ScopeExpired", "Server", "ServerBusy", "ServerStatus",
    "ServerUnavailable", "TimerError", "Times", "close", "configure", "drain", "expires",
    "heartbeat", "is_watched", "on_shutdown", "paused", "ping", "rendezvous", "rpc_timeout",
    "shutdown", "start", "status", "stop", "unlimited"]


def configure(dir=None, *, fifo=None, missing="wait", timeout=10, statistics=True,
              idle_timeout=None, rpc_timeout=None, stacks=True):
    """Connects this process to its timer server; the functions of this package use it from then on.

    dir: the run folder; None: $FILETIMER_DIR, then the user's default folder.
    missing: when no server is there: "wait" for it up to `timeout` seconds, then raise
      ServerUnavailable; "raise" that at once; "ignore" it: scopes are watched once one is there.
    The other arguments and the errors are those of Client. Returns the Client. A forked child
    inherits it; a spawned one has to call configure() itself.
    """
    client = Client(dir, fifo=fifo, missing=missing, timeout=timeout, statistics=statistics,
                    idle_timeout=idle_timeout, rpc_timeout=rpc_timeout, stacks=stacks)
    _set_default_client(client)
    return client


def close():
    """Ends the client of configure(), if there is one; see Client.close()."""
    try:
        client = _default_client()
    except TimerError:
        return
    _set_default_client(None)
    client.close()


def is_watched():
    """Whether a server is there now."""
    return _default_client().is_watched


def start(timeout=None):
    """Starts the one timer of the whole job, named "job", or renews it.

    timeout: seconds or a timedelta; None: the server's --default-timeout.
    """
    _default_client().start(timeout)


def stop():
    """Ends the timer of start(). False when it was not open, or when the verdict came first."""
    return _default_client().stop()


def ping():
    """Returns when the server has answered; see Client.ping()."""
    _default_client().ping()


def status():
    """A ServerStatus; see Client.status()."""
    return _default_client().status()


def drain(on=True):
    """The server watches no new scopes from now on; see Client.drain()."""
    return _default_client().drain(on)


def shutdown(*, graceful=True, workers=False, force=False, timeout=30):
    """Ends the server, and returns when it has ended; see Client.shutdown()."""
    return _default_client().shutdown(graceful=graceful, workers=workers, force=force,
                                      timeout=timeout)


def rendezvous(rank, world, timeout, name="default", *, retries=0, backoff=1):
    """Waits until all ranks of `world` are there: a Rendezvous; see Client.rendezvous()."""
    return _default_client().rendezvous(rank, world, timeout, name, retries=retries,
                                        backoff=backoff)


def on_shutdown(function):
    """Has `function` called when the server announces that it shuts down; see
    Client.on_shutdown()."""
    return _default_client().on_shutdown(function)


def __getattr__(name):
    if name == "Server":  # it needs more of the standard library than a worker does
        from ._server import Server
        globals()["Server"] = Server
        return Server
    raise AttributeError(f"module 'filetimer' has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | {"Server"})
