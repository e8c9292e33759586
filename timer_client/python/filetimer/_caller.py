# SPDX-License-Identifier: MIT
"""The default name of a scope."""
from __future__ import annotations

import os
import sys


def name_of_caller() -> str:
    """Returns FILE:LINE of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__package__") == __package__ and frame.f_back is not None:
        frame = frame.f_back
    name = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    return name.encode(errors="replace").decode()  # a path may not be UTF-8
