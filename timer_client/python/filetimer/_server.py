# SPDX-License-Identifier: MIT
"""Server: a private timer_server of a script or a notebook."""
from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sysconfig
import tempfile
import weakref

from ._client import _path
from ._kept import Kept, above_standard
from .errors import InvalidArgument, ServerUnavailable, TimerError

_START_S = 20
_STOP_S = 20
# A server refuses to watch its own ancestors. So a shell that is no child of this process starts
# it. A shell ends the server when the pipe from this process closes, however this process ends, or has a
# line, and a second one then removes the folder that is its $0. That one reads a pipe until the server and the
# first shell have ended: a wait for a child needs SIGCHLD, which this process may have blocked. $SHELLOPTS
# may have errexit, with which bash would end at the end of a pipe. Bash reaps a server that has ended by itself, and
# then another process may get its pid. So the shell keeps /proc/PID of the server open, which has no files once the
# server is reaped, and signals the server only before that. Where there is no /proc it signals the pid. rm is found
# although $PATH may name no folder of the system, as in a unit of systemd.
_KEEPER = ('set +e; exec 3<&0 4>&1 </dev/null >/dev/null; '
           '{ "$@" 3<&- 5>&1 >&4 4>&- & server=$!; exec 4>&-; '
           '{ { read -r _ <&3; [ -e /proc/self/fd/6/stat ] && kill -TERM "$server"; :; } 6<"/proc/$server" || '
           '{ read -r _ <&3; [ -e /proc/self ] || kill -TERM "$server"; }; } 2>/dev/null; } | '
           '{ exec 3<&- 4>&-; read -r _; [ -z "$0" ] || PATH="/usr/bin:/bin:$PATH" rm -rf -- "$0"; } &')


def _installed() -> str | None:
    return (shutil.which("timer_server", path=sysconfig.get_path("scripts"))
            or shutil.which("timer_server"))


class Server:
    """A timer_server that lives as long as this object, in a runtime directory of its own.

        with filetimer.Server() as server:
            filetimer.configure(server.dir)

    dir: the runtime directory; None: a new one, which is removed with its log when the server ends.
    options: options of timer_server but --dir, as Server("--warn-at", "0.5"); see `timer_server
      --help`.
    executable: the program; None: $FILETIMER_SERVER, else timer_server beside this Python's own
      programs (of a virtual environment, activated or not), else in $PATH.

    Attributes: dir, fifo, log (paths), pid. The server ends at close(), at the end of the `with`,
    and when this process ends. It watches the scopes of this process like those of any other.
    Raises ServerUnavailable if the server cannot be started.
    """

    def __init__(self, *options: str, dir: str | os.PathLike[str] | None = None,
                 executable: str | os.PathLike[str] | None = None) -> None:
        executable = executable or os.environ.get("FILETIMER_SERVER") or _installed()
        if not executable:
            raise ServerUnavailable("timer_server is neither beside this Python nor in $PATH: install "
                                    "it, or say where it is (executable=, $FILETIMER_SERVER)")
        for option in options:
            if not isinstance(option, str) or "\0" in option or option == "--":
                raise InvalidArgument(f"{option!r} is no option of timer_server: expected a str, and "
                                      "no COMMAND")
            if option.partition("=")[0] == "--dir":
                raise InvalidArgument(f"{option!r} is an option of Server's own: expected dir=")
        path = _path(dir, "dir")
        folder = ""
        ends: list[int] = []
        try:
            if not path:
                memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
                folder = tempfile.mkdtemp(prefix="filetimer-", dir=memory)
                os.chmod(folder, 0o700)  # the umask may forbid its own user the search, as 0177
            for _ in range(3):
                ends += os.pipe()
        except TimeoutError:  # of a signal handler, as ScopeExpired is; also below
            raise
        except OSError as error:  # no room in the memory, or no more descriptors (ulimit -n)
            for number in ends:
                os.close(number)
            if folder:
                os.rmdir(folder)
            raise ServerUnavailable("cannot make the folder and the pipes of a server: "
                                    f"{error.strerror}") from error
        self.dir: str = os.path.abspath(path or os.path.join(folder, "run"))
        self.fifo: str
        self.log: str
        self._owner = os.getpid()
        ends = list(map(above_standard, ends))
        theirs, ours = (ends[0], ends[3], ends[5]), (ends[1], ends[2], ends[4])
        # _end closes when both the server and its shell have ended.
        self._input, self._output, self._end = map(Kept, ours)
        self._theirs = list(map(Kept, theirs))
        _servers.add(self)
        try:
            keeper = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, folder, os.fspath(executable), *options,
                 "--dir", self.dir, "--detach=false"],  # also where a --config says otherwise
                stdin=theirs[0], stdout=theirs[1], start_new_session=True, pass_fds=theirs[2:])
        except TimeoutError:
            raise
        except OSError as error:  # no /bin/sh, or no more processes (ulimit -u)
            if folder:
                os.rmdir(folder)
            raise ServerUnavailable(f"cannot run '/bin/sh': {error.strerror}") from error
        finally:
            for each in self._theirs:
                each.close()
        line = self._read_line()
        keeper.wait(timeout=_START_S)
        # ready dir=... fifo=... log=... pid=...; paths may have spaces and newlines
        found = re.match(r"ready dir=(.*) fifo=(.*) log=(.*) pid=(\d+)$", line, re.DOTALL)
        if not found:
            self.close()
            raise ServerUnavailable(f"'{executable}' did not start; see its words above")
        _, self.fifo, self.log, pid = found.groups()
        self.pid = int(pid)

    def close(self) -> None:
        """Ends the server, even if scopes are open, and returns when it has ended."""
        if self._input.number < 0 or self._owner != os.getpid():
            return  # a forked child does not end its parent's server
        # A line, because a child that native code has forked has a copy of the pipe: it would not be at its
        # end. No line without a reader: a SIGPIPE may end the process.
        if self._input.is_same() and not _is_readable(self._input, 0):
            os.write(self._input.number, b"\n")
        self._input.close()
        self._output.close()
        has_ended = not self._end.is_same() or _is_readable(self._end, _STOP_S)
        self._end.close()
        if not has_ended:
            raise TimerError(f"the timer server in '{self.dir}' has not ended in {_STOP_S} s")

    def _read_line(self) -> str:
        line = b""
        while not line.endswith(b"\n") and _is_readable(self._output, _START_S):
            part = os.read(self._output.number, 4096)
            if not part:
                break
            line += part
        return os.fsdecode(line)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_input"):
            self.close()

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _owner=0)  # a copy, also in another process, ends nothing

    def __repr__(self) -> str:
        has_ended = self._input.number < 0 and self._owner == os.getpid()
        state = "ended" if has_ended else f"pid {self.pid}"
        return f"<filetimer.Server {self.dir}, {state}>"


def _is_readable(end: Kept, bound_s: float) -> bool:
    poll = select.poll()  # select() takes no descriptor over 1,023
    poll.register(end.number, select.POLLIN)
    return bool(poll.poll(1000 * bound_s))


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _let_go() -> None:
    # The server ends with the process that started it, even if that process has children.
    for server in list(_servers):
        for each in (server._input, *server._theirs):  # the latter while another thread starts it
            each.close()


os.register_at_fork(after_in_child=_let_go)
