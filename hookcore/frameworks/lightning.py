"""Lightning: `Trainer(callbacks=[HookcoreCallback()])`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from hookcore.frameworks.watching import LightningLog, Stopping

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
        super().on_train_start(trainer, pl_module)
        self.begin(pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        """Log what the training step logged, and stop if an incident asks for it."""
        super().on_train_batch_end(trainer, pl_module, outputs)
        if self.must_stop():
            trainer.should_stop = True

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the run of a training that raised an exception."""
        self.close(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the run."""
        self.close()
