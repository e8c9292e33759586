# SPDX-License-Identifier: MIT
"""Descriptors that the package keeps. The program may close all descriptors (a daemon,
os.closerange), and its next file then has the number of one that was kept. Such a number belongs to
the program: it is neither used nor closed.
"""
from __future__ import annotations

import os


def above_standard(number: int) -> int:
    """Returns a number over 2 for the file. A daemon has closed the standard descriptors, and what it
    and its libraries print would go into a file that has one of their numbers.
    """
    if number > 2:
        return number
    try:
        import fcntl  # here: it is rarely needed
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(number)


class Kept:
    """A kept descriptor. `number` is -1 once it is closed."""

    __slots__ = ("_file", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._file = _file_behind(number)

    def is_same(self) -> bool:
        """Returns whether the number is still that of the file that was kept."""
        return self._file is not None and _file_behind(self.number) == self._file

    def close(self) -> None:
        if self.is_same():
            os.close(self.number)
        self.number = -1


def _file_behind(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except TimeoutError:  # of a signal handler, as ScopeExpired is
        raise
    except OSError:
        return None
    return found.st_dev, found.st_ino
