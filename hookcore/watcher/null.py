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

    def step(self) -> None:
        """Do nothing."""

    def log(self, /, **scalars: float | Tensor) -> None:
        """Do nothing."""

    def log_image(self, name: str, image: Any) -> None:
        """Do nothing."""

    def log_text(self, name: str, text: str) -> None:
        """Do nothing."""

    def log_table(self, name: str, table: Any) -> None:
        """Do nothing."""

    def log_figure(self, name: str, figure: Any) -> None:
        """Do nothing."""

    def observe(self, name: str, tensor: Tensor) -> Tensor:
        return tensor

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def flush(self, timeout_s: float = 0.0) -> bool:
        """Return True, because nothing waits."""
        return True

    def probe(self, name: str, function: Callable[..., Any], **how: Any) -> None:
        """Do nothing."""

    def sharpness(self, model: Any, loss: Callable[..., Any]) -> Tensor:
        """Return NaN, without calling the loss."""
        return torch.tensor(float("nan"))

    def capsule(self) -> None:
        """Do nothing."""

    def on_incident(
        self, callback: Callable[..., Any] | None = None, *, at: str = "found", severity: str = "warning"
    ) -> Any:
        """Return the callback, which is never called."""
        return (lambda given: given) if callback is None else callback

    def close(self) -> None:
        """Do nothing."""
