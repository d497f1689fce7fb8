"""Lightning: `Trainer(callbacks=[HookcoreCallback()])`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from hookcore.frameworks.logs import LightningLog
from hookcore.frameworks.stopping import Stopping

if find_spec("lightning") is not None:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    from pytorch_lightning import Callback, LightningModule, Trainer


class HookcoreCallback(Stopping, LightningLog, Callback):  # type: ignore[misc]
    """Watches the module from the start of `fit` to its end. Takes the settings of `hookcore.watch`, and `stop_on`.

    Values that the module logs become scalars: in training at the step in which they were logged, others when they are
    known.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.forget()
        self.begin(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the loss and the values that the training step logged, and stop if an incident asks for it."""
        self.log_batch(trainer.callback_metrics, outputs)
        if self.must_stop():
            trainer.should_stop = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of the validation."""
        self.log_late(trainer.callback_metrics)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the means over the epoch."""
        self.log_late(trainer.callback_metrics)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the run of a training that raised an exception."""
        self.close(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the run."""
        self.close()
