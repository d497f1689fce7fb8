"""The shapes of the answers, for the description that OpenAPI gives of them. Nothing is checked against them here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType

from hookcore.records import Kind, Phase, Scope, Severity

from ..runs import State, Why

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


class FailureModel(Answer):
    """Why a run ended before its time."""

    outcome: Literal["crashed", "interrupted"]
    step: int
    error: str
    traceback: str


class RunModel(Answer):
    """One training process."""

    id: str
    name: str
    notes: str
    state: State
    failure: FailureModel | None = None
    in_memory: bool
    folder: str
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


class RemovedRunModel(Answer):
    """A run that was removed: by somebody, or to make room in memory or on disk."""

    id: str
    name: str
    removed_s: float
    why: Why
    restorable: bool


class RemovedRunsPage(Answer):
    """Removed runs, the newest removal first."""

    total: int
    runs: list[RemovedRunModel]


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


class HistogramsModel(Answer):
    """The distribution of a tap: counts[i][j] values of column i lie between edges[j] and edges[j + 1]."""

    tap: int
    about: TapModel
    first_step: list[int]
    last_step: list[int]
    edges: list[Number]
    counts: list[list[int]]
    nan: list[int]
    negative_infinity: list[int]
    positive_infinity: list[int]


class HistogramsAnswer(HistogramsModel):
    """The distribution of one tap."""

    run: str


class ManyHistogramsAnswer(Answer):
    """The distributions of several taps, in the order they were asked for; each has edges of its own."""

    run: str
    histograms: list[HistogramsModel]


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


class StatisticsAnswer(Answer):
    """What a part of a tensor is, of its very values in float64; moments and quantiles are over the finite ones."""

    run: str
    number: int
    slice: str
    shape: list[int]
    statistics: dict[str, Number] = Field(
        description="count, nan, inf, zero, mean, std, min, max, rms, p1, p5, p25, p50, p75, p95, p99"
    )


class TilesAnswer(Answer):
    """A tensor as pictures: `values` are [tile][row][column]; `factors` say how many rows and columns share a cell."""

    run: str
    number: int
    slice: str
    pool: str
    total: int = Field(description="tiles there are; those from `after` on are in `values`")
    tile_shape: list[int]
    factors: list[int]
    values: Any


class AskedSnapshot(Answer):
    """A tensor that was asked for, and the number it will have."""

    number: int
    about: TapModel


class RolloutRequested(Answer):
    """The attention maps that were asked for."""

    run: str
    asked: list[AskedSnapshot]
    left_out: int = Field(description="how many were too many for one request")
    look: str


class RolloutLayer(Answer):
    """One layer of a rollout: its snapshot, and that of its gradient."""

    number: int
    about: TapModel
    heads: int
    gradient: int | None


class RolloutAnswer(Answer):
    """What each position of the last layer (row) sees of each position before the first one (column)."""

    run: str
    step: int | None = Field(description="null where no attention maps are kept")
    steps: list[int] = Field(description="the steps at which attention maps are kept")
    sample: int
    samples: int
    fuse: str
    discard: float
    gradient: bool
    layers: list[RolloutLayer]
    matrix: list[list[float]]


class EventModel(Answer):
    """An alert, a skipped capture, a change of settings."""

    step: int
    time_s: Number
    name: str
    message: str
    severity: Severity
    module: str
    count: int
    key: str = Field(description="by which it is acknowledged")
    acknowledged: bool


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


class ApartModel(Answer):
    """How far one thing that both runs have is apart."""

    outcome: Literal["different", "not compared", "NaN in both", "no difference"]
    points: int = Field(description="how many points were compared: steps, or older steps that were merged")
    steps: int = Field(description="how many steps these points hold")
    parts_at: int | None = Field(
        None,
        description="the first step with a difference larger than the tolerance, or the first of the merged steps that "
        "hold it",
    )
    parts_by: int | None = Field(None, description="the last of these; the same as parts_at if they are not merged")
    largest: Number = Field(description="the largest magnitude of the differences; NaN if nothing was compared")
    share: Number = Field(
        description="the largest, as a share of the larger magnitude; Infinity if only one run has a finite value, "
        "NaN if nothing was compared"
    )
    at_step: int | None = Field(None, description="the step of the largest share")
    nonfinite: int = Field(description="points at which both runs hold NaN or infinities")
    nonfinite_at: int | None = Field(
        None, description="the first step at which they do, or the first of the merged steps that hold it"
    )
    nonfinite_by: int | None = Field(None, description="the last of these")


class ComparedLogged(ApartModel):
    """A value that both runs logged."""

    name: str


class VerdictModel(Answer):
    """What follows from the comparison, and how much was compared."""

    outcome: Literal["different", "no difference", "unknown"] = Field(
        description="unknown if no step of a layer was captured by both runs and no logged value differs"
    )
    message: str = Field(description="the verdict in sentences")
    steps_compared: int = Field(description="steps that both runs captured")
    steps_captured: list[int] = Field(description="steps that each run captured")
    steps_not_comparable: int = Field(description="the other steps from the first to the newest step of either run")


class ComparedLayer(ApartModel):
    """One tap of both runs; item i of each list speaks of the steps first_step[i] to last_step[i], in both."""

    about: TapModel
    taps: list[int] = Field(description="its numbers in the two runs")
    first_step: list[int]
    last_step: list[int]
    difference: list[Number]


class CompareAnswer(Page):
    """Two runs layer by layer."""

    runs: list[str]
    kind: str | None = None
    stat: str
    tolerance: float
    verdict: VerdictModel
    first: Parting | None = Field(None, description="the earliest difference in a layer")
    parted: int = Field(description="how many layers differ")
    layers: list[ComparedLayer]
    logged: list[ComparedLogged] = Field(description="every value that both runs logged, such as the loss")
    only_in: dict[str, list[TapModel]] = Field(description="taps of one run only, at most 1,000 of each")


class DifferenceRow(RowModel):
    """A row: a tap of both runs, or so many neighbours beginning with it."""

    numbers: list[int] = Field(description="its numbers in the two runs")


class DifferencesAnswer(Answer):
    """By which share of the larger magnitude two runs are apart, the most of each cell [row][column]."""

    runs: list[str]
    kind: str | None = None
    stat: str
    rows: list[DifferenceRow]
    first_step: list[int]
    last_step: list[int]
    worst: Matrix
    state: list[list[int]] = Field(
        description="0 not compared, 1 compared, 2 finite in one run only, 3 NaN or infinite in both and no difference"
    )


class RuleModel(Answer):
    """When something is found, and what it means."""

    name: str
    severity: Severity
    title: str
    help: str
    limits: dict[str, float]


class FindingModel(Answer):
    """What a rule found at a tap."""

    key: str = Field(description="by which it is acknowledged; the same for as long as the rule finds this tap")
    rule: str
    severity: Severity
    acknowledged: bool
    tap: TapModel
    type: str = Field(description="the module's class, where it is known")
    stat: str = Field(description="what `value`, `usual` and `spark` are")
    value: Number
    usual: Number = Field(description="what it was before; NaN where nothing is usual")
    since_step: int
    until_step: int | None = Field(None, description="the last step, where it is over")
    message: str
    spark: list[Number] = Field(description="the newest values that were finite, oldest first")
    downstream: int = Field(description="how many more modules went the same way after it")
    last_step: int | None = Field(None, description="the last step with this tensor non-finite, if it is over")


class UnjudgedModel(Answer):
    """A rule that some layers were captured too seldom for."""

    rule: str
    layers: int = Field(description="layers that the rule can't judge")
    of: int = Field(description="layers that it is about")
    captured: int = Field(description="captured steps of the one that was captured most")
    needed: int = Field(description="captured steps that the rule needs")
    sentence: str


class ScopeModel(Answer):
    """How much the findings are based on."""

    verdict: Literal["problems", "clear", "unknown"] = Field(description="unknown: too little was captured to judge")
    sentence: str = Field(description="the verdict with its scope, as the pages show it")
    first_step: int | None = Field(None, description="the first step that was looked at")
    last_step: int | None = None
    steps: int = Field(description="steps from the first to the last")
    captured: int = Field(description="captured steps among them")
    captured_in_run: int
    layers: int = Field(description="layers with captured tensors")
    uncaptured: int = Field(description="modules that /coverage lists as not captured")
    unjudged: list[UnjudgedModel]


class FindingsAnswer(Answer):
    """What needs attention, the worst first."""

    run: str
    total: int
    newest_step: int | None = None
    scope: ScopeModel
    findings: list[FindingModel]
    rules: list[RuleModel]


class ReadingModel(Answer):
    """A number and whence it is: a scalar, or a tap's."""

    name: str
    value: Number
    step: int
    tap: TapModel | None = None


class OverviewAnswer(Answer):
    """How a run is. What there is nothing to tell by is null."""

    run: str
    state: str
    first_step: int | None = None
    newest_step: int | None = None
    steps: int
    steps_per_s: Number | None = None
    loss: ReadingModel | None = None
    scalars: list[ReadingModel] = Field(description="the newest value of each of the user's scalars, at most 50")
    gradient_kind: Kind | None = Field(None, description="what the gradients are those of: parameters, else outputs")
    gradient_norm: ReadingModel | None = None
    smallest_gradient: ReadingModel | None = Field(None, description="by root mean square")
    largest_gradient: ReadingModel | None = Field(None, description="by root mean square")
    nonfinite: int = Field(description="modules whose newest tensors held a NaN or an infinity")
    nonfinite_modules: list[str] = Field(description="which, at most 100")
    modules_captured: int
    modules: int
    taps: int
    hook_cost: Number | None = Field(
        None, description="the share of the run's time that watching adds, over all steps; null until it is measured"
    )
    every: int = Field(description="which steps are captured: every n-th")
    budget: float | None = Field(None, description="the largest share that watching may add; null is no limit")
    steps_left_out: int | None = Field(None, description="steps that were not captured; null if not reported")
    cost: str = Field(description="the cost in one sentence, as every page shows it")
    dropped: dict[str, int] = Field(description="by reason, in the store and on the way to it")
    findings: dict[str, int] = Field(description="how many findings nobody acknowledged, by severity")


class AcknowledgedAnswer(Answer):
    """What holds now."""

    run: str
    key: str
    acknowledged: bool


class FigureAnswer(Answer):
    """A chart as Plotly reads it: `plotly.graph_objects.Figure(answer)`, or `Plotly.newPlot(element, answer)`."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
