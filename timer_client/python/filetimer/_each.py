# SPDX-License-Identifier: MIT
"""A scope around every step of an iterator."""
from __future__ import annotations

from ._caller import name_of_caller
from ._native import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, TypeVar

    from ._native import _Seconds

    _T = TypeVar("_T")


def each(iterable: Iterable[_T], timeout: _Seconds, name: str | None = None, /,
         **options: Any) -> Iterator[_T]:
    """An iterator over `iterable`, each step of which is a scope: for a loop whose data may hang.

        for batch in filetimer.each(loader, 60, "data", first_timeout=600):
            train(batch)

    timeout: seconds that the next item may take. What the loop does with it has its own scopes.
    The first scope covers iter(iterable), too, where a DataLoader starts its workers.
    name: None: the caller's file and line. options, and the errors, are those of Scope.
    """
    return _steps(iterable,
                  Scope(timeout, name_of_caller() if name is None else name, **options))


def _steps(iterable: Iterable[_T], scope: Scope) -> Iterator[_T]:
    iterator: Iterator[_T] | None = None
    while True:
        with scope:
            if iterator is None:
                iterator = iter(iterable)
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
