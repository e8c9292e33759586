# SPDX-License-Identifier: MIT
from typing import Callable, ParamSpec, TypeVar

from ._native import Scope

_P = ParamSpec("_P")
_R = TypeVar("_R")

def decorate(scope: Scope, function: Callable[_P, _R]) -> Callable[_P, _R]: ...
