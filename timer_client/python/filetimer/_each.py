# SPDX-License-Identifier: MIT
"""A scope around every step of an iterator."""
from __future__ import annotations

from ._caller import name_of_caller
from ._native import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
    from typing import Any, Generic, TypeVar

    from ._native import _Seconds

    _T = TypeVar("_T")
else:
    _T = None

    class Generic:  # typing takes longer to import than all the code here
        __slots__ = ()

        def __class_getitem__(cls, _):
            return cls


class Each(Generic[_T]):
    """A scope around each step of an iterable; each() makes one."""

    __slots__ = ("_first", "_iterable", "_scope")

    def __init__(self, iterable: Any, first: Scope, scope: Scope) -> None:
        self._iterable = iterable
        self._first = first
        self._scope = scope

    def __len__(self) -> int:
        return len(self._iterable)

    def __bool__(self) -> bool:
        return bool(self._iterable)  # bool() would call __len__, which not every iterable has

    def __iter__(self) -> Iterator[_T]:
        items: list[_T] = []  # not a variable: it would keep the item until the next one is there
        iterator: Iterator[_T] | None = None
        while True:
            with self._first if iterator is None else self._scope:
                if iterator is None:
                    iterator = iter(self._iterable)
                try:
                    items.append(next(iterator))
                except StopIteration:
                    return
            yield items.pop()

    async def __aiter__(self) -> AsyncIterator[_T]:
        items: list[_T] = []
        iterator: AsyncIterator[_T] | None = None
        while True:
            with self._first if iterator is None else self._scope:
                if iterator is None:
                    iterator = self._iterable.__aiter__()
                try:
                    items.append(await iterator.__anext__())
                except StopAsyncIteration:
                    return
            yield items.pop()


def each(iterable: Iterable[_T] | AsyncIterable[_T], timeout: _Seconds, name: str | None = None, /,
         *, first_timeout: _Seconds | None = None, **options: Any) -> Each[_T]:
    """Iterates over `iterable`, with a scope around each step: for a loop whose data may hang.

        for batch in filetimer.each(loader, 60, "data", first_timeout=600):
            train(batch)

    timeout: seconds that the next item may take; no scope is open while the loop works on the item.
      The first scope also covers iter(iterable), in which a DataLoader starts its workers.
    name: the name of the scopes; None: the caller's file and line.
    first_timeout: in place of timeout for the first scope of each loop.
    The other options and the errors are those of Scope. The result has the length of `iterable`;
    `async for` goes over an asynchronous one.
    """
    name = name_of_caller() if name is None else name
    first = scope = Scope(timeout, name, **options)
    if first_timeout is not None:  # else a file of timeouts has one for the first scope of a thread
        first = Scope(timeout, name, first_timeout=first_timeout, **options)._beginning()
    return Each(iterable, first, scope)
