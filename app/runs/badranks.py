"""In which ranks the values of a tap were not finite at first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_BAD: Final = 4096  # taps of which the ranks with non-finite values are known


@dataclass(slots=True)
class _Stretch:
    """Steps in a row in which a tap had non-finite values."""

    first: int
    last: int
    ranks: set[int] = field(default_factory=set)  # of the first step


class BadRanks:
    """The newest stretch of steps with non-finite values of each tap."""

    def __init__(self) -> None:
        self._stretches: dict[int, _Stretch] = {}

    def note(self, lane: int, rank: int, step: int, newest: int) -> None:
        """Note that a tap's values aren't finite in a step of a rank. `newest` is the step that was added up last."""
        stretch = self._stretches.get(lane)
        if stretch is None or stretch.last < newest:
            self._stretches.pop(lane, None)
            if len(self._stretches) >= MAX_BAD:
                del self._stretches[next(iter(self._stretches))]
            stretch = self._stretches[lane] = _Stretch(step, step)
        stretch.last = max(stretch.last, step)
        if step == stretch.first:
            stretch.ranks.add(rank)

    def at(self, lane: int, step: int) -> frozenset[int]:
        """Return the ranks in which a tap's values first weren't finite, if that was in this step."""
        stretch = self._stretches.get(lane)
        return frozenset(stretch.ranks if stretch is not None and stretch.first == step else ())
