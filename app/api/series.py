"""Numbers over time: series, heatmaps, histograms, the newest values, and scalars; as Plotly figures, and pinned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from fastapi import Depends, Query, Response
from msgspec.structs import replace
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.reading.answers import PinnedChart
from hookcore.reading.answers.series import MAX_CHOSEN, MAX_HISTOGRAMS, MAX_NUMBERS, MAX_SCALARS, MAX_SERIES
from hookcore.reading.local import MAX_CAST, SCALES
from hookcore.reading.pictures import cells_of, cut
from hookcore.records import KINDS, Kind
from hookcore.records.sketch import BINS, FORMATS
from hookcore.records.vocabulary import KIND_WORDS, OWN
from hookcore.store import STAT_NAMES
from hookcore.store.checks import quantile_of, require, unknown

from ..analysis.comparison import counted_series
from ..formats import ARRAYS, StrictJson, words_of
from ..runs import Run, Runs
from .params import (
    RUN_PATTERN,
    After,
    ChartToPin,
    MatchParam,
    NameParam,
    OfKind,
    RunParam,
    RunsParam,
    SavedText,
    SpanParam,
    StatName,
    StatsOrQuantiles,
    asked_in,
    check_cells,
    forget,
    match_of,
    page_of,
    problem_of,
    run_named,
)
from .routing import ReplyParam, answered, described, problems, router

if TYPE_CHECKING:
    from ..analysis.figures import Style

MAX_POINTS: Final = 10_000
MAX_BINS: Final = 3_000_000  # bins of all columns of all histograms of an answer
MAX_NAMES: Final = 1000
MAX_LATEST: Final = 100_000
MAX_HISTOGRAM_COLUMNS: Final = 2000
MAX_CHANNEL_ROWS: Final = 4096

Points = Annotated[int, Query(ge=1, le=MAX_POINTS, description="maximum points per series; extremes are kept")]
TapText = Annotated[
    str, Query(max_length=2100, description="a tap's number or its label", examples=["0", "layers.0 output"])
]
ScalarNames = list[Annotated[str, Query(max_length=1000)]]
SeriesLimit = Annotated[int, Query(ge=1, le=MAX_SERIES, description="maximum number of series in this answer")]


@router.reads("/series", "Stats over time", ARRAYS)
def series(
    run: RunParam,
    span: SpanParam,
    match: MatchParam,
    stat: StatsOrQuantiles,
    tap: Annotated[list[TapText] | None, Query(max_length=MAX_SERIES, description="can be repeated")] = None,
    kind: OfKind = None,
    points: Points = 1000,
    after: After = 0,
    limit: SeriesLimit = 20,
) -> answers.SeriesList:
    """Return stats of some taps, or of up to 100 that match `match` and `kind`, each in a limited number of points."""
    stats = asked_stats(tap, match, kind, stat, limit, points)
    wanted: Sequence[str | answers.Tap] = run.reader.taps(match, kind).taps if tap is None else tap
    shown, page = page_of(wanted, after, limit if tap is None else MAX_SERIES)
    found = (one for each in shown for one in run.reader.stats(each, stats, span.first, span.last, points))
    return answers.SeriesList(**page, run=run.id, stat=stat, series=tuple(found))


def asked_stats(
    tap: Sequence[str] | None, match: str | None, kind: str | None, stat: str, limit: int, points: int
) -> list[str]:
    """Return the stats that are asked for. Raises ArgumentError for an unknown one, and if the answer is too large."""
    if (tap is None) == (match is None and kind is None):
        raise ArgumentError("use either tap=, or match= and kind=")
    stats = list(dict.fromkeys(stat.split(",")))
    for each in stats:
        quantile_of(each)
    many = len(stats) * (len(tap) if tap is not None else limit)
    if many > MAX_SERIES or many * points > MAX_NUMBERS:
        at_most = f"at most {MAX_SERIES} series and {MAX_NUMBERS} points in all"
        raise ArgumentError(f"{many} series of {points} points are too many: ask for fewer, {at_most}")
    return stats


@router.reads("/heatmap", "A stat of many taps over time", ARRAYS, matrix="worst")
def heatmap(
    run: RunParam,
    span: SpanParam,
    match: MatchParam,
    kind: Annotated[Kind, Query(description="the kind of the taps")],
    stat: StatName,
    columns: Annotated[int, Query(ge=1, le=5000, description="maximum number of columns (equal spans of steps)")] = 500,
    rows: Annotated[int, Query(ge=1, le=5000, description="maximum number of rows; neighbors share one")] = 1000,
    counts: Annotated[bool, Query(description="add how often a cell was captured and non-finite")] = False,
) -> answers.Heatmap:
    """Return the worst value (the largest magnitude) of each cell; columns x rows is at most 2,000,000."""
    check_cells(columns, rows)
    return run.reader.heatmap(kind, stat, match, span.first, span.last, columns, rows, counts=counts)


@router.reads("/histograms", "The distribution of taps over time", ARRAYS, matrix="counts")
def histograms(
    run: RunParam,
    span: SpanParam,
    tap: Annotated[
        list[TapText], Query(min_length=1, max_length=MAX_HISTOGRAMS, description="can be repeated, for a list")
    ],
    columns: Annotated[
        int, Query(ge=1, le=MAX_HISTOGRAM_COLUMNS, description="maximum number of columns (equal spans of steps)")
    ] = 200,
    bins: Annotated[int, Query(ge=5, le=BINS, description="maximum number of bins")] = 80,
) -> answers.Histograms | answers.HistogramsList:
    """Return exact sums of sketches, on edges that all columns of a tap share."""
    if len(tap) * columns * bins > MAX_BINS:
        many = f"{len(tap)} taps of {columns} columns and {bins} bins"
        raise ArgumentError(f"{many} are more than {MAX_BINS} bins: request fewer")
    asked = span.first, span.last, columns, bins
    if len(tap) == 1:
        return run.reader.histograms(tap[0], *asked)
    return answers.HistogramsList(run.id, tuple(run.reader.many_histograms(tap, *asked)))


@router.reads(
    "/channels",
    "The numbers of a probe in their order over time, such as one for each channel",
    ARRAYS,
    matrix="values",
)
def channels(
    run: RunParam,
    match: MatchParam,
    span: SpanParam,
    tap: Annotated[TapText | None, Query(description="omit it for a list of the taps")] = None,
    columns: Annotated[int, Query(ge=1, le=2000, description="maximum number of columns (spans of steps)")] = 240,
    rows: Annotated[
        int, Query(ge=1, le=MAX_CHANNEL_ROWS, description="maximum number of rows (groups of channels)")
    ] = 512,
) -> answers.Channels | answers.ChannelTaps:
    """Return what probes with several numbers computed. In a cell, the largest value wins, or NaN."""
    check_cells(columns, rows)
    if tap is None:
        return run.reader.channel_taps(match)
    return run.reader.channels(tap, span.first, span.last, columns, rows)


@router.reads("/precision", "What casts to low precision would make of each tensor")
def precision(
    run: RunParam,
    match: MatchParam,
    span: SpanParam,
    format: Annotated[str, Query(max_length=10, description="the format to sort by", examples=[*FORMATS])] = "e4m3",
    scale: Annotated[
        str,
        Query(max_length=10, description="what becomes the largest value of a scaled format", examples=[*SCALES]),
    ] = "max",
    kind: OfKind = None,
    limit: Annotated[int, Query(ge=1, le=MAX_CAST, description="maximum number of taps in this answer")] = 100,
) -> answers.Precision:
    """Return the shares of values that would become zero, subnormal, or too large, by the histograms of these steps.

    Each share has its least and largest possible value: bins that a limit cuts, and samples, leave it open.
    """
    return run.reader.precision(format, scale, match, kind, span.first, span.last, limit)


@router.reads("/latest", "The newest values", ARRAYS)
def latest(
    run: RunParam,
    match: MatchParam,
    span: SpanParam,
    kind: OfKind = None,
    stat: Annotated[str | None, Query(max_length=50, description="only this stat; default: all")] = None,
    sort: Annotated[
        str | None,
        Query(max_length=50, description="a stat: non-finite first, then largest; with - before it, smallest"),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LATEST, description="maximum number of taps in this answer")] = 1000,
    tap: Annotated[
        list[TapText] | None, Query(max_length=MAX_CHOSEN, description="only these taps; can be repeated")
    ] = None,
) -> answers.Latest:
    """Return the values of each tap in its newest step, of the whole run or between `from` and `to`.

    They are exact, unless that step is merged with others by now: then they are the means of `first_step` to `step`.
    """
    return run.reader.latest(match, kind, stat, sort, limit, span.first, span.last, tap)


@router.reads("/scalars", "Logged scalars", ARRAYS)
def scalars(
    run: RunParam,
    span: SpanParam,
    name: Annotated[
        ScalarNames | None,
        Query(
            max_length=MAX_SCALARS,
            description=f"a scalar whose series to return; can be repeated up to {MAX_SCALARS} times",
        ),
    ] = None,
    match: Annotated[str | None, Query(max_length=1000, description="only names that match a glob, or re:")] = None,
    points: Points = 1000,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_NAMES, description="maximum number of names in this answer")] = MAX_NAMES,
) -> answers.Scalars:
    """Return the names of the scalars (hookcore's own begin with hookcore/), and the series of the requested ones."""
    found = _scalars_of(run, name or (), (span.first, span.last), points, match)
    shown, page = page_of(found.names, after, limit)
    return replace(found, **page, names=tuple(shown))


def _scalars_of(
    run: Run, names: Sequence[str], steps: tuple[int | None, int | None], points: int, match: str | None = None
) -> answers.Scalars:
    """Return some scalars. 404 for the first unknown one."""
    known = run.store.scalar_names()
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise HTTPException(404, unknown("scalar", missing, known))
    return run.reader.scalars(names, *steps, points, match)


# Charts as Plotly figures, for scripts and notebooks.

Chart = Literal["heatmap", "series", "histograms", "profile", "fan", "scalars", "compare", "tensor"]
MAX_LINES: Final = 50
MAX_VALUES: Final = 500_000
FAN: Final = ("p1", "p5", "p25", "p50", "p75", "p95", "p99")


@dataclass(frozen=True, slots=True)
class FigureQuery:
    """The parameters of a chart. Each chart reads those that it needs."""

    span: SpanParam
    match: MatchParam
    kind: Annotated[
        str, Query(max_length=200, description="the kind of the taps; a profile can have several, separated by commas")
    ] = "output"
    stat: Annotated[str, Query(max_length=50, description="a stat, or for a series a quantile such as p99")] = "rms"
    tap: Annotated[TapText | None, Query(description="for series, histograms and fan: one tap")] = None
    name: Annotated[
        list[Annotated[str, Query(max_length=1000)]] | None,
        Query(max_length=MAX_LINES, description="for scalars: their names; default: the user's own"),
    ] = None
    step: Annotated[int | None, Query(ge=0, le=2**53, description="for a profile: the step; default: the newest")] = (
        None
    )
    other: Annotated[
        str | None, Query(pattern=RUN_PATTERN, description="for compare: the run to compare `run` with")
    ] = None
    number: Annotated[int | None, Query(ge=0, le=2**62, description="for a tensor: the snapshot's number")] = None
    part: Annotated[str, Query(alias="slice", max_length=500, description="for a tensor: a slice such as 0,:,3:7")] = ""
    points: Annotated[int, Query(ge=1, le=10_000, description="maximum points per line")] = 1000
    columns: Annotated[int, Query(ge=1, le=5000, description="maximum columns of a heatmap")] = 500
    rows: Annotated[int, Query(ge=1, le=5000, description="maximum rows of a heatmap; neighbors share one")] = 200
    bins: Annotated[int, Query(ge=5, le=BINS, description="maximum bins of histograms")] = 80
    scale: Annotated[Literal["auto", "log", "linear"], Query(description="the scale of the values")] = "auto"
    smooth: Annotated[float, Query(ge=0, le=1e9, description="half-life in steps; 0 disables smoothing")] = 0.0

    def __post_init__(self) -> None:
        check_cells(self.columns, self.rows)

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The first and the last step."""
        return self.span.first, self.span.last

    @property
    def one_kind(self) -> Kind:
        """The only kind in the query, for charts of a single kind."""
        require("kind", self.kind, KINDS)
        return cast("Kind", self.kind)


@router.get("/figure", summary="A chart for Plotly", responses=described(("json",), answers.Figure))
def figure(
    runs: RunsParam,
    run: RunParam,
    reply: ReplyParam,
    asked: Annotated[FigureQuery, Depends()],
    chart: Annotated[Chart, Query(description="the kind of chart")],
    theme: Annotated[Literal["light", "dark"], Query(description="the color theme")] = "light",
) -> Response:
    """Return a chart for Plotly.js and Plotly for Python. Its arrays are typed, so that NaN stays NaN."""
    # Plotly is loaded for the first chart, so a server that draws none does without.
    from ..analysis.figures import THEMES

    if chart == "compare":
        other = reply.about(run_named(runs, _needs(asked.other, "other", "compare")))
        return reply.json(lambda: _compare(run, other, asked, THEMES[theme]))
    return reply.json(lambda: _CHARTS[chart](run, asked, THEMES[theme]))


def _heatmap(run: Run, asked: FigureQuery, style: Style) -> dict[str, Any]:
    from ..analysis.figures import heatmap

    found = run.reader.heatmap(asked.one_kind, asked.stat, asked.match, *asked.bounds, asked.columns, asked.rows)
    return heatmap(found, style, f"{asked.stat} of {KIND_WORDS[asked.one_kind]}", asked.scale)


def _series(run: Run, asked: FigureQuery, style: Style) -> dict[str, Any]:
    from ..analysis.figures import series

    reader = run.reader
    wanted = [reader.find(asked.tap)] if asked.tap is not None else reader.taps(asked.match, asked.one_kind).taps
    about = asked.stat, *asked.bounds, asked.points
    many = [(tap.label, counted_series(reader, tap, *about)) for tap in wanted[:MAX_LINES]]
    title = many[0][0] if len(many) == 1 else f"{asked.stat} of {KIND_WORDS[asked.one_kind]}{_of(many, wanted)}"
    return series(many, style, title, asked.stat, asked.scale, asked.smooth)


def _scalars(run: Run, asked: FigureQuery, style: Style) -> dict[str, Any]:
    from ..analysis.figures import series

    wanted = asked.name or [name for name in run.store.scalar_names() if not name.startswith(OWN)]
    many = [(each.name, each) for each in _scalars_of(run, wanted[:MAX_LINES], asked.bounds, asked.points).series]
    title = many[0][0] if len(many) == 1 else f"scalars{_of(many, wanted)}"
    return series(many, style, title, "value", asked.scale, asked.smooth, captured=False)


def _histograms(run: Run, asked: FigureQuery, style: Style) -> dict[str, Any]:
    from ..analysis.figures import histograms

    found = run.reader.histograms(_needs(asked.tap, "tap", "histograms"), *asked.bounds, asked.columns, asked.bins)
    return histograms(found, style, found.tap.label)


def _fan(run: Run, asked: FigureQuery, style: Style) -> dict[str, Any]:
    from ..analysis.figures import fan

    tap = run.reader.find(_needs(asked.tap, "tap", "fan"))
    *quantiles, counted = run.reader.stats(tap, (*FAN, "nonfinite"), *asked.bounds, asked.points)
    return fan(quantiles, counted, style, f"percentiles of {tap.label}")


def _profile(run: Run, asked: FigureQuery, style: Style) -> dict[str, Any]:
    from ..analysis.figures import ends_of, profile

    require("stat", asked.stat, STAT_NAMES)
    step = asked.step if asked.step is not None else run.store.steps().newest
    kinds = []
    cut = ""
    for kind in dict.fromkeys(asked.kind.split(",")):
        require("kind", kind, KINDS)
        wanted = run.reader.taps(asked.match, cast("Kind", kind)).taps
        taps = wanted[: asked.rows]
        cut = cut or _of(taps, wanted)
        found = [run.reader.series(tap, asked.stat, step, step, 1) for tap in taps]
        kinds.append((kind, [each for each in found if each.present is not None and each.present.any()]))
    known = [each for each in kinds if each[1]]
    first, last = ends_of(known) if known else (step, step)
    steps = "step -" if first is None or last is None else words_of(first, last)
    where = "at" if first == last else "as the mean of"
    return profile(known, style, f"{asked.stat} {where} {steps}{cut}", asked.stat, asked.scale)


def _tensor(run: Run, asked: FigureQuery, style: Style) -> dict[str, Any]:
    from ..analysis.figures import tensor

    number = asked.number
    if number is None:
        raise ArgumentError("chart=tensor needs number=: give the number of a snapshot, which /snapshots lists")
    found = run.reader.snapshot(number)
    if found is None:
        raise HTTPException(
            404, f"there is no snapshot {number} in the run {run.id}: /snapshots lists the existing ones"
        )
    values = cut(found.values, asked.part)
    if values.ndim > 2 or cells_of(values) > MAX_VALUES:
        shape = " x ".join(map(str, values.shape))
        raise ArgumentError(
            f"a tensor {shape} can't be a picture: use slice= to get at most two dimensions and {MAX_VALUES} values"
        )
    title = f"{found.tap.label} at step {found.step}" + (f" [{asked.part}]" if asked.part else "")
    return tensor(found, values, style, title, asked.scale)


def _compare(run: Run, other: Run, asked: FigureQuery, style: Style) -> dict[str, Any]:
    from ..analysis.figures import difference, same_maps

    found = same_maps(
        run.reader, other.reader, asked.one_kind, asked.stat, asked.match, asked.bounds, asked.columns, asked.rows
    )
    title = f"{asked.stat} of {KIND_WORDS[asked.one_kind]}: {other.name} against {run.name}"
    return difference(*found, style, title)


def _of(shown: Sequence[Any], wanted: Sequence[Any]) -> str:
    """Return what the title of a chart adds if it doesn't show all."""
    return f" (the first {len(shown):,} of {len(wanted):,})" if len(shown) < len(wanted) else ""


def _needs(given: str | None, name: str, chart: str) -> str:
    if given is None:
        raise ArgumentError(f"chart={chart} needs {name}=: give it")
    return given


_CHARTS: Final[dict[str, Callable[[Run, FigureQuery, Any], dict[str, Any]]]] = {
    "heatmap": _heatmap,
    "series": _series,
    "scalars": _scalars,
    "histograms": _histograms,
    "fan": _fan,
    "profile": _profile,
    "tensor": _tensor,
}


# Charts that readers pin on the board.

CHART_POINTS: Final = 1000  # of each line on the board


class _SeriesChart(BaseModel):
    """What the route /series is asked for a chart. The board adds the run, its steps, and the number of points."""

    stat: StatsOrQuantiles
    tap: Annotated[list[TapText] | None, Query(max_length=MAX_SERIES)] = None
    match: SavedText | None = None
    kind: OfKind = None
    limit: SeriesLimit = 20


class _ScalarsChart(BaseModel):
    """What the route /scalars is asked for a chart."""

    name: Annotated[ScalarNames, Query(max_length=MAX_SCALARS)]


def check_chart(path: str, query: str) -> None:
    """Raise HookcoreError if the board can't show a chart with this query of any run."""
    if path == "scalars":
        asked_in(_ScalarsChart, query)
        return
    if path != "series":
        raise ArgumentError(f"a chart of {path[:50]!r} can't be shown: pin series or scalars")
    asked = asked_in(_SeriesChart, query)
    match_of(asked.match)
    asked_stats(asked.tap, asked.match, asked.kind, asked.stat, asked.limit, CHART_POINTS)


def problem_of_chart(chart: PinnedChart) -> str | None:
    """Return why a chart can't be shown that an earlier version, or another program, has stored; None if it can."""
    return problem_of(check_chart, chart.path, chart.query)


def charts_of(runs: Runs) -> tuple[answers.PinnedChart, ...]:
    parts = ((name, *said.partition("?")[::2]) for name, said in runs.board.all().items())
    return tuple(answers.PinnedChart(*part) for part in parts)


@router.get("/board", summary="Pinned charts", responses=described(("json",), answers.Board))
def board(runs: RunsParam) -> Response:
    """Return the charts that were pinned on any page."""
    return StrictJson(answers.Board(charts_of(runs)))


@router.put("/board", summary="Pin a chart", responses=answered(answers.Board))
def pin(runs: RunsParam, chart: ChartToPin) -> Response:
    """Pin a chart, instead of the one of the same name. A query that no run could answer is refused."""
    check_chart(chart.path, chart.query)
    runs.board.save(chart.name, f"{chart.path}?{chart.query}")
    return StrictJson(answers.Board(charts_of(runs)))


@router.delete("/board", summary="Unpin a chart", status_code=204, response_class=Response, responses=problems())
def unpin(runs: RunsParam, name: NameParam) -> None:
    """Take a chart off the board."""
    forget(runs.board, name)
