"""Scalars by name: each has a lane of one ladder, which it gets with its first value."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hookcore.records.vocabulary import ELAPSED, GRAD_SCALE, MICRO_BATCHES, TIME
from hookcore.store.bounded import BoundedMap, Room, texts_bytes
from hookcore.store.ladder import Ladder
from hookcore.store.schemas import SCALAR_SCHEMA, later_wins
from hookcore.store.segments import Floats, Lanes, lanes_of

_BAD, _VALUE = SCALAR_SCHEMA.columns.index("bad"), SCALAR_SCHEMA.columns.index("value")
_Lanes = NDArray[np.intp]


class _Fitting(NamedTuple):
    """Those of a frame's scalars that have a lane, in the order of their lanes."""

    lanes: _Lanes
    neighbors: Lanes  # the same, as a slice if they are: NumPy lets go of the interpreter to write to others
    places: list[int]  # among the frame's scalars


_NONE: Final = _Fitting(np.empty(0, np.intp), slice(0), [])


class Logged(Protocol):
    """A frame's data other than tensors, in memory and on the wire."""

    @property
    def time_s(self) -> float: ...
    @property
    def elapsed_s(self) -> float: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def grad_scale(self) -> float | None: ...
    @property
    def scalars(self) -> dict[str, float]: ...


def scalars_of(frame: Logged) -> dict[str, float]:
    """Return the logged scalars of a frame and hookcore's own, by name."""
    named = {TIME: frame.time_s, **frame.scalars}
    if frame.elapsed_s == frame.elapsed_s:
        named[ELAPSED] = frame.elapsed_s
    if frame.micro_batches:
        named[MICRO_BATCHES] = frame.micro_batches
    if frame.grad_scale is not None:
        named[GRAD_SCALE] = frame.grad_scale
    return named


class ScalarLog:
    """A row for each step that has any of these scalars. One thread writes."""

    def __init__(self, max_bytes: int, names: Room, lock: threading.Lock) -> None:
        self.ladder = Ladder(SCALAR_SCHEMA, max_bytes, lock)
        self.lanes: BoundedMap[int] = BoundedMap(names, lock)
        self.refused = 0
        self._known: tuple[tuple[str, ...], _Fitting] = (), _NONE

    def by_name(self) -> dict[str, int]:
        """Return the lane of each scalar."""
        return {name: lane for name in self.lanes.names() if (lane := self.lanes.get(name)) is not None}

    def add(self, step: int, named: Mapping[str, float]) -> tuple[_Lanes, Floats, bool]:
        """Add numbers to a step. Return the lanes of those that fit, their values [column, lane], and if all fit."""
        lanes, neighbors, places = self._fitting(tuple(named))
        if not places:
            return lanes, np.empty((len(SCALAR_SCHEMA.columns), 0)), not named
        values, given = np.empty((len(SCALAR_SCHEMA.columns), len(lanes))), list(named.values())
        values[0] = 1
        values[_VALUE] = [given[place] for place in places]
        np.logical_not(np.isfinite(values[_VALUE]), out=values[_BAD])
        if self.ladder.newest == step:
            self.ladder.merge_newest(neighbors, values, later_wins)
        else:
            self.ladder.append(step, neighbors, values)
        return lanes, values, len(places) == len(given)

    def add_name(self, name: str) -> None:
        """Make a lane for a scalar that has values elsewhere only."""
        self._lane_of(name)

    def _fitting(self, names: tuple[str, ...]) -> _Fitting:
        """Return the lanes of those scalars that have one."""
        if names == self._known[0]:  # most frames have the same scalars
            return self._known[1]
        lanes = {place: lane for place, name in enumerate(names) if (lane := self._lane_of(name)) is not None}
        places = sorted(lanes, key=lanes.__getitem__)
        numbers = np.array([lanes[place] for place in places], np.intp)
        found = _Fitting(numbers, lanes_of(numbers), places)
        if len(places) == len(names):
            self._known = names, found
        return found

    def _lane_of(self, name: str) -> int | None:
        """Return the lane of a scalar, created if needed; None if there is no room."""
        lane = self.lanes.get(name)
        if lane is None:
            lane = len(self.lanes)
            if lane >= self.ladder.max_lanes or not self.lanes.put(name, lane, texts_bytes([name])):
                self.refused += 1
                return None
            self.ladder.grow(lane + 1)
        return lane
