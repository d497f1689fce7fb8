"""Which ranks have values of their own of a tap, and of which taps nobody knows that."""

from __future__ import annotations

from collections.abc import Collection
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

    def note(self, rank: int, lanes: Lanes, owners: NDArray[np.int32]) -> None:
        """Note the rows of a rank."""
        if not len(lanes):
            return
        self._grow(int(lanes.max()) + 1, rank + 1)
        self._own[lanes[(owners == rank) | (owners < 0)], rank] = True
        self._unowned[lanes[owners < 0]] = True

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

    def is_unknown(self, lane: int) -> bool:
        """Return whether it isn't known if ranks have parts or copies of a tap."""
        return lane < len(self._unowned) and bool(self._unowned[lane])

    def forget_ranks(self) -> None:
        """Forget who has what, since the training was restarted."""
        self._own[:] = False

    def _grow(self, lanes: int, ranks: int) -> None:
        known, width = self._own.shape
        if lanes <= known and ranks <= width:
            return
        lanes, ranks = max(known, lanes + _GROW), max(width, ranks)
        own, unowned = np.zeros((lanes, ranks), bool), np.zeros(lanes, bool)
        own[:known, :width], unowned[:known] = self._own, self._unowned
        self._own, self._unowned = own, unowned
