"""The store's answers: frozen records of arrays, and the same as tables and data frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.records import Tap

# Answers as tables: columns by name, and data frames. The store and the server share them.

SERIES_COLUMNS: Final = ("first_step", "last_step", "mean", "min", "max", "present", "nonfinite")
_HISTOGRAM_COLUMNS: Final = ("first_step", "last_step", "nan", "negative_infinity", "positive_infinity")
_OTHERWISE: Final = ", or use .columns()"


class Tabular:
    """An answer that can become a data frame."""

    __slots__ = ()

    def columns(self) -> dict[str, Any]:
        """Return the columns by name."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame."""
        return library("pandas", _OTHERWISE).DataFrame(self.columns())

    def to_polars(self) -> Any:
        """Return a polars DataFrame."""
        return library("polars", _OTHERWISE).DataFrame(self.columns())


class SeriesTable(Tabular):
    """A table with a row for each point."""

    __slots__ = ()

    def columns(self) -> dict[str, Any]:
        """Return a row for each point."""
        return {name: series_column(self, name) for name in SERIES_COLUMNS}


def series_column(series: Any, name: str) -> NDArray[Any]:
    """Return a column of a series; NaN where it is unknown, as the counts of a quantile are."""
    values: NDArray[Any] | None = getattr(series, name)
    return np.full(len(series.first_step), np.nan) if values is None else values


class HistogramsTable(Tabular):
    """A table with a row for each span of steps, and a column for each bin."""

    __slots__ = ()
    counts: NDArray[Any]
    edges: NDArray[Any]

    def columns(self) -> dict[str, Any]:
        """Return a row for each span of steps, and a column for each bin, named by its lower edge."""
        bins = {f"from {edge!r}": self.counts[:, place] for place, edge in enumerate(self.edges[:-1].tolist())}
        return {name: getattr(self, name) for name in _HISTOGRAM_COLUMNS} | bins


class ChannelsTable(Tabular):
    """A table with a row for each channel, or group of channels."""

    __slots__ = ()
    channel: NDArray[np.int64]
    first_step: NDArray[np.int64]
    values: NDArray[Any]

    def columns(self) -> dict[str, Any]:
        """Return a row for each row of the map, and a column for each span of steps, named by its first step."""
        return {"channel": self.channel} | span_columns(self.first_step, self.values)


def tap_columns(numbers: Sequence[int | None] | NDArray[np.int64], taps: Sequence[Any]) -> dict[str, Any]:
    """Return a column for each part of the taps."""
    texts = {name: [getattr(tap, name) for tap in taps] for name in ("module", "kind", "index")}
    calls = np.array([tap.call for tap in taps], np.int64)
    phases = [tap.phase for tap in taps]
    return {"tap": np.asarray(numbers, np.int64), **texts, "call": calls, "phase": phases}


def span_columns(first_step: NDArray[np.int64], cells: NDArray[Any]) -> dict[str, Any]:
    """Return the columns of a map, each named by its first step."""
    return {str(step): cells[:, place] for place, step in enumerate(first_step.tolist())}


def library(name: str, otherwise: str = "") -> Any:
    """Import a library that may be missing."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ArgumentError(f"{package} is not installed here: `pip install {package}`{otherwise}") from None


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

    mean, min, and max are over the finite values (NaN if there were none). `present` counts the steps with a value,
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
class Similarities:
    """The products of the samples of a fixed batch in what modules return, as measured in a step."""

    step: int
    batch: str  # the hash of the batch, and of which of its samples these are
    layers: dict[str, NDArray[Any]]  # by path, in the model's order: [sample, sample]


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
