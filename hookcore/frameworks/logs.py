"""What trainers of frameworks log, passed to a watcher. Imports no framework, so that `hookcore run` can use it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

from torch import Tensor

from hookcore.frameworks.watching import log_behind
from hookcore.watcher import Watcher


class LightningLog:
    """A part of Lightning's callbacks that records the values that a module logs.

    They belong to the current step in training, and otherwise to the step at which they are known.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seen: dict[str, object] = {}  # the last seen metrics
        self._later: set[str] = set()  # those of validation and of the ends of epochs

    def log_numbers(self, found: Mapping[str, object]) -> None:
        """Log the values that are single numbers, for the step that ended."""
        raise NotImplementedError

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Forget the metrics of an earlier training."""
        self._seen.clear()
        self._later.clear()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """Log the loss and the values that the training step logged."""
        metrics = {name: value for name, value in trainer.callback_metrics.items() if name not in self._later}
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self._log_news({"loss": loss} | metrics)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics of the validation."""
        if not trainer.sanity_checking:  # before the training
            self._log_late(trainer.callback_metrics)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the means over the epoch."""
        self._log_late(trainer.callback_metrics)

    def _log_late(self, found: Mapping[str, object]) -> None:
        self._later |= found.keys() - self._seen.keys()
        self._log_news({name: found[name] for name in self._later & found.keys()})

    def _log_news(self, metrics: dict[str, Any]) -> None:
        """Log new metrics only: Lightning keeps a metric until there is a newer one, which is another tensor."""
        news = {name: value for name, value in metrics.items() if not _is_same(self._seen.get(name), value)}
        self._seen |= news
        self.log_numbers(news)


def _is_same(known: object, value: object) -> bool:
    """Return whether this is the metric that was logged before, maybe detached once more."""
    if isinstance(known, Tensor) and isinstance(value, Tensor):
        return known.data_ptr() == value.data_ptr()
    return known is value


def follow_lightning(connector: ModuleType, watcher: Watcher) -> None:
    """Let each Trainer that is created from now on pass on logged values.

    `connector` is the module in which a Trainer asks installed packages for callbacks.
    """
    load, base = connector._load_external_callbacks, connector.Callback

    class LogCallback(LightningLog, base):  # type: ignore[misc, valid-type]
        """Passes what a module logs to the watcher."""

        def log_numbers(self, found: Mapping[str, object]) -> None:
            log_behind(watcher, found)

    vars(connector)["_load_external_callbacks"] = lambda group: [*load(group), LogCallback()]


def follow_transformers(trainer: ModuleType, watcher: Watcher) -> None:
    """Let each Trainer that is created from now on pass on logged values. `trainer` is the module of its class."""
    log, base = partial(log_behind, watcher), trainer.TrainerCallback

    class LogCallback(base):  # type: ignore[misc, valid-type]
        """Passes what a Trainer logs to the watcher."""

        def on_log(self, *_: Any, logs: Mapping[str, object] | None = None, **__: Any) -> None:
            log(logs or {})

    trainer.DEFAULT_CALLBACKS.append(LogCallback())
