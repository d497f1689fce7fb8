"""Values over time: series, heatmaps, histograms, the newest values, and two runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta, field
from numpy.typing import NDArray

from hookcore import store
from hookcore.errors import ArgumentError
from hookcore.reading.answers.base import (
    Answer,
    FloatMatrix,
    Floats,
    IntegerMatrix,
    Integers,
    Number,
    Page,
    States,
    Tabular,
    Tap,
    tap_columns,
)
from hookcore.records import Kind
from hookcore.store.answers import (
    SERIES_COLUMNS,
    ChannelsTable,
    HistogramsTable,
    SeriesTable,
    series_column,
    span_columns,
)
from hookcore.store.unlike import cka

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


Estimate = tuple[Number, Number, Number]  # a share, and its least and largest possible value


class CastTo(Answer, frozen=True):
    """What a cast to a format makes of a tensor's nonzero finite values."""

    underflow: Annotated[Estimate, Meta(description="share that becomes zero, with its least and largest value")]
    subnormal: Annotated[Estimate, Meta(description="share that becomes subnormal, and keeps fewer digits")]
    saturated: Annotated[Estimate, Meta(description="share above the largest value of the format")]
    error: Annotated[Number, Meta(description="mean relative error of a value")]
    noise: Annotated[Number, Meta(description="root mean square of the errors, relative to that of the values")]
    most_noise: Annotated[
        Number, Meta(description="noise without the largest 1 % of the values, or a group far above the others")
    ]
    limits: Annotated[
        tuple[Number, Number, Number],
        Meta(description="magnitudes up to which values become zero, below which subnormal, and above which too large"),
    ]
    fits: Annotated[bool, Meta(description="the noise is low, few values are lost, and none becomes infinite")]
    most: Annotated[Number, Meta(description="the share of the values that `most_noise` is about")] = field(
        default_factory=lambda: Number(0.99)  # an older server, which doesn't say it, leaves out the largest 1 %
    )


class PrecisionTap(Tap, frozen=True):
    """A tap, and what casts would make of it."""

    values: Annotated[int, Meta(description="nonzero finite values in its histograms of these steps")]
    sampled: Annotated[bool, Meta(description="whether the histograms have only some of the tensor's values")]
    formats: dict[str, CastTo]


class Precision(Answer, frozen=True):
    """Which tensors casts to formats of low precision would harm, the worst first."""

    run: str
    first_step: int | None
    last_step: int | None
    format: str
    scale: str
    total: Annotated[int, Meta(description="taps with values, which may exceed those looked at")]
    taps: tuple[PrecisionTap, ...]


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
    """The distribution of a tap: counts[i][j] values of column i are between edges[j] and edges[j + 1].

    Captured steps without histograms are in no column; there, the stat `sketched` is 0.
    """

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
        for histogram in self.histograms:
            column, place = np.nonzero(histogram.counts)
            parts.append(
                {
                    "tap": np.full(len(column), histogram.tap.number, np.int64),
                    "first_step": histogram.first_step[column],
                    "last_step": histogram.last_step[column],
                    "from": histogram.edges[place],
                    "to": histogram.edges[place + 1],
                    "count": histogram.counts[column, place],
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


# Two runs, layer by layer.


class Apart(Answer, frozen=True):
    """The difference between two runs in one layer or logged value that both have."""

    outcome: Literal["different", "not compared", "NaN in both", "no difference"]
    points: Annotated[int, Meta(description="the number of compared points: steps, or merged older steps")]
    steps: Annotated[int, Meta(description="the number of steps in these points")]
    parts_at: Annotated[
        int | None,
        Meta(
            description="the first step with a difference larger than the tolerance, or the first of the merged steps "
            "that contain it"
        ),
    ]
    parts_by: Annotated[int | None, Meta(description="the last of these; the same as parts_at if they aren't merged")]
    largest: Annotated[
        Number, Meta(description="the largest magnitude of the differences; NaN if nothing was compared")
    ]
    share: Annotated[
        Number,
        Meta(
            description="the largest as a share of the larger magnitude; Infinity if only one run has a finite value, "
            "NaN if nothing was compared"
        ),
    ]
    at_step: Annotated[int | None, Meta(description="the step of the largest share")]
    nonfinite: Annotated[int, Meta(description="points at which both runs have NaN or infinities")]
    nonfinite_at: Annotated[
        int | None,
        Meta(description="the first step at which they do, or the first of the merged steps that contain it"),
    ]
    nonfinite_by: Annotated[int | None, Meta(description="the last of these")]


class ComparedScalar(Apart, frozen=True):
    """A value that both runs logged."""

    name: str


class ComparedLayer(Apart, Tabular, frozen=True, eq=False):
    """One tap of both runs. `difference` is the second run's value minus the first one's, at common steps."""

    tap: Tap
    numbers: Annotated[tuple[int, int], Meta(description="its numbers in the two runs")]
    first_step: Integers
    last_step: Integers
    difference: Floats

    def columns(self) -> dict[str, Any]:
        """Return a row for each point."""
        return {name: getattr(self, name) for name in ("first_step", "last_step", "difference")}


class Verdict(Answer, frozen=True):
    """The result of the comparison, and how much was compared."""

    outcome: Annotated[
        Literal["different", "no difference", "unknown"],
        Meta(description="unknown if no step of a layer was captured by both runs and no logged value differs"),
    ]
    message: Annotated[str, Meta(description="the verdict in sentences")]
    steps_compared: Annotated[int, Meta(description="steps that both runs captured")]
    steps_captured: Annotated[tuple[int, int], Meta(description="steps that each run captured")]
    steps_not_comparable: Annotated[
        int, Meta(description="the other steps from the first to the newest step of either run")
    ]


class Parting(Answer, frozen=True):
    """The first difference of two runs."""

    step: int
    tap: Tap


class Comparison(Page, frozen=True):
    """Two runs, layer by layer."""

    runs: tuple[str, str]
    kind: str | None
    stat: str
    tolerance: float
    verdict: Verdict
    first: Annotated[Parting | None, Meta(description="the earliest difference in a layer")]
    parted: Annotated[int, Meta(description="the number of layers that differ")]
    layers: tuple[ComparedLayer, ...]
    logged: Annotated[
        tuple[ComparedScalar, ...], Meta(description="every value that both runs logged, such as the loss")
    ]
    only_in: Annotated[dict[str, tuple[Tap, ...]], Meta(description="taps of one run only, at most 1,000 of each")]


# Whether a run went on where another one was saved.

PartOutcome = Literal["same", "differs", "unknown"]
ResumeOutcome = Literal["resumed", "broken", "unknown"]


class ResumedPart(Answer, frozen=True):
    """A part that a restart brings back: weights, buffers, optimizer, learning rate, random generators, ..."""

    name: str
    outcome: PartOutcome
    message: str


class ResumeCheck(Answer, frozen=True):
    """The first steps of a run against what an earlier run says about the state that it saved."""

    run: str
    earlier: Annotated[str, Meta(description="the id of the run that saved the state")]
    step: Annotated[int | None, Meta(description="how many steps the earlier run had made then; null: not known")]
    outcome: ResumeOutcome
    message: str
    parts: tuple[ResumedPart, ...]


class Cka(Answer, frozen=True, eq=False):
    """How alike the representations of a fixed batch are: linear CKA, 1 if they are alike up to a rotation."""

    runs: Annotated[tuple[str, str], Meta(description="the run of the rows, and that of the columns")]
    steps: Annotated[tuple[int, int], Meta(description="the steps in which they were measured")]
    batch: Annotated[str, Meta(description="the hash of the batch")]
    samples: Annotated[int, Meta(description="how many samples of the batch are compared")]
    layers: Annotated[tuple[tuple[str, ...], tuple[str, ...]], Meta(description="the modules of rows and columns")]
    values: Annotated[FloatMatrix, Meta(description="[row][column]; NaN if a module returns the same for all samples")]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "values", np.asarray(self.values).reshape(*map(len, self.layers)))

    @classmethod
    def of(cls, runs: tuple[str, str], found: tuple[store.Similarities, store.Similarities]) -> Cka:
        """Return the answer for the representations of the same batch in two steps, or in one with itself."""
        one, two = found
        samples = {len(each) for some in found for each in some.layers.values()}
        if one.batch != two.batch or len(samples) > 1:
            raise ArgumentError(
                f"the batches differ ({one.batch} in step {one.step:,} of {runs[0]}, {two.batch} in step {two.step:,} "
                f"of {runs[1]}): compare measurements of the same batch, of modules that return as many samples"
            )
        values = cka(list(one.layers.values()), list(two.layers.values()))
        layers = tuple(one.layers), tuple(two.layers)
        return cls(runs, (one.step, two.step), one.batch, samples.pop(), layers, values)


class DifferenceRow(Row, frozen=True):
    """A tap of both runs, or a group of neighbors starting with it."""

    numbers: Annotated[tuple[int, int], Meta(description="its numbers in the two runs")]


class ComparisonHeatmap(Tabular, frozen=True, eq=False):
    """The largest difference of two runs in each cell [row][column], as a share of the larger magnitude."""

    runs: tuple[str, str]
    kind: str | None
    stat: str
    rows: tuple[DifferenceRow, ...]
    first_step: Integers
    last_step: Integers
    worst: FloatMatrix
    state: Annotated[
        States,
        Meta(
            description="0 not compared, 1 compared, 2 finite in one run only, 3 NaN or infinite in both, no difference"
        ),
    ]

    def __post_init__(self) -> None:
        shape_cells(self)

    @property
    def taps(self) -> tuple[DifferenceRow, ...]:
        """The first tap of each row."""
        return self.rows

    def columns(self) -> dict[str, Any]:
        """Return a row for each row of the map, and a column for each span of steps, named by its first step."""
        groups = np.array([row.group for row in self.rows], np.int64)
        return tap_columns(self.rows) | {"group": groups} | span_columns(self.first_step, self.worst)


class Figure(Answer, frozen=True):
    """A chart for Plotly: `plotly.graph_objects.Figure(answer)`, or `Plotly.newPlot(element, answer)`."""

    data: tuple[dict[str, Any], ...]
    layout: dict[str, Any]


# Layers and logged values that differ in some steps of a run, the largest difference first.


class StepSample(Answer, frozen=True):
    """The steps that were compared. Older steps are kept as sums, so these may be more than the requested ones."""

    run: str
    first: int | None
    last: int | None
    steps: Annotated[int, Meta(description="the number of captured steps with histograms")]


class DifferentLayer(Answer, frozen=True, eq=False):
    """A tap whose values are distributed differently: counts[i][j] values lie between edges[j] and edges[j + 1]."""

    tap: Tap
    share: Annotated[
        Number,
        Meta(description="the share of values that would have to move to make both histograms match, beyond chance"),
    ]
    usual: Annotated[
        Number | None,
        Meta(description="the median share of other windows of equal length; null if there are fewer than two"),
    ]
    message: Annotated[str, Meta(description="what is different, in words")]
    edges: Floats
    inside: Floats
    outside: Floats
    values: Annotated[tuple[int, int], Meta(description="the number of sampled values inside and outside")]
    nonfinite: Annotated[tuple[int, int], Meta(description="the number of NaN and infinities among these")]

    @property
    def is_usual(self) -> bool:
        """Whether other windows of as many steps differ as much."""
        return self.usual is not None and self.share <= self.usual


class DifferentScalar(Answer, frozen=True):
    """A logged value that differs: mean and extremes of its finite values. Each pair is inside and outside."""

    name: str
    share: Number
    message: str
    mean: tuple[Number, Number]
    low: tuple[Number, Number]
    high: tuple[Number, Number]


class Differences(Tabular, frozen=True, eq=False):
    """What differs most between some steps and others, largest share first."""

    inside: StepSample
    outside: StepSample
    compared: Annotated[int, Meta(description="the number of taps with values in both")]
    not_compared: Annotated[int, Meta(description="the number of taps without values in one of them")]
    layers: tuple[DifferentLayer, ...]
    logged: tuple[DifferentScalar, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each layer."""
        found = tap_columns([layer.tap for layer in self.layers])
        found["share"] = np.array([layer.share for layer in self.layers], np.float64)
        found["usual"] = np.array([np.nan if layer.usual is None else layer.usual for layer in self.layers], np.float64)
        found["message"] = [layer.message for layer in self.layers]
        return found
