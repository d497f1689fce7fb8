"""The shapes of the answers, for the description that OpenAPI gives of them. Nothing is checked against them here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType

from hookcore.records import Kind, Phase, Scope, Severity

Number = TypeAliasType(
    "Number",
    Annotated[
        float | Literal["NaN", "Infinity", "-Infinity"],
        Field(description="a number, or the word for what JSON cannot say as a number"),
    ],
)
Matrix = list[list[Number]]


class Answer(BaseModel):
    """Whatever an answer holds beyond what is described is new."""

    model_config = ConfigDict(extra="allow")


class Problem(BaseModel):
    """Every answer that is an error."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"error": "unknown stat 'mena'; did you mean 'mean'?"}]})
    error: str


class TapModel(Answer):
    """An observed tensor stream."""

    number: int | None = None
    module: str
    kind: Kind
    index: str
    call: int
    phase: Phase
    label: str


class PartModel(Answer):
    """What a part of the store takes and may take."""

    nbytes: int
    limit: int


class UsageModel(Answer):
    """What the store takes, and what its limits cost so far."""

    max_bytes: int
    nbytes: int
    parts: dict[str, PartModel]
    dropped: dict[str, int]
    merged: dict[str, int]


class RunModel(Answer):
    """One training process."""

    id: str
    name: str
    notes: str
    state: Literal["live", "ended", "lost", "kept"]
    first_step: int | None = None
    newest_step: int | None = None
    steps: int
    ended_at_step: int | None = None
    taps: int
    started_s: Number
    host: str
    pid: int | str
    script: str
    versions: dict[str, Any]
    settings: dict[str, Any]
    labels: dict[str, str]
    books: dict[str, Any]
    usage: UsageModel


class Page(Answer):
    """A part of a list: `next` is the `after` of the part behind it, null at the end."""

    total: int
    next: int | None = None


class RunsPage(Answer):
    """Runs, the newest first; `next` is the `after` of the part behind it."""

    total: int
    next: str | None = None
    runs: list[RunModel]


class ModuleTap(TapModel):
    """A tap of a module, how many values it held when last seen, and its shape where it is known."""

    values: Number | None = None
    shape: list[int] | None = None


class CoverageModel(Answer):
    """Whether a module was captured, and if not, why."""

    path: str
    type: str
    captured: bool
    kinds: list[Kind]
    reason: str


class ModuleModel(Answer):
    """One module of the tree."""

    path: str
    parent: str | None = None
    type: str
    parameters: int
    trainable: int
    aliases: list[str]
    shapes: dict[str, list[int]]
    coverage: CoverageModel | None = None
    taps: list[ModuleTap]


class ModulesPage(Page):
    """Modules in the model's order."""

    run: str
    modules: list[ModuleModel]


class TapsPage(Page):
    """Taps, ascending by number."""

    run: str
    taps: list[TapModel]


class CoveragePage(Page):
    """The coverage of the modules."""

    run: str
    coverage: list[CoverageModel]


class HookModel(Answer):
    """One hook."""

    scope: Scope
    owner: str
    point: str
    function: str
    where: str
    ours: bool
    number: int
    options: list[str]
    legacy: bool
    warning: str


class HooksPage(Page):
    """The hooks on the model and the process."""

    run: str
    hooks: list[HookModel]


class SeriesModel(Answer):
    """A stat over time: item i of each list speaks of the steps first_step[i] to last_step[i]."""

    name: str
    tap: int | None = None
    first_step: list[int]
    last_step: list[int]
    mean: list[Number]
    min: list[Number]
    max: list[Number]
    present: list[int] | None = Field(None, description="in how many of the steps it was seen; not of quantiles")
    nonfinite: list[int] | None = Field(None, description="in how many it held a NaN or an infinity; not of quantiles")


class TapSeries(SeriesModel):
    """A stat of a tap over time."""

    about: TapModel


class SeriesAnswer(Page):
    """One stat of one or several taps."""

    run: str
    stat: str
    series: list[TapSeries]


class LogsAnswer(Page):
    """The names of scalars, and those series that were asked for."""

    run: str
    names: list[str]
    series: list[SeriesModel]


class RowModel(TapModel):
    """A row of a heatmap: a tap, or so many neighbours beginning with it."""

    taps: int


class HeatmapAnswer(Answer):
    """The worst value (of the largest magnitude) in each cell [row][column]."""

    run: str
    kind: Kind
    stat: str
    rows: list[RowModel]
    first_step: list[int]
    last_step: list[int]
    worst: Matrix
    state: list[list[int]] = Field(description="0 empty, 1 finite, 2 holds a NaN, 3 holds infinities and no NaN")
    present: list[list[int]] | None = None
    nonfinite: list[list[int]] | None = None


class HistogramsAnswer(Answer):
    """The distribution of a tap: counts[i][j] values of column i lie between edges[j] and edges[j + 1]."""

    run: str
    tap: int
    about: TapModel
    first_step: list[int]
    last_step: list[int]
    edges: list[Number]
    counts: list[list[int]]
    nan: list[int]
    negative_infinity: list[int]
    positive_infinity: list[int]


class LatestTap(TapModel):
    """A tap in the newest step it was seen in; `values` are in the order of `stats`."""

    step: int
    values: list[Number]


class LatestAnswer(Answer):
    """The newest values of taps."""

    run: str
    stats: list[str]
    taps: list[LatestTap]


class SnapshotModel(Answer):
    """A raw tensor that was kept."""

    number: int
    asked: bool = Field(description="whether a reader asked for it; else the training script did")
    tap: TapModel
    step: int
    time_s: Number
    dtype: str
    stored: str
    shape: list[int]
    kept_shape: list[int]
    truncated: bool
    nbytes: int


class SnapshotsPage(Page):
    """Snapshots, oldest first."""

    run: str
    snapshots: list[SnapshotModel]


class SnapshotAnswer(SnapshotModel):
    """A snapshot and its values, as nested lists; of complex numbers the innermost lists are pairs."""

    run: str
    slice: str
    values: Any


class EventModel(Answer):
    """An alert, a skipped capture, a change of settings."""

    step: int
    time_s: Number
    name: str
    message: str
    severity: Severity
    module: str
    count: int


class EventsAnswer(Answer):
    """Events, oldest first; `next` is the `after` with which to ask for those that come behind them."""

    run: str
    next: int
    events: list[EventModel]


class WaitingCommand(Answer):
    """A command that the trainer has not carried out yet."""

    number: int
    name: str
    changes: dict[str, Any]


class SettingsAnswer(Answer):
    """What holds in the trainer, and what waits for it."""

    run: str
    state: str
    settings: dict[str, Any]
    waiting: list[WaitingCommand]


class Accepted(Answer):
    """A command on its way to the trainer; its effect shows at `look`."""

    run: str
    number: int
    look: str


class Parting(Answer):
    """Where two runs part first."""

    step: int
    layer: TapModel


class ComparedLayer(Answer):
    """One tap of both runs; item i of each list speaks of the steps first_step[i] to last_step[i], in both."""

    about: TapModel
    taps: list[int] = Field(description="its numbers in the two runs")
    points: int = Field(description="how many points were compared")
    parts_at: int | None = Field(
        None, description="the first step in which the two are further apart than the tolerance"
    )
    largest: Number = Field(description="the largest magnitude of the differences")
    first_step: list[int]
    last_step: list[int]
    difference: list[Number]


class CompareAnswer(Page):
    """Two runs layer by layer."""

    runs: list[str]
    kind: str | None = None
    stat: str
    tolerance: float
    first: Parting | None = None
    parted: int = Field(description="how many layers part")
    layers: list[ComparedLayer]
    only_in: dict[str, list[TapModel]] = Field(description="taps of one run only, at most 1,000 of each")
