# SPDX-License-Identifier: MIT
"""A scope as a decorator: each call of the function opens another scope."""
from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._native import Scope

_CO_GENERATOR = 0x20
_CO_COROUTINE = 0x80
_CO_ASYNC_GENERATOR = 0x200


def decorate(scope: Scope, function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function):
        raise TypeError(f"a scope as a decorator got a {type(function).__name__}: expected a "
                        "function")
    code = getattr(function, "__code__", None)
    flags = code.co_flags if code is not None else 0
    if flags & (_CO_GENERATOR | _CO_ASYNC_GENERATOR):
        raise TypeError(f"{function.__qualname__}() is a generator, and would be left before it "
                        "runs: use the scope inside it")
    again = scope._again
    if flags & _CO_COROUTINE:
        @functools.wraps(function)
        async def in_scope(*args: Any, **kwargs: Any) -> Any:
            with again():
                return await function(*args, **kwargs)
    else:
        @functools.wraps(function)
        def in_scope(*args: Any, **kwargs: Any) -> Any:
            with again():
                return function(*args, **kwargs)
    return in_scope
