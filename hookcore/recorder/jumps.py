"""Jumps of logged numbers, after which the next step is captured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

from hookcore.recorder.cadence import Cadence
from hookcore.records.vocabulary import OWN

MAX_FINDERS: Final = 256  # scalars that are checked


@dataclass(slots=True, eq=False)
class Jumps:
    """Checks losses, and any number that has ever been non-finite."""

    _cadence: Cadence
    _finders: dict[str, JumpFinder] = field(default_factory=dict, init=False)

    def check(self, scalars: dict[str, Any]) -> None:
        """Capture the next step if a loss jumps or a number becomes non-finite."""
        for name, value in scalars.items():
            if not isinstance(value, float) or name.startswith(OWN):
                continue
            if "loss" in name.lower() or not math.isfinite(value) or name in self._finders:
                finder = self._finders.get(name)
                if finder is None and len(self._finders) < MAX_FINDERS:
                    finder = self._finders[name] = JumpFinder()
                if finder is not None and finder.jumped(value):
                    self._cadence.alarm(
                        f"{name} jumped to {value:.6g}" if math.isfinite(value) else f"{name} was {value}"
                    )


class JumpFinder:
    """Detects when a logged value becomes non-finite, or a loss jumps far above its earlier values."""

    __slots__ = ("_bad", "_deviation", "_mean", "_seen")

    def __init__(self) -> None:
        self._bad = False
        self._mean = 0.0
        self._deviation = 0.0
        self._seen = 0

    def jumped(self, value: float) -> bool:
        """Check the next value. Only the first of several non-finite ones is a jump."""
        was_bad, self._bad = self._bad, not math.isfinite(value)
        if self._bad:
            return not was_bad
        off = abs(value - self._mean)
        jumped = self._seen >= 8 and value - self._mean > 8 * self._deviation + 1e-3 * abs(self._mean)
        self._seen += 1
        rate = max(0.1, 1 / self._seen)
        if self._seen > 1:
            self._deviation += rate * (off - self._deviation)
        self._mean += rate * (value - self._mean)
        return jumped
