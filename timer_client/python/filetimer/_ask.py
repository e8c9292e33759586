# SPDX-License-Identifier: MIT
"""Sends a control request and waits for its answers, see "Control requests" in docs/protocol.md."""
from __future__ import annotations

import json
import math
import os
import socket
import struct
import time
from threading import RLock

from ._kept import Kept, above_standard
from .errors import InvalidArgument, RpcTimeoutError, ServerUnavailable, TimerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_REQUEST_BYTES = 4096
_MOST_ANSWER_BYTES = 4 << 20
_MOST_PACKET_BYTES = 1 << 16
_LAST = ("done", "refused", "timed_out", "invalid")
_LONGEST_WAIT_S = 86400.0  # of one system call
_BUSY_PAUSE_S = 0.005      # between attempts to connect while too many clients wait

# A child that fork() makes closes its copies, which would hide from the server that the client exits.
# The lock keeps fork() out while a connection is made.
_under_way: set[Request] = set()
_lock = RLock()  # a signal handler of the same thread may fork, or ask


def _close_copies() -> None:
    for each in list(_under_way):
        each.close(is_copy=True)
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release,
                    after_in_child=_close_copies)


def ask(pipe: str, fields: dict[str, Any], patience: float) -> tuple[dict[str, Any], str]:
    """Returns the last answer of the server of `pipe`, and its text.

    patience: seconds for the first answer, and again beyond the time that the server grants.
    """
    if not pipe:
        raise ServerUnavailable("no timer server: $FILETIMER is off for this client")
    packet = json.dumps({"version": 1, **fields}).encode()
    if len(packet) > _MOST_REQUEST_BYTES:
        raise InvalidArgument(f"the request has {len(packet)} bytes: expected at most "
                              f"{_MOST_REQUEST_BYTES}")
    request = Request(pipe, fields["request"], patience)
    try:
        return request.ask(packet)
    finally:
        request.close()


class Request:
    def __init__(self, pipe: str, what: str, patience: float) -> None:
        self._pipe = pipe
        self._what = what
        self._patience = patience
        self._start = time.monotonic()
        self._deadline = self._start + patience
        self._reason = "it accepts no connection"  # why no answer has come
        with _lock:
            try:
                made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET,
                                             fileno=above_standard(made.detach()))
            except TimeoutError:  # of a signal handler, as ScopeExpired is; also below
                raise
            except OSError as error:
                raise TimerError(f"cannot make a socket: {error.strerror}") from None
            self._kept = Kept(self._socket.fileno())
            _under_way.add(self)

    def close(self, is_copy: bool = False) -> None:
        _under_way.discard(self)
        if not self._kept.is_same():
            self._socket.detach()  # it is closed, and the program may have a file of that number
            return
        try:
            if not is_copy:
                self._socket.shutdown(socket.SHUT_RDWR)  # also a copy of a child of a bare clone()
        except TimeoutError:
            raise
        except OSError:
            pass  # the server has hung up
        finally:
            self._socket.close()

    def ask(self, packet: bytes) -> tuple[dict[str, Any], str]:
        self._connect()
        self._reason = "it did not react"
        try:
            self._socket.send(packet, socket.MSG_NOSIGNAL)
        except TimeoutError:
            raise
        except OSError:
            pass  # it has hung up, and may have said why
        last: tuple[dict[str, Any], str] | None = None
        unread = b""
        while True:
            part = self._receive()
            if not part:
                if last is None:
                    raise ServerUnavailable(f"the timer server at '{self._pipe}' ended before it "
                                            f"answered '{self._what}'")
                return last
            *lines, unread = (unread + part).split(b"\n")
            if len(unread) > _MOST_ANSWER_BYTES:
                raise TimerError(f"an answer of the server at '{self._pipe}' is longer than "
                                 f"{_MOST_ANSWER_BYTES} bytes")
            for line in lines:
                last = last or self._last_in(line)
            # After a shutdown the server hangs up when it has ended.
            if last and (last[0]["answer"] != "done" or self._what != "shutdown"):
                return last

    def _connect(self) -> None:
        folder = os.path.dirname(self._pipe)
        path = os.path.join(folder, "control")
        opened = -1
        try:
            if len(os.fsencode(path)) > 107:  # the room in an address
                opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
                path = f"/proc/self/fd/{opened}/control"
            self._connect_to(path)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise ServerUnavailable(f"no timer server at '{self._pipe}': no process listens on "
                                    f"'{folder}/control'") from None
        except (TimerError, TimeoutError):  # the latter of a signal handler
            raise
        except OSError as error:
            if error.errno is None:
                raise  # of a signal handler
            raise TimerError(f"cannot connect to '{folder}/control': {error.strerror}") from None
        finally:
            if opened >= 0:
                os.close(opened)

    def _connect_to(self, path: str) -> None:
        while True:
            left = self._left()
            self._socket.settimeout(left)
            try:
                return self._socket.connect(path)
            except BlockingIOError:
                if left == 0:
                    raise self._no_answer() from None
                time.sleep(_BUSY_PAUSE_S)

    def _receive(self) -> bytes:
        """Returns the next packet, empty at the end. Answers that have arrived take precedence over
        the deadline.
        """
        while True:
            left = self._left()
            end = time.monotonic() + left
            try:
                if not self._kept.is_same():
                    raise OSError
                self._socket.settimeout(left)
                return self._socket.recv(_MOST_PACKET_BYTES)
            except ConnectionResetError:
                pass  # it is reported once, before the answers that have arrived
            except BlockingIOError:  # nothing is left
                raise self._no_answer() from None
            except TimeoutError as error:
                if error.args != ("timed out",) or time.monotonic() < end:
                    raise  # of a signal handler, as ScopeExpired is
            except OSError:
                if self._kept.is_same():
                    raise  # of a signal handler
                raise TimerError("this process has no connection for the answer any more: it was "
                                 "forked meanwhile, or closed its files") from None

    def _left(self) -> float:
        """Returns how long the next system call may take; 0 from the deadline on."""
        return min(max(self._deadline - time.monotonic(), 0.0), _LONGEST_WAIT_S)

    def _no_answer(self) -> RpcTimeoutError:
        waited = time.monotonic() - self._start
        state = "stopped" if self._is_stopped() else "alive"
        error = RpcTimeoutError(f"no answer to '{self._what}' from the server at '{self._pipe}' in "
                                f"{waited:.3g} s: {self._reason}; its process is {state}")
        error.request = self._what
        error.waited = waited
        return error

    def _is_stopped(self) -> bool:
        try:
            peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            with open(f"/proc/{struct.unpack('3i', peer)[0]}/stat", encoding="latin-1") as file:
                return file.read().rpartition(")")[2].split()[0] in "Tt"
        except TimeoutError:
            raise
        except (OSError, IndexError):
            return False

    def _last_in(self, line: bytes) -> tuple[dict[str, Any], str] | None:
        text = line.decode(errors="replace")
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            shown = text[:100].encode("unicode_escape").decode()
            raise TimerError(f"the server at '{self._pipe}' answered '{shown}': expected a JSON "
                             "object")
        self._reason = "the wait that it granted is over"
        if answer.get("answer") == "granted":
            granted = answer.get("wait_s")
            self._deadline = (time.monotonic() + self._patience
                              + (math.inf if granted is None else float(granted)))
        if answer.get("answer") not in _LAST:
            return None  # also one that another version of the server gives
        self._reason = "it announced its end, and still runs"
        return answer, text
