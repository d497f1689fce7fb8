"""Data loading, as a part of a step's time."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from hookcore.hooks.compiled import guard_functions
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.entry import entry
from hookcore.recorder.errorlog import ErrorLog
from hookcore.recorder.steptimes import StepTimes


@dataclass(slots=True, eq=False)
class Loading:
    """Reports the calls of loaders that a step waits for. Those of other threads cost the training no time."""

    _times: StepTimes
    _current: CurrentStep
    _errors: ErrorLog
    _lock: AbstractContextManager[Any]

    def loading_begins(self) -> None:
        if self._times.active:
            self._begin()

    def loading_ended(self, brought: bool) -> None:
        if self._times.active:
            self._end(brought)

    @entry("begin of data loading")
    def _begin(self) -> None:
        self._times.enter_loading()

    @entry("end of data loading")
    def _end(self, brought: bool) -> None:
        self._times.leave_loading(brought, torch.is_grad_enabled())


guard_functions(Loading.loading_begins, Loading.loading_ended)
