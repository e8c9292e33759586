# SPDX-License-Identifier: MIT
"""A scope as a decorator: each call of the function opens another scope."""
from __future__ import annotations

import functools
import sys
from collections.abc import Coroutine
from types import AsyncGeneratorType, FunctionType, GeneratorType, MethodType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._native import Scope, Times

_MOST_WRAPPERS = 20
_CO_GENERATOR = 0x20
_CO_COROUTINE = 0x80
_CO_ASYNC_GENERATOR = 0x200


def decorate(scope: Scope, function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function):
        raise TypeError(f"a scope as a decorator got a {type(function).__name__}: expected a "
                        "function")
    code = _code_of(function)
    if _only_makes_generator(code):
        raise _refusal(function)
    wraps_generator = _only_makes_generator(_code_of(_unwrapped(function)))
    again = scope._again
    if code is not None and code.co_flags & _CO_COROUTINE:
        @functools.wraps(function)
        async def in_scope(*args: Any, **kwargs: Any) -> Any:
            with again():
                return await function(*args, **kwargs)
    else:
        @functools.wraps(function)
        def in_scope(*args: Any, **kwargs: Any) -> Any:
            with again() as scope:
                result = function(*args, **kwargs)
                # A wrapper of a coroutine function or of a generator is a function like any other.
                # A coroutine may be Cython's, too.
                is_coroutine = result is not None and isinstance(result, Coroutine)
                times = scope.times() if is_coroutine else None
            if is_coroutine:
                return _awaited(again(), times, result)
            if wraps_generator and _runs_later(result):
                raise _refusal(function)
            return result
    if isinstance(function, staticmethod):
        return staticmethod(in_scope)
    return in_scope


async def _awaited(scope: Scope, made: Times | None, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """made: the times of the call that has made the coroutine, whose first timeout is meant for it."""
    with scope:
        times = scope.times()
        if made is None or times is None or made.timeout <= times.timeout:
            return await coroutine
    with scope._beginning():  # a renewal would have the other timeout of a file of timeouts
        return await coroutine


def _refusal(function: Any) -> TypeError:
    name = getattr(function, "__qualname__", repr(function))
    return TypeError(f"{name}() is a generator, and would be left before it runs: use the scope "
                     "inside it")


def _code_of(function: Any) -> Any:
    """Returns the code that a call runs, through what only adds arguments; None: it is not
    Python's.
    """
    while isinstance(function, (functools.partial, MethodType, staticmethod)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if not isinstance(function, FunctionType):
        function = getattr(type(function), "__call__", None)
    return getattr(function, "__code__", None)


def _unwrapped(function: Any) -> Any:
    for _ in range(_MOST_WRAPPERS):
        function = getattr(function, "__wrapped__", function)
    return function


def _only_makes_generator(code: Any) -> bool:
    """Returns whether a call only makes a generator, or a context manager of contextlib, which runs
    one later.
    """
    if code is None:
        return False
    contextlib = sys.modules.get("contextlib")
    return bool(code.co_flags & (_CO_GENERATOR | _CO_ASYNC_GENERATOR)) or (
        contextlib is not None and code in (contextlib.contextmanager(decorate).__code__,
                                            contextlib.asynccontextmanager(decorate).__code__))


def _runs_later(result: Any) -> bool:
    return (isinstance(result, (GeneratorType, AsyncGeneratorType))
            or hasattr(type(result), "__exit__") or hasattr(type(result), "__aexit__"))
