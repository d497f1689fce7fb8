"""What a server answers a script with: frozen records of NumPy arrays, which become data frames where wanted."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.records import Coverage, Event, Tap

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Record = TypeVar("Record")
_COLUMNS = ", or use .columns()"


def floats_of(values: Any) -> Floats:
    """Numbers and the words "NaN", "Infinity" and "-Infinity", in lists of any depth."""
    return np.array(values, np.float64)


def steps_of(values: Any) -> Steps:
    """Whole numbers."""
    return np.array(values, np.int64)


def arrays_of(said: Any) -> Any:
    """A figure with its typed arrays read: Plotly would leave them as texts."""
    if isinstance(said, list):
        return [arrays_of(each) for each in said]
    if not isinstance(said, dict):
        return said
    if "bdata" not in said:
        return {name: arrays_of(each) for name, each in said.items()}
    values = np.frombuffer(base64.b64decode(said["bdata"]), said["dtype"])
    return values.reshape([int(size) for size in str(said["shape"]).split(",")]) if "shape" in said else values


def number_of(value: Any) -> float:
    """A number or the word for one."""
    return float(value)


def tap_of(said: Mapping[str, Any]) -> Tap:
    """A tap."""
    return record_of(Tap, said)


def record_of(kind: type[Record], said: Mapping[str, Any]) -> Record:
    """A record of those fields that it has; what a newer server adds is left out."""
    names = {each.name for each in fields(kind)} & set(said)  # type: ignore[arg-type]
    return kind(**{name: tuple(said[name]) if isinstance(said[name], list) else said[name] for name in names})


class Framed:
    """What can be put into a data frame."""

    __slots__ = ()

    def columns(self) -> dict[str, Any]:
        """The columns by their names."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """A pandas DataFrame."""
        return library("pandas", _COLUMNS).DataFrame(self.columns())

    def to_polars(self) -> Any:
        """A polars DataFrame."""
        return library("polars", _COLUMNS).DataFrame(self.columns())


def library(name: str, otherwise: str = "") -> Any:
    """A library that not everybody has."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ArgumentError(f"{package} is not installed here: `pip install {package}`{otherwise}") from None


@dataclass(frozen=True, slots=True)
class RunReply:
    """One training process."""

    id: str
    name: str
    notes: str
    state: str  # live, ended, crashed, interrupted or lost
    first_step: int | None
    newest_step: int | None
    steps: int
    ended_at_step: int | None
    taps: int
    started_s: float
    failure: dict[str, Any] | None  # why it crashed or was interrupted: outcome, step, error, traceback
    in_memory: bool  # False: it is on disk, and read when it is asked for
    folder: str  # where it is on disk; empty if it is not
    host: str
    pid: int
    script: str
    versions: dict[str, str]
    settings: dict[str, Any]
    labels: dict[str, str]
    books: dict[str, Any]
    usage: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModuleReply:
    """One module of the tree; `taps` are numbers."""

    path: str
    parent: str | None
    type: str
    parameters: int
    trainable: int
    aliases: tuple[str, ...]
    coverage: Coverage | None
    taps: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]]  # of "weight", "output", "input 0", ...


@dataclass(frozen=True, slots=True)
class TapsReply(Framed):
    """Taps and their run-wide numbers, ascending."""

    numbers: Steps
    taps: tuple[Tap, ...]

    def columns(self) -> dict[str, Any]:
        """A row for each tap."""
        return _tap_columns(self.numbers, self.taps)


@dataclass(frozen=True, slots=True)
class SeriesReply(Framed):
    """A stat of a tap, or a scalar, over time; a point stands for the steps first_step to last_step.

    A quantile has no `present` and no `nonfinite`.
    """

    name: str
    number: int | None
    tap: Tap | None
    first_step: Steps
    last_step: Steps
    mean: Floats
    min: Floats
    max: Floats
    present: Steps | None
    nonfinite: Steps | None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> SeriesReply:
        """From JSON."""
        counts = [None if said.get(name) is None else steps_of(said[name]) for name in ("present", "nonfinite")]
        return cls(
            said["name"],
            said["tap"],
            tap_of(said["about"]) if "about" in said else None,
            steps_of(said["first_step"]),
            steps_of(said["last_step"]),
            floats_of(said["mean"]),
            floats_of(said["min"]),
            floats_of(said["max"]),
            *counts,
        )

    def columns(self) -> dict[str, Any]:
        """A row for each point."""
        names = ("first_step", "last_step", "mean", "min", "max", "present", "nonfinite")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True, slots=True)
class HeatmapReply(Framed):
    """The worst value of each cell [row, column]; a row is a tap, or `groups` neighbours beginning with it.

    `state` is 0 where a cell is empty, 1 finite, 2 where it holds a NaN, 3 where it holds infinities and no NaN.
    """

    kind: str
    stat: str
    numbers: Steps
    taps: tuple[Tap, ...]
    groups: Steps
    first_step: Steps
    last_step: Steps
    worst: Floats
    state: NDArray[np.uint8]

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> HeatmapReply:
        """From JSON."""
        shape = len(said["rows"]), len(said["first_step"])
        return cls(
            said["kind"],
            said["stat"],
            steps_of([row["number"] for row in said["rows"]]),
            tuple(tap_of(row) for row in said["rows"]),
            steps_of([row["taps"] for row in said["rows"]]),
            steps_of(said["first_step"]),
            steps_of(said["last_step"]),
            floats_of(said["worst"]).reshape(shape),
            np.array(said["state"], np.uint8).reshape(shape),
        )

    def columns(self) -> dict[str, Any]:
        """A row for each row, a column for each span of steps, named by its first step."""
        spans = {str(step): self.worst[:, place] for place, step in enumerate(self.first_step.tolist())}
        return _tap_columns(self.numbers, self.taps) | spans


@dataclass(frozen=True, slots=True)
class HistogramsReply(Framed):
    """The distribution of a tap: counts[i, j] values of column i lie between edges[j] and edges[j + 1]."""

    number: int
    tap: Tap
    first_step: Steps
    last_step: Steps
    edges: Floats
    counts: Steps
    nan: Steps
    negative_infinity: Steps
    positive_infinity: Steps

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> HistogramsReply:
        """From JSON."""
        edges = floats_of(said["edges"])
        shape = len(said["first_step"]), max(0, len(edges) - 1)
        apart = (steps_of(said[name]) for name in ("nan", "negative_infinity", "positive_infinity"))
        return cls(
            said["tap"],
            tap_of(said["about"]),
            steps_of(said["first_step"]),
            steps_of(said["last_step"]),
            edges,
            steps_of(said["counts"]).reshape(shape),
            *apart,
        )

    def columns(self) -> dict[str, Any]:
        """A row for each span of steps, a column for each bin, named by its lower edge."""
        names = ("first_step", "last_step", "nan", "negative_infinity", "positive_infinity")
        bins = {f"from {edge!r}": self.counts[:, place] for place, edge in enumerate(self.edges[:-1].tolist())}
        return {name: getattr(self, name) for name in names} | bins


@dataclass(frozen=True, slots=True)
class LatestReply(Framed):
    """The exact values [tap, stat] of taps in the newest step each was seen in."""

    stats: tuple[str, ...]
    numbers: Steps
    taps: tuple[Tap, ...]
    steps: Steps
    values: Floats

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> LatestReply:
        """From JSON."""
        rows = said["taps"]
        return cls(
            tuple(said["stats"]),
            steps_of([row["number"] for row in rows]),
            tuple(tap_of(row) for row in rows),
            steps_of([row["step"] for row in rows]),
            floats_of([row["values"] for row in rows]).reshape(len(rows), len(said["stats"])),
        )

    def columns(self) -> dict[str, Any]:
        """A row for each tap, a column for each stat."""
        stats = {stat: self.values[:, place] for place, stat in enumerate(self.stats)}
        return _tap_columns(self.numbers, self.taps) | {"step": self.steps} | stats


@dataclass(frozen=True, slots=True)
class RolloutReply:
    """What each position of the last layer (row) sees of each position before the first (column); rows sum to 1."""

    step: int | None  # None where no attention maps are kept: then all is empty
    steps: tuple[int, ...]  # at which attention maps are kept
    samples: int
    layers: tuple[Tap, ...]
    matrix: Floats

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> RolloutReply:
        """From JSON."""
        layers = tuple(tap_of(layer["about"]) for layer in said["layers"])
        return cls(said["step"], tuple(said["steps"]), said["samples"], layers, floats_of(said["matrix"]))


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """A tensor that was kept, without its values. `number` is what it is asked for by."""

    number: int
    asked: bool
    tap: Tap
    step: int
    time_s: float
    dtype: str
    shape: tuple[int, ...]
    kept_shape: tuple[int, ...]
    truncated: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class EventsReply:
    """Events, oldest first; `next` is the `after` with which to ask for those behind them.

    `keys` are what they are acknowledged by, and `acknowledged` whether they were.
    """

    events: tuple[Event, ...]
    next: int
    keys: tuple[str, ...] = ()
    acknowledged: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class LogsReply:
    """The names of all scalars, and the series of those that were asked for."""

    names: tuple[str, ...]
    series: dict[str, SeriesReply]


@dataclass(frozen=True, slots=True)
class SettingsReply:
    """What holds in the trainer, and the commands it has not carried out yet."""

    run: str
    state: str
    settings: dict[str, Any]
    waiting: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A command on its way to the trainer; its effect shows at `look`."""

    run: str
    number: int
    look: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartReply:
    """How far one thing that both runs have is apart: a layer, or a logged value."""

    outcome: Literal["different", "not compared", "NaN in both", "no difference"]
    points: int  # compared: steps, or older steps that were merged
    steps: int  # in these points
    parts_at: int | None  # the first step with a difference larger than the tolerance, or of the merged ones with it
    parts_by: int | None  # the last of these
    largest: float  # magnitude of the differences; NaN if nothing was compared
    share: float  # the largest, as a share of the larger magnitude; NaN if nothing was compared
    at_step: int | None
    nonfinite: int  # points at which both runs hold NaN or infinities
    nonfinite_at: int | None
    nonfinite_by: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReply(ApartReply, Framed):
    """One tap of two runs; `difference` is the second run's value less the first one's."""

    tap: Tap
    numbers: tuple[int, int]
    first_step: Steps
    last_step: Steps
    difference: Floats

    def columns(self) -> dict[str, Any]:
        """A row for each point."""
        return {name: getattr(self, name) for name in ("first_step", "last_step", "difference")}


@dataclass(frozen=True, slots=True)
class DifferencesReply(Framed):
    """By which share of the larger magnitude two runs are apart, the most of each cell [row, column].

    `state` is 0 if nothing was compared, 1 if it was, 2 if only one is finite, 3 if both hold NaN or infinities.
    """

    runs: tuple[str, str]
    stat: str
    taps: tuple[Tap, ...]
    groups: Steps
    first_step: Steps
    last_step: Steps
    worst: Floats
    state: NDArray[np.uint8]

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> DifferencesReply:
        """From JSON."""
        shape = len(said["rows"]), len(said["first_step"])
        return cls(
            (said["runs"][0], said["runs"][1]),
            said["stat"],
            tuple(tap_of(row) for row in said["rows"]),
            steps_of([row["taps"] for row in said["rows"]]),
            steps_of(said["first_step"]),
            steps_of(said["last_step"]),
            floats_of(said["worst"]).reshape(shape),
            np.array(said["state"], np.uint8).reshape(shape),
        )

    def columns(self) -> dict[str, Any]:
        """A row for each tap, a column for each span of steps."""
        steps = {str(step): self.worst[:, place] for place, step in enumerate(self.first_step.tolist())}
        return {"module": [tap.module for tap in self.taps], "kind": [tap.kind for tap in self.taps], **steps}


@dataclass(frozen=True, slots=True)
class CompareReply:
    """Two runs layer by layer. `outcome` is "unknown" if nothing could be compared; `message` says what was.

    `first` is the earliest step with a difference in a layer, and its tap; None if no layer differs.
    """

    runs: tuple[str, str]
    stat: str
    tolerance: float
    outcome: Literal["different", "no difference", "unknown"]
    message: str
    steps_compared: int
    steps_not_comparable: int
    first: tuple[int, Tap] | None
    parted: int
    layers: tuple[LayerReply, ...]
    logged: dict[str, ApartReply]  # by name: every value that both runs logged
    only_in: dict[str, tuple[Tap, ...]]


@dataclass(frozen=True, slots=True)
class FindingReply:
    """What needs attention: a rule, the tap it holds for, and since when. `usual` is what `value` was before."""

    key: str  # by which it is acknowledged
    rule: str
    severity: str
    acknowledged: bool
    number: int
    tap: Tap
    type: str
    stat: str
    value: float
    usual: float
    since_step: int
    until_step: int | None
    message: str
    spark: Floats
    downstream: int
    last_step: int | None = None  # the last step in which this very tensor was non-finite, if it is over

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> FindingReply:
        """From JSON."""
        numbers = {name: number_of(said[name]) for name in ("value", "usual")}
        about = {"number": said["tap"]["number"], "tap": tap_of(said["tap"]), "spark": floats_of(said["spark"])}
        return record_of(cls, {**said, **numbers, **about})


@dataclass(frozen=True, slots=True)
class UnjudgedReply:
    """A rule that some layers were captured too seldom for."""

    rule: str
    layers: int
    of: int
    captured: int
    needed: int
    sentence: str


@dataclass(frozen=True, slots=True)
class ScopeReply:
    """How much the findings are based on. `verdict` is "problems", "clear", or "unknown"."""

    verdict: str
    sentence: str
    first_step: int | None
    last_step: int | None
    steps: int
    captured: int
    captured_in_run: int
    layers: int
    uncaptured: int
    unjudged: tuple[UnjudgedReply, ...]


@dataclass(frozen=True, slots=True)
class FindingsReply(Sequence[FindingReply]):
    """The findings, the worst first: a sequence of at most as many as were asked for, out of `total`."""

    findings: tuple[FindingReply, ...]
    total: int
    scope: ScopeReply

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> FindingsReply:
        """Make it from JSON."""
        unjudged = tuple(record_of(UnjudgedReply, each) for each in said["scope"]["unjudged"])
        scope = record_of(ScopeReply, {**said["scope"], "unjudged": unjudged})
        return cls(tuple(FindingReply.of(each) for each in said["findings"]), said["total"], scope)

    @overload
    def __getitem__(self, place: int) -> FindingReply: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[FindingReply, ...]: ...

    def __getitem__(self, place: int | slice) -> FindingReply | tuple[FindingReply, ...]:
        return self.findings[place]

    def __len__(self) -> int:
        return len(self.findings)


@dataclass(frozen=True, slots=True)
class ReadingReply:
    """A number and whence it is: a scalar, or a tap's."""

    name: str
    value: float
    step: int
    tap: Tap | None

    @classmethod
    def of(cls, said: Mapping[str, Any] | None) -> ReadingReply | None:
        """From JSON."""
        if said is None:
            return None
        tap = None if said.get("tap") is None else tap_of(said["tap"])
        return cls(said["name"], number_of(said["value"]), said["step"], tap)


@dataclass(frozen=True, slots=True)
class OverviewReply:
    """The key figures of a run; None where there is nothing to tell them by."""

    run: str
    state: str
    first_step: int | None
    newest_step: int | None
    steps: int
    steps_per_s: float | None
    loss: ReadingReply | None
    scalars: dict[str, float]  # the newest value of each
    gradient_kind: str | None
    gradient_norm: ReadingReply | None
    smallest_gradient: ReadingReply | None
    largest_gradient: ReadingReply | None
    nonfinite: int
    nonfinite_modules: tuple[str, ...]
    modules_captured: int
    modules: int
    taps: int
    hook_cost: float | None  # share of the run's time, over all steps; None until it is measured
    every: int
    budget: float | None
    steps_left_out: int | None
    cost: str  # in one sentence
    dropped: dict[str, int]
    findings: dict[str, int]  # not acknowledged, by severity

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> OverviewReply:
        """From JSON."""
        names = ("loss", "gradient_norm", "smallest_gradient", "largest_gradient")
        read: dict[str, Any] = {name: ReadingReply.of(said[name]) for name in names}
        for name in ("steps_per_s", "hook_cost"):
            read[name] = None if said[name] is None else number_of(said[name])
        read["scalars"] = {each["name"]: number_of(each["value"]) for each in said["scalars"]}
        return record_of(cls, {**said, **read})


@dataclass(frozen=True, slots=True)
class News:
    """Something new in a run: `name` is run, taps, event, scalars or state, and `data` what the server said of it."""

    name: str
    id: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FrameNews:
    """The newest values: values[stat][i] belongs to the tap with numbers[i], last seen in steps[i]."""

    name: str  # frame
    id: str
    run: str
    first_step: int
    last_step: int
    time_s: float
    numbers: Steps
    steps: Steps
    values: dict[str, Floats]
    nonfinite: Steps  # the numbers of the taps that were not finite in any of the steps

    @classmethod
    def of(cls, news: News) -> FrameNews:
        """From what the server said."""
        said = news.data
        return cls(
            news.name,
            news.id,
            said["run"],
            said["first_step"],
            said["last_step"],
            number_of(said["time_s"]),
            steps_of(said["taps"]),
            steps_of(said["steps"]),
            {stat: floats_of(values) for stat, values in said["values"].items()},
            steps_of(said["nonfinite"]),
        )


def _tap_columns(numbers: Steps, taps: Sequence[Tap]) -> dict[str, Any]:
    names = ("module", "kind", "index", "call", "phase")
    return {"tap": numbers} | {name: [getattr(tap, name) for tap in taps] for name in names}
