"""In which ranks a tap has its own values, and in which they were not finite at first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[np.int64]
Flags = NDArray[np.bool_]
_GROW: Final = 64


class Shares:
    """Learned from the rows of all steps. Taps are numbered as in the run of all ranks."""

    def __init__(self) -> None:
        self._own: Flags = np.zeros((0, 0), bool)  # [tap, rank]
        self._unowned: Flags = np.zeros(0, bool)
        self._version = 0  # of what was learned
        self._holders: tuple[tuple[int, bytes], frozenset[int] | None] | None = None  # what was asked, and the answer

    def note(self, rank: int, lanes: Lanes, owners: NDArray[np.int32]) -> None:
        if not len(lanes):
            return
        self._grow(int(lanes.max()) + 1, rank + 1)
        own, unowned = lanes[(owners == rank) | (owners < 0)], lanes[owners < 0]
        if not (self._own[own, rank].all() and self._unowned[unowned].all()):
            self._own[own, rank], self._unowned[unowned] = True, True
            self._version += 1

    def lacking(self, lanes: Lanes, ranks: Collection[int]) -> Flags:
        """Return which taps are incomplete without these ranks."""
        known = [rank for rank in ranks if rank < self._own.shape[1]]
        found = np.zeros(len(lanes), bool)
        fit = lanes < len(self._own)
        found[fit] = self._own[lanes[fit]][:, known].any(axis=1)
        return found

    def are_summed(self, lanes: Lanes) -> bool:
        """Return whether several ranks are known to have values of their own of some of these taps."""
        known = lanes[lanes < len(self._own)]
        return bool(((self._own[known].sum(axis=1) > 1) & ~self._unowned[known]).any())

    def holders(self, among: Flags) -> frozenset[int] | None:
        """Return the ranks with values of their own of that one of these taps of which most have some.

        None if there is no such tap, or if it isn't known of one who has what.
        """
        asked = (self._version, among.tobytes())
        if self._holders is None or self._holders[0] != asked:
            known = np.flatnonzero(among[: len(self._own)])
            own = self._own[known]
            is_known = bool(own.any()) and not self._unowned[known].any()
            widest = np.flatnonzero(own[own.sum(axis=1).argmax()]) if is_known else ()
            self._holders = asked, frozenset(map(int, widest)) if is_known else None
        return self._holders[1]

    def is_unknown(self, lane: int) -> bool:
        """Return whether it isn't known if ranks have parts or copies of a tap."""
        return lane < len(self._unowned) and bool(self._unowned[lane])

    def forget_ranks(self) -> None:
        """Forget who has what, since the training was restarted."""
        self._own[:] = False
        self._version += 1

    def _grow(self, lanes: int, ranks: int) -> None:
        known, width = self._own.shape
        if lanes <= known and ranks <= width:
            return
        lanes, ranks = max(known, lanes + _GROW), max(width, ranks)
        own, unowned = np.zeros((lanes, ranks), bool), np.zeros(lanes, bool)
        own[:known, :width], unowned[:known] = self._own, self._unowned
        self._own, self._unowned = own, unowned


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
