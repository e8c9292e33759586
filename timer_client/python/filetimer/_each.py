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
    """Iterates over `iterable`, with a scope around each step: for a loop whose data may hang.

        for batch in filetimer.each(loader, 60, "data", first_timeout=600):
            train(batch)

    timeout: seconds that the next item may take; no scope is open while the loop works on the item.
      The first scope also covers iter(iterable), in which a DataLoader starts its workers.
    name: the name of the scopes; None: the caller's file and line.
    The other options and the errors are those of Scope.
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
