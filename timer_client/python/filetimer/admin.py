# SPDX-License-Identifier: MIT
"""Control requests to the timer server, and their answers.

    import filetimer.admin

    filetimer.admin.ping()
    print(filetimer.admin.status().open_scopes)

Every request is sent to the server of `client`, by default of the client of filetimer.configure(),
and waits at most the rpc_timeout for the answer, in addition to the timeout of shutdown() and
rendezvous(). All functions raise RpcTimeoutError if the server does not answer in time,
ServerUnavailable if no server runs, and TimerError. Ctrl-C ends the wait and withdraws the request;
a shutdown that has begun continues.
"""
from __future__ import annotations

import math
import operator
from contextvars import ContextVar
from dataclasses import dataclass

from . import _ask as _asking
from . import _native
from .errors import InvalidArgument, RendezvousTimeoutError, ServerBusy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal

    from ._client import Client
    from ._native import _Seconds

__all__ = ["Rendezvous", "ServerStatus", "drain", "ping", "rendezvous", "rpc_timeout", "shutdown",
           "status"]

# How many scopes and ranks an error names.
_MOST_NAMED = 8

# (timeout, the value outside) of the innermost rpc_timeout.
_patience: ContextVar[tuple[Any, Any] | None] = ContextVar("filetimer_rpc_timeout", default=None)


class rpc_timeout:
    """A context in which control requests wait at most `timeout` for the server's answer, in
    addition to the timeout of shutdown() and rendezvous().

        with filetimer.admin.rpc_timeout(5):
            print(filetimer.admin.status())

    timeout: seconds, or a timedelta; math.inf: no limit.

    Contexts may be nested; the innermost one counts. A context applies to this thread, and in
    asyncio to this task. Without a context the rpc_timeout of the client counts, else
    $FILETIMER_RPC_TIMEOUT, else 60 s.
    """

    def __init__(self, timeout: _Seconds) -> None:
        self._timeout = _native._seconds(timeout, "the timeout")

    def __enter__(self) -> rpc_timeout:
        _patience.set((self._timeout, _patience.get()))
        return self

    def __exit__(self, *_: object) -> None:
        inner = _patience.get()
        _patience.set(inner[1] if inner is not None else None)


@dataclass
class ServerStatus:
    """The answer to status()."""

    server_pid: int  # in the server's pid namespace
    server_version: str
    uptime: float  # seconds
    dir: str
    fifo: str
    log: str
    announcement: Literal["none", "draining", "shutdown"]
    workers: int
    open_scopes: int
    # Since the server's start.
    requests: int
    rejected: int
    expired: int
    killed: int
    kills_under_way: int
    unkillable: int
    askers: int  # clients that wait now, in a rendezvous or for a shutdown
    descriptors: int
    descriptor_limit: int
    worker_limit: int
    log_trouble: str  # empty: the log can be written
    command_pid: int  # 0: the server runs no COMMAND
    json: str  # the whole answer, one line


@dataclass
class Rendezvous:
    """The result of rendezvous()."""

    round: int  # of this name; the same for all ranks that met
    joined: dict[int, int]  # {rank: pid}


def ping(*, client: Client | None = None) -> None:
    """Returns when the server has answered."""
    _ask(client, "ping")


def status(*, client: Client | None = None) -> ServerStatus:
    """Returns what the server watches, and what it has done since its start."""
    found, text = _ask(client, "status")
    limits = found.get("limits", {})
    found.update(uptime=float(found.get("uptime_s", 0)), descriptor_limit=limits.get("descriptors", 0),
                 worker_limit=limits.get("workers", 0), json=text)
    return ServerStatus(**{name: found.get(name, 0 if kind == "int" else "")
                           for name, kind in ServerStatus.__annotations__.items()})


def drain(on: bool = True, *, client: Client | None = None) -> int:
    """Has the server refuse new scopes; open scopes stay watched. Returns how many are open.

    on: False ends the drain, and withdraws a shutdown that waits; ServerBusy: the server has sent
      SIGTERM to its COMMAND already.
    """
    return _open_scope_count(_ask(client, "drain", off=not on)[0])


# What the server waits for, and whether it then ends even if scopes are open.
_MODES = {"graceful": ("scopes", False), "graceful_or_now": ("scopes", True),
          "workers": ("workers", False), "workers_or_now": ("workers", True),
          "if_idle": ("", False), "now": ("", True)}


def shutdown(mode: Literal["graceful", "graceful_or_now", "workers", "workers_or_now", "if_idle",
                           "now"] = "graceful", *,
             timeout: _Seconds = 30, client: Client | None = None) -> int:
    """Ends the server, and returns when it has ended. Returns how many scopes were open then.

    mode: "graceful" waits until no scope is open, and "workers" until all other workers have
      exited, too; "graceful_or_now" and "workers_or_now" do the same, but end the server after
      `timeout`; "if_idle" does not wait: it is refused if a scope is open, or a kill is under way;
      "now" ends the server at once.
      A server around COMMAND ends COMMAND: with SIGTERM; with "now", or when the time of an
      "_or_now" mode has passed, with SIGKILL to all that COMMAND started.
    timeout: the longest wait, in seconds, or a timedelta; at most the server's --max-wait (1 h),
      which math.inf stands for.
    Raises ServerBusy if the server stays because a scope is open or a worker runs.
    """
    if mode not in _MODES:
        raise InvalidArgument(f"mode is {mode!r}: expected one of "
                              + ", ".join(map(repr, _MODES)))
    graceful, force = _MODES[mode]
    wait = _native._seconds(timeout, "the timeout of shutdown()")
    return _open_scope_count(_ask(client, "shutdown", wait_s=wait, graceful=graceful,
                                  force=force)[0])


def rendezvous(rank: int, world: int, timeout: _Seconds, name: str = "default", *,
               client: Client | None = None) -> Rendezvous:
    """Waits until all ranks of this host have joined. Ranks on other hosts have other servers and
    cannot join.

    rank: 0 to world - 1. world: the number of ranks on this host.
    timeout: seconds, or a timedelta, for all ranks to join; at most the server's --max-wait (1 h),
      which math.inf stands for.
    name: ranks of one name and world meet; 1 to 255 bytes.
    Raises RendezvousTimeoutError, which names the ranks that are missing. It opens no scope: the
    timeout alone bounds the wait.
    """
    if not isinstance(name, str):
        raise TypeError(f"the rendezvous's name is a {type(name).__name__}: expected a str")
    wait = _native._seconds(timeout, "the timeout of rendezvous()")
    found, _ = _ask(client, "rendezvous", wait_s=wait, name=name, rank=operator.index(rank),
                    world=operator.index(world))
    return Rendezvous(found.get("round", 0), _members(found))


# --- requests and answers ---


def _ask(client: Client | None, request: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """Returns the last answer, and its text. Raises the error that the answer means."""
    asked = _native._default_client() if client is None else client
    if not isinstance(asked, _native.Client):
        raise TypeError(f"the client is a {type(asked).__name__}: expected a filetimer.Client")
    inner = _patience.get()
    patience = asked._own_rpc_timeout if inner is None else inner[0]
    if patience is None:  # the environment is read with the request: a typo must not end a training
        patience = _native._rpc_timeout_of_environment()
    wait = fields.pop("wait_s", patience)
    answer, text = _asking.ask(
        asked.target, {"request": request, **({} if wait == math.inf else {"wait_s": wait}), **fields},
        patience)
    kind = answer["answer"]
    if kind == "done":
        return answer, text
    why = answer.get("reason") or f"the server answered '{kind}' and gave no reason"
    if kind == "invalid":
        raise InvalidArgument(why)
    if kind == "timed_out" and request == "rendezvous":
        raise _rendezvous_timeout(fields["name"], why, answer)
    raise _busy(why, kind == "timed_out", answer)


def _busy(why: str, is_timeout: bool, answer: dict[str, Any]) -> ServerBusy:
    scopes = [{"pid": each.get("pid", 0), "rank": each.get("rank"), "scope": each.get("scope", ""),
               "elapsed": each.get("elapsed_s", 0.0), "remaining": each.get("remaining_s")}
              for each in answer.get("open_scopes", ())]
    count = _open_scope_count(answer)
    named = [f"'{_printable(each['scope'])}' of pid {each['pid']}"
             + (f" (rank {each['rank']})" if each["rank"] is not None else "")
             for each in scopes] or [
                 f"{_printable(each.get('comm', ''))} (pid {each.get('pid', 0)})"
                 for each in answer.get("workers", ())]
    listed = _listed(named, max(count, len(named)))
    error = ServerBusy(f"{why}; {'open' if scopes else 'alive'}: {listed}" if named else why)
    error.reason = why
    error.timed_out = is_timeout
    error.open_scope_count = count
    error.open_scopes = scopes
    return error


def _rendezvous_timeout(name: str, why: str, answer: dict[str, Any]) -> RendezvousTimeoutError:
    missing = answer.get("missing", [])
    left = answer.get("left", [])
    text = f"rendezvous '{_printable(name)}': {why}"
    for ranks, what in ((missing, "missing"), (left, "had joined and left")):
        if ranks:
            text += f"; {what}: {_listed(list(map(str, ranks)), len(ranks))}"
    error = RendezvousTimeoutError(text)
    error.name = name
    error.joined = list(_members(answer))
    error.missing = missing
    error.left = left
    return error


def _members(answer: dict[str, Any]) -> dict[int, int]:
    return dict(sorted((each.get("rank", -1), each.get("pid", 0))
                       for each in answer.get("joined", ())))


def _open_scope_count(answer: dict[str, Any]) -> int:
    return int(answer.get("open_scope_count", 0))


def _listed(words: Sequence[str], count: int) -> str:
    named = min(len(words), _MOST_NAMED)
    text = ", ".join(words[:named])
    return text if named == count else f"{text} and {count - named} more"


def _printable(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode()
