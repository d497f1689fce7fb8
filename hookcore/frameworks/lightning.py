"""Lightning: `Trainer(callbacks=[HookcoreCallback()])`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from hookcore.config import WatchSettings
from hookcore.frameworks.stopping import Stopping

if TYPE_CHECKING:
    from hookcore.records import Severity

if find_spec("lightning") is not None:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    from pytorch_lightning import Callback, LightningModule, Trainer


class HookcoreCallback(Stopping, Callback):  # type: ignore[misc]
    """Watches the module from the start of `fit` to its end. Takes the settings of `hookcore.watch`, and `stop_on`.

    Values that the module logs become scalars: in training at the step in which they were logged, others when they are
    known.
    """

    def __init__(self, *, stop_on: Severity | None = None, **settings: Unpack[WatchSettings]) -> None:
        super().__init__(stop_on=stop_on, **settings)
        self._told: dict[str, object] = {}  # the last seen metrics
        self._later: set[str] = set()  # those of validation and of the ends of epochs

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start a run."""
        self._told.clear()
        self._later.clear()
        self.begin(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the loss and the values that the training step logged, and stop if an incident asks for it."""
        metrics = {name: value for name, value in trainer.callback_metrics.items() if name not in self._later}
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self._log_news({"loss": loss} | metrics)
        if self.must_stop():
            trainer.should_stop = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of the validation."""
        self._log_late(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the means over the epoch."""
        self._log_late(trainer)

    def _log_late(self, trainer: Trainer) -> None:
        self._later |= trainer.callback_metrics.keys() - self._told.keys()
        self._log_news({name: trainer.callback_metrics[name] for name in self._later & trainer.callback_metrics.keys()})

    def _log_news(self, metrics: dict[str, Any]) -> None:
        """Log new metrics only: Lightning keeps a metric until there is a newer one, which is another tensor."""
        news = {name: value for name, value in metrics.items() if self._told.get(name) is not value}
        self._told |= news
        self.log_numbers(news)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the run of a training that raised an exception."""
        self.close(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the run."""
        self.close()
