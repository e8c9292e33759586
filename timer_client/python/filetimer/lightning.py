# SPDX-License-Identifier: MIT
"""Scopes for Lightning: every training batch, and every run of the validation.

    from filetimer.lightning import TimerCallback

    trainer = Trainer(callbacks=[TimerCallback(step=120, validation=1800)])
"""
from __future__ import annotations

from . import _native
from ._client import Steps

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
        self._steps = Steps(step, first_step, idle_timeout)
        self._validation_s = _native._seconds(validation, "validation")
        self._validation: Scope | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called by Lightning in each rank."""
        self._steps.begin()
        self._validation = _native.Scope(self._validation_s, "validation",
                                         client=self._steps.client)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any,
                             batch_idx: int) -> None:
        """Called by Lightning."""
        self._steps.enter_next()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        """Called by Lightning; not for a batch that another callback has skipped."""
        self._steps.leave()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning; also after a batch with which the model has ended the epoch."""
        self._steps.leave()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        self._steps.enter(self._validation)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        self._steps.leave()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Called by Lightning; within a batch when Slurm's signal has it save, which may take long."""
        self._steps.leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Called by Lightning."""
        self.teardown(trainer, pl_module, "")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called by Lightning; not after an exception."""
        self._steps.end()
        self._validation = None
