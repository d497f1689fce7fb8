"""The summary of a step: its scalars, the norm of all gradients, and the number of problematic modules."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, Frame, Tap
from hookcore.records.vocabulary import ELAPSED, GRADIENT_NORM, NONFINITE_MODULES, ZERO_MODULES

_COUNT, _NAN, _INF, _ZERO, _NORM = (STAT_COLUMN[name] for name in ("count", "nan", "inf", "zero", "norm"))

Step = tuple[int, float, dict[str, float]]  # its number, its time, its numbers


class Summary:
    """Collects the frames of a step; a step is over when a later one arrives."""

    def __init__(self) -> None:
        self._taps: list[Tap] = []
        self._step, self._time_s = -1, 0.0
        self._numbers: dict[str, float] = {}
        self._squares: dict[int, float] = {}  # of each parameter's gradient; a later part replaces it
        self._nonfinite: set[str] = set()
        self._zero: set[str] = set()
        self._captured = False

    def add(self, frame: Frame) -> Iterator[Step]:
        """Add a frame; yield the previous step if it is over."""
        if frame.step > self._step:
            yield from self.end()
            self._step = frame.step
        self._taps += frame.new_taps
        self._time_s = frame.time_s
        self._numbers |= frame.scalars
        if math.isfinite(frame.elapsed_s):
            self._numbers[ELAPSED] = frame.elapsed_s
        if len(frame.taps):
            self._captured = True
            self._add_rows(frame.taps, frame.stats)

    def _add_rows(self, numbers: NDArray[np.uint32], stats: NDArray[np.float64]) -> None:
        ill = (stats[:, _NAN] > 0) | (stats[:, _INF] > 0)
        zero = (stats[:, _COUNT] > 0) & (stats[:, _ZERO] == stats[:, _COUNT])
        for row, number in enumerate(numbers.tolist()):
            tap = self._taps[number] if number < len(self._taps) else None
            if tap is None:
                continue
            if ill[row]:
                self._nonfinite.add(tap.module)
            if zero[row] and tap.kind == "output":
                self._zero.add(tap.module)
            if tap.kind == "param_grad":
                self._squares[number] = math.nan if ill[row] else float(stats[row, _NORM]) ** 2

    def end(self) -> Iterator[Step]:
        """Yield the unfinished step, if there is one."""
        numbers = self._numbers
        if self._captured:
            numbers |= {NONFINITE_MODULES: float(len(self._nonfinite)), ZERO_MODULES: float(len(self._zero))}
        if self._squares:
            numbers[GRADIENT_NORM] = math.sqrt(math.fsum(self._squares.values()))
        if numbers:
            yield self._step, self._time_s, numbers
        self._numbers, self._squares, self._nonfinite, self._zero = {}, {}, set(), set()
        self._captured = False
