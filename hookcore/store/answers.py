"""The store's answers: frozen records of arrays, which are copies or never change again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Tap
from hookcore.store.tables import ChannelsTable, HistogramsTable, SeriesTable, Tabular, span_columns, tap_columns

Floats = NDArray[np.float64]
Counts = NDArray[np.uint32]
Steps = NDArray[np.int64]
Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True)
class TapList:
    """Taps and their run-wide numbers, ascending."""

    numbers: NDArray[np.int64]
    taps: tuple[Tap, ...]
    _facts: dict[Callable[[TapList], Any], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __iter__(self) -> Iterator[tuple[int, Tap]]:
        return zip(self.numbers.tolist(), self.taps, strict=True)

    def at(self, places: Sequence[int]) -> TapList:
        return TapList(self.numbers[list(places)], tuple(self.taps[place] for place in places))

    def fact(self, find: Callable[[TapList], Fact]) -> Fact:
        """Return what a function finds out about these taps. It is called once, so it must depend on nothing else."""
        if find not in self._facts:
            self._facts[find] = find(self)
        found: Fact = self._facts[find]
        return found

    def of_kind(self, kind: str) -> TapList:
        """Return the taps of a kind: the same list each time, so that facts about it are found once, too."""
        return self.fact(_by_kind).get(kind, _NO_TAPS)


def _by_kind(taps: TapList) -> dict[str, TapList]:
    places: dict[str, list[int]] = {}
    for place, tap in enumerate(taps.taps):
        places.setdefault(tap.kind, []).append(place)
    return {kind: taps.at(found) for kind, found in places.items()}


_NO_TAPS: Final = TapList(np.empty(0, np.int64), ())


@dataclass(frozen=True, slots=True)
class StepRange:
    """The first and the newest step (None before the first one), and the number of different steps.

    `frames` counts every frame, so it also rises when another part of the newest step arrives. `time_s` is the time of
    the newest frame, by the trainer's clock; None if it isn't in memory.
    """

    first: int | None
    newest: int | None
    count: int
    frames: int = field(default=0, compare=False)
    time_s: float | None = field(default=None, compare=False)

    @property
    def length(self) -> int:
        """The number of steps from the first to the newest one, with those that have no frame."""
        return 0 if self.first is None or self.newest is None else self.newest - self.first + 1


@dataclass(frozen=True, slots=True)
class Series(SeriesTable):
    """One stat of one tap, or one scalar, over time. A point covers the steps first_step to last_step.

    mean, low, and high are over the finite values (NaN if there were none). `present` counts the steps with a value,
    and `nonfinite` those in which the tensor held a NaN or an infinity.
    """

    name: str
    tap: int | None
    first_step: Steps
    last_step: Steps
    mean: Floats
    min: Floats
    max: Floats
    present: Counts
    nonfinite: Counts


@dataclass(frozen=True, slots=True)
class Heatmap(Tabular):
    """One stat of many taps over time. A row is a tap, or `groups` neighbors starting with numbers[i].

    `worst` is the value with the largest magnitude in the cell. If any tensor of the cell was non-finite, `worst` is
    NaN and `nonfinite` counts these steps. `worst` is also NaN in an empty cell, where `present` is 0.
    """

    stat: str
    numbers: NDArray[np.int64]
    taps: tuple[Tap, ...]
    groups: NDArray[np.int64]  # taps in each row
    first_step: Steps  # of each column
    last_step: Steps
    worst: Floats  # [row, column]
    nonfinite: Counts
    present: Counts
    infinite: NDArray[np.bool_]  # cells whose non-finite values were infinities only

    @property
    def state(self) -> NDArray[np.uint8]:
        """0 for an empty cell, 1 for a finite one, 2 for one with a NaN, 3 for one with infinities and no NaN."""
        states = (self.present > 0).astype(np.uint8)
        states[self.nonfinite > 0] = 2
        states[self.infinite] = 3
        return states

    def columns(self) -> dict[str, Any]:
        """Return a row for each row of the map, and a column for each span of steps, named by its first step."""
        return tap_columns(self.numbers, self.taps) | {"group": self.groups} | span_columns(self.first_step, self.worst)


@dataclass(frozen=True, slots=True)
class Histograms(HistogramsTable):
    """The distribution of one tap over time: counts[i, j] values of column i lie between edges[j] and edges[j + 1]."""

    tap: int
    first_step: Steps  # of each column
    last_step: Steps
    edges: Floats
    counts: NDArray[np.uint64]  # [column, bin]
    nan: NDArray[np.uint64]  # [column]
    negative_infinity: NDArray[np.uint64]
    positive_infinity: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Channels(ChannelsTable):
    """The numbers of one probe over time, in their order. Row i begins at channel[i] of `channels`."""

    first_step: Steps  # of each column
    last_step: Steps
    channel: NDArray[np.int64]  # the first one of each row
    channels: int
    values: Floats  # [row, column]: the largest in the cell, or NaN


@dataclass(frozen=True, slots=True)
class Quantiles(Tabular):
    """Quantiles of one tap over time, from its sketches."""

    tap: int
    qs: Floats
    first_step: Steps  # of each point
    last_step: Steps
    values: Floats  # [point, q]

    def columns(self) -> dict[str, Any]:
        """Return a row for each point, and a column for each quantile, such as p50."""
        quantiles = {f"p{100 * q:g}": self.values[:, place] for place, q in enumerate(self.qs.tolist())}
        return {"first_step": self.first_step, "last_step": self.last_step} | quantiles


@dataclass(frozen=True, slots=True)
class Latest(Tabular):
    """The values of taps in the newest step each was seen in: exact, or if that step is merged with others, means.

    A tap's values are of the steps from first_steps to steps, which are the same if the values are exact.
    """

    stats: tuple[str, ...]
    numbers: NDArray[np.int64]
    taps: tuple[Tap, ...]
    steps: Steps
    values: Floats  # [tap, stat], unchanged: NaN and infinities included
    first_steps: Steps
    total: int  # of the taps that have values, with those beyond the limit

    def columns(self) -> dict[str, Any]:
        """Return a row for each tap, and a column for each stat."""
        stats = {stat: self.values[:, place] for place, stat in enumerate(self.stats)}
        steps = {"first_step": self.first_steps, "step": self.steps}
        return tap_columns(self.numbers, self.taps) | steps | stats


@dataclass(frozen=True, slots=True)
class PartUsage:
    """The size and limit of one part of the store."""

    nbytes: int
    limit: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The size of the store, and what its limits have cost so far."""

    max_bytes: int
    nbytes: int
    parts: dict[str, PartUsage]
    dropped: dict[str, int]  # by reason: lost
    merged: dict[str, int]  # by part: rows that were merged with others, which loses only resolution
