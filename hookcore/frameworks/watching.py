"""The common part of all callbacks: a watcher that starts and ends with a training."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType

import torch
from torch import nn
from typing_extensions import Self, Unpack

from hookcore.config import Settings, WatchSettings
from hookcore.watcher import Watcher, watch


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
