"""The common part of all callbacks: a watcher for the time of a training, what is logged, and how it is stopped."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, distributed, nn
from typing_extensions import Self, Unpack

from hookcore.config import Settings, WatchSettings
from hookcore.watcher import Watcher, watch
from hookcore.watcher.callbacks import require_severity

if TYPE_CHECKING:
    from hookcore.reading.answers import Incident
    from hookcore.records import Severity


class Watching:
    """Has the settings of `hookcore.watch`, and the watcher of the current or last training.

    As a context manager, it ends the run on exit, in any case.
    """

    def __init__(self, **settings: Unpack[WatchSettings]) -> None:
        Settings.of(**settings)  # an invalid one raises here, not hours later
        super().__init__()
        self.settings = settings
        self.watcher: Watcher | None = None

    def begin(self, model: nn.Module | None, unfinished: str = "") -> None:
        """End a run that is still open, and watch the model.

        `unfinished` says why the run crashed if it is closed without `finish` and its exception isn't known.
        """
        self.close()
        self.watcher = watch(model, **self.settings)
        self.watcher._expect_crash(unfinished)

    def finish(self) -> None:
        """End the run normally; an exception by which the framework itself ends its loop is not a crash."""
        if self.watcher is not None:
            self.watcher._expect_crash("")
            self.watcher._close(None)

    def log_numbers(self, found: Mapping[str, object]) -> None:
        """Log the values that are single numbers, for the step that ended."""
        if self.watcher is not None:
            log_behind(self.watcher, found)

    def close(self, error: BaseException | None = None) -> None:
        """End the run; the watcher stays readable. `error` ended the training. A second call does nothing."""
        if self.watcher is not None:
            if error is None:
                self.watcher.close()
            else:
                self.watcher.__exit__(type(error), error, error.__traceback__)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def __del__(self) -> None:
        # If a training raised and its trainer was discarded, this is the only way left to end the run.
        with contextlib.suppress(Exception):
            self.close()


def log_behind(watcher: Watcher, found: Mapping[str, object]) -> None:
    """Log the values that are single numbers, for the step that ended."""
    numbers = {name: value for name, value in found.items() if _is_number(value) and name != "self"}
    if numbers:
        watcher._log_behind(numbers)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, int | float)


# What trainers of frameworks log, passed to a watcher. Imports no framework, so that `hookcore run` can use it.


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


# What callbacks need that can stop a training: `stop_on="error"`.

logger = logging.getLogger("hookcore")

AGREE_EVERY: Final = 16  # steps of a distributed training between two exchanges


class StopRequest:
    """The first incident that stops a training. A watcher has it instead of the callback, which may be discarded."""

    def __init__(self) -> None:
        self.incident: Incident | None = None

    def note(self, incident: Incident) -> None:
        self.incident = self.incident or incident


class Stopping(Watching):
    """Has the additional setting `stop_on`: stop after an incident of this severity or worse, when the step ends."""

    def __init__(self, *, stop_on: Severity | None = None, **settings: Unpack[WatchSettings]) -> None:
        if stop_on is not None:
            require_severity("stop_on", stop_on)
        super().__init__(**settings)
        self.stop_on = stop_on
        self.stopped = False
        self._request = StopRequest()
        self._calls = 0

    def begin(self, model: nn.Module | None, unfinished: str = "") -> None:
        super().begin(model, unfinished)
        self._request, self._calls, self.stopped = StopRequest(), 0, False
        if self.stop_on is not None and self.watcher is not None:
            self.watcher.on_incident(self._request.note, severity=self.stop_on)

    def must_stop(self) -> bool:
        """Return whether the training must stop now. Call it after each step, on all ranks, watched or not."""
        if self.stop_on is None or self.stopped:
            return False
        self._calls += 1
        self.stopped = self._any_rank_stops() if _ranks() > 1 else self._request.incident is not None
        if self.stopped:
            self._explain()
        return self.stopped

    def _any_rank_stops(self) -> bool:
        """Return whether any rank stops: one that stopped alone would leave the others waiting for it."""
        if self._calls % AGREE_EVERY:
            return False
        # NCCL can only exchange tensors on a GPU.
        device = "cuda" if "nccl" in str(distributed.get_backend()) else "cpu"
        stop: Any = torch.tensor(int(self._request.incident is not None), device=device)
        distributed.all_reduce(stop, distributed.ReduceOp.MAX)
        return bool(stop)

    def _explain(self) -> None:
        incident = self._request.incident
        why = "an incident on another rank" if incident is None else incident.sentence
        logger.warning("hookcore: stop_on=%r stops the training: %s", self.stop_on, why)
        if self.watcher is not None:
            self.watcher._note_stop(f"stop_on={self.stop_on!r} stopped the training: {why}")


def _ranks() -> int:
    known = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if known else 1
