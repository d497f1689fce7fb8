"""Numbers over time: series, heatmaps, histograms, the newest values, and logged scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from msgspec.structs import replace
from starlette.exceptions import HTTPException

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.reading.answers.series import MAX_CHOSEN, MAX_HISTOGRAMS, MAX_NUMBERS, MAX_SCALARS, MAX_SERIES
from hookcore.records import Kind
from hookcore.records.sketch import BINS
from hookcore.store import STAT_NAMES
from hookcore.store.checks import matcher, quantile_of, require, unknown
from hookcore.store.newest import require_stats

from ..formats import ARRAYS
from .params import (
    After,
    Format,
    MatchParam,
    OfKind,
    ReplyParam,
    RunParam,
    SpanParam,
    StatName,
    StatsOrQuantiles,
    check_cells,
    described,
    page_of,
    version_of,
)
from .steady import SteadyRoute

MAX_POINTS: Final = 10_000
MAX_BINS: Final = 3_000_000  # bins of all columns of all histograms of an answer
MAX_NAMES: Final = 1000
MAX_LATEST: Final = 100_000
MAX_HISTOGRAM_COLUMNS: Final = 2000
MAX_CHANNEL_ROWS: Final = 4096

router = APIRouter(route_class=SteadyRoute)

Points = Annotated[int, Query(ge=1, le=MAX_POINTS, description="maximum points per series; extremes are kept")]
TapText = Annotated[
    str, Query(max_length=2100, description="a tap's number or its label", examples=["0", "layers.0 output"])
]
ScalarNames = list[Annotated[str, Query(max_length=1000)]]
SeriesLimit = Annotated[int, Query(ge=1, le=MAX_SERIES, description="maximum number of series in this answer")]


@router.get("/series", summary="Stats over time", responses=described(answers.SeriesList, ARRAYS))
def series(
    run: RunParam,
    reply: ReplyParam,
    span: SpanParam,
    match: MatchParam,
    stat: StatsOrQuantiles,
    tap: Annotated[list[TapText] | None, Query(max_length=MAX_SERIES, description="can be repeated")] = None,
    kind: OfKind = None,
    points: Points = 1000,
    after: After = 0,
    limit: SeriesLimit = 20,
    format: Format = None,
) -> Response:
    """Return stats of some taps, or of up to 100 that match `match` and `kind`, each in a limited number of points."""
    stats = asked_stats(tap, match, kind, stat, limit, points)
    reader = run.reader
    if tap is not None:
        wanted, limit = [reader.find(each) for each in tap], MAX_SERIES
    else:
        wanted = list(reader.taps(match, kind).taps)
    shown, page = page_of(wanted, after, limit)

    def content() -> answers.SeriesList:
        found = (one for each in shown for one in reader.stats(each, stats, span.first, span.last, points))
        return answers.SeriesList(**page, run=run.id, stat=stat, series=tuple(found))

    return reply.arrays(format, [version_of(run)], content)


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


@router.get("/heatmap", summary="A stat of many taps over time", responses=described(answers.Heatmap, ARRAYS))
def heatmap(
    run: RunParam,
    reply: ReplyParam,
    span: SpanParam,
    match: MatchParam,
    kind: Annotated[Kind, Query(description="the kind of the taps")],
    stat: StatName,
    columns: Annotated[int, Query(ge=1, le=5000, description="maximum number of columns (equal spans of steps)")] = 500,
    rows: Annotated[int, Query(ge=1, le=5000, description="maximum number of rows; neighbors share one")] = 1000,
    counts: Annotated[bool, Query(description="add how often a cell was captured and non-finite")] = False,
    format: Format = None,
) -> Response:
    """Return the worst value (the largest magnitude) of each cell; columns x rows is at most 2,000,000."""
    require("stat", stat, STAT_NAMES)
    check_cells(columns, rows)

    def content() -> answers.Heatmap:
        return run.reader.heatmap(kind, stat, match, span.first, span.last, columns, rows, counts=counts)

    return reply.arrays(format, [version_of(run)], content, matrix="worst")


@router.get(
    "/histograms",
    summary="The distribution of taps over time",
    responses=described(answers.Histograms, ARRAYS, answers.HistogramsList),
)
def histograms(
    run: RunParam,
    reply: ReplyParam,
    span: SpanParam,
    tap: Annotated[
        list[TapText], Query(min_length=1, max_length=MAX_HISTOGRAMS, description="can be repeated, for a list")
    ],
    columns: Annotated[
        int, Query(ge=1, le=MAX_HISTOGRAM_COLUMNS, description="maximum number of columns (equal spans of steps)")
    ] = 200,
    bins: Annotated[int, Query(ge=5, le=BINS, description="maximum number of bins")] = 80,
    format: Format = None,
) -> Response:
    """Return exact sums of sketches, on edges that all columns of a tap share."""
    wanted = [run.reader.find(each) for each in tap]
    if len(wanted) * columns * bins > MAX_BINS:
        many = f"{len(wanted)} taps of {columns} columns and {bins} bins"
        raise ArgumentError(f"{many} are more than {MAX_BINS} bins: request fewer")

    def content() -> answers.Histograms | answers.HistogramsList:
        asked = span.first, span.last, columns, bins
        if len(wanted) == 1:
            return run.reader.histograms(wanted[0], *asked)
        return answers.HistogramsList(run.id, tuple(run.reader.many_histograms(wanted, *asked)))

    return reply.arrays(format, [version_of(run)], content, matrix="counts")


@router.get(
    "/channels",
    summary="The numbers of a probe in their order over time, such as one for each channel",
    responses=described(answers.Channels, ARRAYS, answers.ChannelTaps),
)
def channels(
    run: RunParam,
    reply: ReplyParam,
    match: MatchParam,
    span: SpanParam,
    tap: Annotated[TapText | None, Query(description="omit it for a list of the taps")] = None,
    columns: Annotated[int, Query(ge=1, le=2000, description="maximum number of columns (spans of steps)")] = 240,
    rows: Annotated[
        int, Query(ge=1, le=MAX_CHANNEL_ROWS, description="maximum number of rows (groups of channels)")
    ] = 512,
    format: Format = None,
) -> Response:
    """Return what probes with several numbers computed. In a cell, the largest value wins, or NaN."""
    check_cells(columns, rows)

    def content() -> answers.Channels | answers.ChannelTaps:
        if tap is None:
            return run.reader.channel_taps(match)
        return run.reader.channels(tap, span.first, span.last, columns, rows)

    return reply.arrays(format, [version_of(run)], content, matrix="values")


@router.get("/latest", summary="The newest values", responses=described(answers.Latest, ARRAYS))
def latest(
    run: RunParam,
    reply: ReplyParam,
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
    format: Format = None,
) -> Response:
    """Return the values of each tap in its newest step, of the whole run or between `from` and `to`.

    They are exact, unless that step is merged with others by now: then they are the means of `first_step` to `step`.
    """
    require_stats(stat, sort)

    def content() -> answers.Latest:
        return run.reader.latest(match, kind, stat, sort, limit, span.first, span.last, tap)

    return reply.arrays(format, [version_of(run)], content)


@router.get("/scalars", summary="Logged scalars", responses=described(answers.Scalars, ARRAYS))
def scalars(
    run: RunParam,
    reply: ReplyParam,
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
    format: Format = None,
) -> Response:
    """Return the names of the scalars (hookcore's own begin with hookcore/), and the series of the requested ones."""
    matcher(match)
    names = name or ()
    every = run.store.scalar_names()
    missing = next((one for one in names if one not in set(every)), None)
    if missing is not None:
        raise HTTPException(404, unknown("scalar", missing, every))

    def content() -> answers.Scalars:
        found = run.reader.scalars(names, span.first, span.last, points, match)
        shown, page = page_of(found.names, after, limit)
        return replace(found, **page, names=tuple(shown))

    return reply.arrays(format, [version_of(run)], content)
