"""The three ways to observe modules: by hooks on the process, on the modules, or in compiled graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hookcore.recorder.plans import Plan


class Attachment(Protocol):
    """Places hooks that report to the dispatcher. `on` and `off` are called between steps and must be cheap."""

    def on(self) -> None:
        """Start a captured step."""

    def off(self) -> None:
        """Capture nothing for a while."""

    def follow_observers(self) -> None:
        """Add and remove hooks as the observers need them now."""

    def follow_choice(self, chosen: Sequence[Plan]) -> str | None:
        """Add and remove hooks for a new selection of modules. Return why that's impossible for some."""

    def close(self) -> None:
        """Remove every hook."""
