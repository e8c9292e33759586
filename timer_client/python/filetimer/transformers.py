# SPDX-License-Identifier: MIT
"""A scope around every step of Hugging Face's Trainer.

    from filetimer.transformers import TimerCallback

    trainer = Trainer(model, args, callbacks=[TimerCallback(step=120)], ...)
"""
from __future__ import annotations

from transformers import TrainerCallback

from . import _client, _native
from ._client import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._native import Scope, _Seconds


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
        self._step_s = _native._seconds(step, "step")
        self._first_s = _client._first_step_s(first_step, self._step_s)
        self._idle_timeout = idle_timeout
        self._client: Client | None = None
        self._first: Scope | None = None
        self._next_step: Scope | None = None
        self._step: Scope | None = None
        self._open: Scope | None = None

    def close(self) -> None:
        """Leaves the step that an exception has left open, and ends the callback's client."""
        self._leave()
        if self._client is not None:
            self._client.close()
        self._client = self._first = self._next_step = self._step = None

    def _leave(self) -> None:
        if self._open is not None:
            self._open.release()
        self._open = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer."""
        self._client = _client.client_of_callback(self._idle_timeout)
        self._leave()  # a step that an exception has left open
        # The first step of every training, not only of the process.
        self._first = _native.Scope(self._step_s, "train step", first_timeout=self._first_s,
                                    client=self._client)._beginning()
        self._next_step = self._first
        self._step = _native.Scope(self._step_s, "train step", client=self._client)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer."""
        self._leave()
        if self._next_step is not None:
            self._next_step.acquire()
        self._open, self._next_step = self._next_step, self._step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer."""
        self._leave()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer; also after batches that do not make up a whole step."""
        self._leave()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer in all ranks, at once in those that do not save."""
        self._next_step = self._first

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer."""
        self.close()
