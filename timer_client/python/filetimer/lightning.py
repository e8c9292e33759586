# SPDX-License-Identifier: MIT
"""Scopes for Lightning: every training batch, and every run of the validation.

    from filetimer.lightning import TimerCallback

    trainer = Trainer(callbacks=[TimerCallback(step=120, validation=1800)])
"""
from __future__ import annotations

from . import _client, _native
from ._client import Client

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the package's older name
    from pytorch_lightning.callbacks import Callback
else:
    try:  # The newer package installs the older one, too, and a Trainer takes only its own callbacks.
        from pytorch_lightning.callbacks import Callback as Older
    except TimeoutError:  # of a signal handler, as ScopeExpired is
        raise
    except Exception:  # one that another version of PyTorch breaks, too
        pass
    else:
        if Older is not Callback:
            Callback = type("Callback", (Callback, Older), {})  # type: ignore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._native import Scope, _Seconds


class TimerCallback(Callback):
    """Opens the scopes "train step" and "validation".

    step, validation: timeouts, in seconds, or timedeltas.
    first_step: the timeout of the first batch of each training, which compilation makes longer;
      None: ten times `step`.
    idle_timeout: seconds that a rank may be in no scope at all; None: no limit.

    In a rank that has not called filetimer.configure(), the callback has a Client of its own, which
    ends with the training, and with it the idle timeout.
    """

    def __init__(self, step: _Seconds = 120, validation: _Seconds = 1800, *,
                 first_step: _Seconds | None = None,
                 idle_timeout: _Seconds | None = 1800) -> None:
        super().__init__()
        self._step_s = _native._seconds(step, "step")
        self._validation_s = _native._seconds(validation, "validation")
        self._first_s = _client._first_step_s(first_step, self._step_s)
        self._idle_timeout = idle_timeout
        self._client: Client | None = None
        self._next_step: Scope | None = None
        self._step: Scope | None = None
        self._validation: Scope | None = None
        self._open: Scope | None = None

    # Lightning may send the callback to another process before this call; a Scope cannot be sent.
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called by Lightning in each rank."""
        self._client = _client.client_of_callback(self._idle_timeout)
        self._leave_all()
        # The first batch of every training, not only of the process.
        self._next_step = _native.Scope(self._step_s, "train step", first_timeout=self._first_s,
                                        client=self._client)._beginning()
        self._step = _native.Scope(self._step_s, "train step", client=self._client)
        self._validation = _native.Scope(self._validation_s, "validation", client=self._client)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any,
                             batch_idx: int) -> None:
        """Called by Lightning."""
        self._enter(self._next_step)
        self._next_step = self._step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        """Called by Lightning; not for a batch that another callback has skipped."""
        self._leave_all()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning; also after a batch with which the model has ended the epoch."""
        self._leave_all()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        self._enter(self._validation)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        self._leave_all()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Called by Lightning; within a batch when Slurm's signal has it save, which may take long."""
        self._leave_all()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Called by Lightning."""
        self.teardown(trainer, pl_module, "")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called by Lightning; not after an exception."""
        self._leave_all()
        if self._client is not None:
            self._client.close()
        self._client = self._next_step = self._step = self._validation = None

    def _enter(self, scope: Scope | None) -> None:
        self._leave_all()
        if scope is not None:
            scope.acquire()
        self._open = scope

    def _leave_all(self) -> None:
        if self._open is not None:
            self._open.release()
        self._open = None
