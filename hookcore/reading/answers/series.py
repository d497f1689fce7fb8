"""Values over time: series, heatmaps, histograms, and the newest values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from hookcore import store
from hookcore.reading.answers.base import (
    Answer,
    FloatMatrix,
    Floats,
    IntegerMatrix,
    Integers,
    Page,
    States,
    Tabular,
    Tap,
    tap_columns,
)
from hookcore.records import Kind
from hookcore.store.tables import (
    SERIES_COLUMNS,
    ChannelsTable,
    HistogramsTable,
    SeriesTable,
    series_column,
    span_columns,
)

# Limits of one answer. The client splits larger queries.
MAX_SERIES: Final = 100
MAX_NUMBERS: Final = 500_000  # points of all its series
MAX_HISTOGRAMS: Final = 50
MAX_SCALARS: Final = 50  # series of scalars
MAX_CHOSEN: Final = 500  # taps whose newest values are requested by number


class Series(SeriesTable, Answer, frozen=True, eq=False, omit_defaults=True):
    """A stat of a tap, or a scalar, over time. Item i of each list covers the steps first_step[i] to last_step[i]."""

    name: str
    tap: Annotated[Tap | None, Meta(description="null if this is a scalar")]
    first_step: Integers
    last_step: Integers
    mean: Floats
    min: Floats
    max: Floats
    present: Annotated[
        Integers | None, Meta(description="the number of steps in which it was captured; quantiles have none")
    ] = None
    nonfinite: Annotated[
        Integers | None, Meta(description="the number of steps with a NaN or an infinity; quantiles have none")
    ] = None

    @classmethod
    def of(cls, found: store.Series, tap: Tap | None = None, *, counts: bool = True) -> Series:
        """Return the answer for a series; that of a quantile has no counts."""
        names = SERIES_COLUMNS if counts else SERIES_COLUMNS[:5]
        return cls(found.name, tap, *(getattr(found, name) for name in names))


class SeriesList(Page, Tabular, frozen=True):
    """Stats of one or several taps."""

    run: str
    stat: str
    series: tuple[Series, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each point of each series."""
        return _series_columns(self.series, stats="," in self.stat)


def _series_columns(many: Sequence[Series], *, stats: bool = False) -> dict[str, Any]:
    """Return all series in one table; `tap` is -1 for a scalar. `stats` adds a column with the stat."""
    sizes = [len(series.first_step) for series in many]
    pairs = list(zip(many, sizes, strict=True))
    numbers = np.array([-1 if series.tap is None else series.tap.number for series in many], np.int64)
    labels = [series.name if series.tap is None else series.tap.label for series, size in pairs for _ in range(size)]
    columns: dict[str, Any] = {"tap": np.repeat(numbers, sizes), "label": labels}
    if stats:
        columns["stat"] = [series.name for series, size in pairs for _ in range(size)]
    for name in SERIES_COLUMNS:
        parts = [series_column(series, name) for series in many]
        columns[name] = np.concatenate(parts) if parts else np.empty(0, np.int64 if "step" in name else np.float64)
    return columns


class Scalars(Page, Tabular, frozen=True):
    """The names of the scalars, and the requested series; `scalars["loss"]` is one of them."""

    run: str
    names: tuple[str, ...]
    series: tuple[Series, ...]

    def __getitem__(self, name: str) -> Series:
        return next(each for each in self.series if each.name == name)

    def columns(self) -> dict[str, Any]:
        """Return a row for each point of each series."""
        return _series_columns(self.series)


class Row(Tap, frozen=True):
    """A row of a heatmap: a tap, or a group of neighbors starting with it."""

    group: Annotated[int, Meta(description="the number of taps in the row")]


class Heatmap(Tabular, frozen=True, eq=False, omit_defaults=True):
    """The worst value (of the largest magnitude) in each cell [row][column]."""

    run: str
    kind: Kind
    stat: str
    rows: tuple[Row, ...]
    first_step: Integers
    last_step: Integers
    worst: FloatMatrix
    state: Annotated[States, Meta(description="0 empty, 1 finite, 2 contains a NaN, 3 contains infinities but no NaN")]
    present: IntegerMatrix | None = None
    nonfinite: IntegerMatrix | None = None

    def __post_init__(self) -> None:
        shape_cells(self)

    @classmethod
    def of(cls, run: str, kind: Kind, found: store.Heatmap, *, counts: bool = False) -> Heatmap:
        """Return the answer for a heatmap. `counts` adds in how many steps a cell was captured, and was non-finite."""
        pairs = zip(found.numbers.tolist(), found.taps, found.groups.tolist(), strict=True)
        rows = tuple(Row.of(number, tap, group=group) for number, tap, group in pairs)
        about: Any = (run, kind, found.stat, rows, found.first_step, found.last_step, found.worst, found.state)
        return cls(*about, *((found.present, found.nonfinite) if counts else ()))

    @property
    def taps(self) -> tuple[Row, ...]:
        """The first tap of each row."""
        return self.rows

    @property
    def groups(self) -> Integers:
        """The number of taps in each row."""
        return np.array([row.group for row in self.rows], np.int64)

    def columns(self) -> dict[str, Any]:
        """Return a row for each row of the map, and a column for each span of steps, named by its first step."""
        return tap_columns(self.rows) | {"group": self.groups} | span_columns(self.first_step, self.worst)


def shape_cells(answer: Any) -> None:
    """Restore the shapes of a map's matrices, which JSON loses if they are empty."""
    shape = len(answer.rows), len(answer.first_step)
    for name in ("worst", "state"):
        msgspec.structs.force_setattr(answer, name, getattr(answer, name).reshape(shape))


class Histograms(HistogramsTable, Answer, frozen=True, eq=False, omit_defaults=True):
    """The distribution of a tap: counts[i][j] values of column i are between edges[j] and edges[j + 1]."""

    tap: Tap
    first_step: Integers
    last_step: Integers
    edges: Floats
    counts: IntegerMatrix
    nan: Integers
    negative_infinity: Integers
    positive_infinity: Integers
    run: str = ""

    def __post_init__(self) -> None:
        shape = len(self.first_step), max(0, len(self.edges) - 1)
        msgspec.structs.force_setattr(self, "counts", self.counts.reshape(shape))

    @classmethod
    def of(cls, tap: Tap, found: store.Histograms, run: str = "") -> Histograms:
        counts: Any = (found.counts, found.nan, found.negative_infinity, found.positive_infinity, run)
        return cls(tap, found.first_step, found.last_step, found.edges, *counts)


class HistogramsList(Tabular, frozen=True):
    """The distributions of several taps, in the requested order, each with its own edges."""

    run: str
    histograms: tuple[Histograms, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each non-empty bin of each span of steps, because edges differ by tap."""
        parts: list[dict[str, NDArray[Any]]] = []
        for each in self.histograms:
            column, place = np.nonzero(each.counts)
            parts.append(
                {
                    "tap": np.full(len(column), each.tap.number, np.int64),
                    "first_step": each.first_step[column],
                    "last_step": each.last_step[column],
                    "from": each.edges[place],
                    "to": each.edges[place + 1],
                    "count": each.counts[column, place],
                }
            )
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Channels(ChannelsTable, Answer, frozen=True, eq=False):
    """The numbers of a probe, in order: values[i][j] is the largest of the channels from channel[i] on."""

    run: str
    tap: Tap
    first_step: Integers
    last_step: Integers
    channel: Annotated[Integers, Meta(description="the first channel of each row")]
    channels: Annotated[int, Meta(description="the number of channels; more than rows if a row is a group")]
    values: FloatMatrix

    def __post_init__(self) -> None:
        shape = len(self.channel), len(self.first_step)
        msgspec.structs.force_setattr(self, "values", self.values.reshape(shape))

    @classmethod
    def of(cls, run: str, tap: Tap, found: store.Channels) -> Channels:
        return cls(run, tap, found.first_step, found.last_step, found.channel, found.channels, found.values)


class ChannelTaps(Tabular, frozen=True):
    """The taps whose numbers are stored in order."""

    run: str
    taps: tuple[Tap, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each tap."""
        return tap_columns(self.taps)


class LatestTap(Tap, frozen=True, eq=False):
    """A tap in its newest step. `values` are in the order of `stats`."""

    step: int
    values: Floats
    first_step: Annotated[int, Meta(description="less than `step` if the values are means of merged steps")]


class Latest(Tabular, frozen=True, eq=False):
    """The newest values of taps."""

    run: str
    stats: tuple[str, ...]
    taps: tuple[LatestTap, ...]
    total: Annotated[int, Meta(description="the number of taps with values, which may exceed `limit`")]

    @classmethod
    def of(cls, run: str, found: store.Latest) -> Latest:
        """Return the answer for the newest values."""
        ends = zip(found.first_steps.tolist(), found.steps.tolist(), strict=True)
        rows = zip(found.numbers.tolist(), found.taps, ends, found.values, strict=True)
        taps = tuple(
            LatestTap.of(number, tap, first_step=first, step=step, values=values)
            for number, tap, (first, step), values in rows
        )
        return cls(run, found.stats, taps, found.total)

    @property
    def steps(self) -> Integers:
        """The step of each tap's values."""
        return np.array([tap.step for tap in self.taps], np.int64)

    @property
    def values(self) -> FloatMatrix:
        """The values [tap, stat]."""
        return np.array([tap.values for tap in self.taps], np.float64).reshape(len(self.taps), len(self.stats))

    def columns(self) -> dict[str, Any]:
        """Return a row for each tap, and a column for each stat."""
        stats = {stat: self.values[:, place] for place, stat in enumerate(self.stats)}
        firsts = np.array([tap.first_step for tap in self.taps], np.int64)
        return tap_columns(self.taps) | {"first_step": firsts, "step": self.steps} | stats
