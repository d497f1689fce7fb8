"""What a copy of a watcher becomes."""

from __future__ import annotations

from torch import Tensor


class NullWatcher:
    """Takes the place of the watcher in copies, pickles, and checkpoints of a model. Its methods have no effect."""

    def step(self) -> None:
        """Do nothing."""

    def log(self, **scalars: float | Tensor) -> None:
        """Do nothing."""

    def observe(self, name: str, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    def close(self) -> None:
        """Do nothing."""
