"""The watcher without effect: copies of a watcher become one, and `watch` returns one during a replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class NullWatcher:
    """Takes the place of the watcher in copies, pickles, and checkpoints of a model. Its methods have no effect."""

    url: None = None

    def __enter__(self) -> NullWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _do_nothing(self, /, *_: object, **__: object) -> None:
        """Do nothing."""

    step = log = log_image = log_text = log_table = log_figure = tokens = labels = _do_nothing
    request_snapshot = probe = capsule = pause = resume = close = _do_nothing

    def observe(self, name: str, tensor: Tensor) -> Tensor:
        return tensor

    def flush(self, timeout_s: float = 0.0) -> bool:
        """Return True, because nothing waits."""
        return True

    def sharpness(self, model: Any, loss: Callable[..., Any]) -> Tensor:
        """Return NaN, without calling the loss."""
        return torch.tensor(float("nan"))

    def on_incident(
        self, callback: Callable[..., Any] | None = None, *, at: str = "found", severity: str = "warning"
    ) -> Any:
        """Return the callback, which is never called."""
        return (lambda given: given) if callback is None else callback
