# SPDX-License-Identifier: MIT
"""A scope around every step of Hugging Face's Trainer.

    from filetimer.transformers import TimerCallback

    trainer = Trainer(model, args, callbacks=[TimerCallback(step=120)], ...)
"""
from __future__ import annotations

from transformers import TrainerCallback

from ._client import Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._native import _Seconds


class TimerCallback(TrainerCallback):
    """Opens the scope "train step", from on_step_begin to on_step_end, or to on_epoch_end if the
    epoch ends first. The scope covers all batches over which gradients are accumulated. The idle
    timeout watches evaluation and checkpoints.

    step: the timeout, in seconds, or a timedelta.
    first_step: the timeout of the first step of each training, and of each step after a checkpoint,
      in which the other ranks wait for the one that saves it; None: ten times `step`.
    idle_timeout: seconds that a rank may be in no scope at all; None: no limit.

    In a rank that has not called filetimer.configure(), the callback has a Client of its own, which
    ends with the training, and with it the idle timeout. The Trainer calls no callback when it
    raises an exception: a program that continues after one must call close().
    """

    def __init__(self, step: _Seconds = 120, *, first_step: _Seconds | None = None,
                 idle_timeout: _Seconds | None = 1800) -> None:
        super().__init__()
        self._steps = Steps(step, first_step, idle_timeout)

    def close(self) -> None:
        """Leaves the step that an exception has left open, and ends the callback's client."""
        self._steps.end()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer."""
        self._steps.begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer."""
        self._steps.enter_next()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer."""
        self._steps.leave()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer; also after batches that do not make up a whole step."""
        self._steps.leave()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer in all ranks, at once in those that do not save."""
        self._steps.next = self._steps.first

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer."""
        self.close()
