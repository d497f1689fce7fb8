"""Notices, at almost no cost, that magnitudes have left their usual range, so that the rules are worth running."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import is_shared
from hookcore.store.segments import Lanes, lanes_of

Values = NDArray[np.float32]
Flags = NDArray[np.bool_]

BLOCK: Final = 4  # frames that are judged together
_FLOOR: Final = np.float32(-160.0)  # the binary logarithm that stands for zero
_FAR: Final = np.float32(3.0)  # binary orders of magnitude from the usual level: few enough for sudden changes
_SPREADS: Final = np.float32(6.0)
_SPIKE: Final = np.float32(6.0)  # orders of magnitude of a single value above the usual level
_RATE: Final = np.float32(1 / 16)  # at which the level follows, per block
_LOOK_AFTER: Final = (1, 2, 4, 8, 16)  # blocks for which it has been far off


class Gate:
    """The usual level of the magnitudes in some lanes, and for how long each has been far from it."""

    def __init__(self) -> None:
        self._rows: NDArray[np.float64] = np.full((BLOCK, 0), np.nan)
        self._filled = 0
        self._level: Values = np.empty(0, np.float32)  # NaN if unknown
        self._spread: Values = np.empty(0, np.float32)
        self._away: NDArray[np.int32] = np.empty(0, np.int32)  # blocks
        self._last: NDArray[np.integer[Any]] | None = None  # the newest lanes, which many frames share
        self._place: Lanes = slice(0)  # where they are in a row

    def take(self, lanes: NDArray[np.integer[Any]], values: NDArray[np.floating[Any]]) -> bool:
        """Add a frame's magnitudes; return whether the rules should look."""
        if not len(lanes):
            return False
        if lanes is not self._last:
            self._grow(int(lanes.max()) + 1)
            self._last, self._place = lanes if is_shared(lanes) else None, lanes_of(lanes)
        self._rows[self._filled, self._place] = values
        self._filled += 1
        if self._filled < BLOCK:
            return False
        with np.errstate(all="ignore"):  # of infinities and zeros
            is_due = self._judge()
        self._filled = 0
        self._rows.fill(np.nan)
        return is_due

    def _grow(self, lanes: int) -> None:
        more = lanes - len(self._level)
        if more > 0:
            self._rows = np.pad(self._rows, ((0, 0), (0, more)), constant_values=np.nan)
            self._level = np.pad(self._level, (0, more), constant_values=np.nan)
            self._spread = np.pad(self._spread, (0, more), constant_values=1)
            self._away = np.pad(self._away, (0, more))

    def _judge(self) -> bool:
        logs = np.log2(self._rows.astype(np.float32))
        np.maximum(logs, _FLOOR, out=logs)
        top, total = logs.max(axis=0), np.add.reduce(logs, axis=0)
        mean = total / np.float32(BLOCK)
        if not np.isfinite(mean).all():
            known = np.isfinite(logs)  # the others were not captured, or not finite
            total, top = np.where(known, logs, 0).sum(axis=0), np.where(known, logs, -np.inf).max(axis=0)
            mean = (total / known.sum(axis=0)).astype(np.float32)
        return self._follow(mean, top)

    def _follow(self, mean: Values, top: Values) -> bool:
        """Move the levels toward those of a block; NaN changes nothing."""
        new = np.isnan(self._level)
        if np.count_nonzero(new):
            self._level[new] = mean[new]
        off = mean - self._level
        size = np.abs(off)
        far = (size > np.maximum(_FAR, _SPREADS * self._spread)) | (top - self._level > _SPIKE)
        if any(map(np.count_nonzero, (far, self._away, np.isnan(off)))):
            return self._follow_each(off, size, far)
        self._level += _RATE * off
        self._spread += _RATE * (size - self._spread)
        return False

    def _follow_each(self, off: Values, size: Values, far: Flags) -> bool:
        present = ~np.isnan(off)
        self._away = np.where(present, np.where(far, self._away + 1, 0), self._away).astype(np.int32)
        calm = present & ~far
        self._level[calm] += (_RATE * off)[calm]
        self._spread[calm] += _RATE * (size - self._spread)[calm]
        is_due = any(bool((far & (self._away == blocks)).any()) for blocks in _LOOK_AFTER)
        stays = self._away >= _LOOK_AFTER[-1]  # this is the usual level from now on
        self._level[stays] += off[stays]
        self._away[stays] = 0
        return is_due
