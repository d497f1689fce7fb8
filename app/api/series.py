"""Numbers over time: series, heatmaps, histograms, the newest values, and logged scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import Query
from msgspec.structs import replace
from starlette.exceptions import HTTPException

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.reading.answers.series import MAX_CHOSEN, MAX_HISTOGRAMS, MAX_NUMBERS, MAX_SCALARS, MAX_SERIES
from hookcore.records import Kind
from hookcore.records.sketch import BINS
from hookcore.store.checks import quantile_of, unknown

from ..formats import ARRAYS
from .params import After, MatchParam, OfKind, RunParam, SpanParam, StatName, StatsOrQuantiles, check_cells, page_of
from .routing import router

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
    reader = run.reader
    if tap is not None:
        wanted, limit = [reader.find(each) for each in tap], MAX_SERIES
    else:
        wanted = list(reader.taps(match, kind).taps)
    shown, page = page_of(wanted, after, limit)
    found = (one for each in shown for one in reader.stats(each, stats, span.first, span.last, points))
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
    wanted = [run.reader.find(each) for each in tap]
    if len(wanted) * columns * bins > MAX_BINS:
        many = f"{len(wanted)} taps of {columns} columns and {bins} bins"
        raise ArgumentError(f"{many} are more than {MAX_BINS} bins: request fewer")
    asked = span.first, span.last, columns, bins
    if len(wanted) == 1:
        return run.reader.histograms(wanted[0], *asked)
    return answers.HistogramsList(run.id, tuple(run.reader.many_histograms(wanted, *asked)))


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
    names, every = name or (), run.store.scalar_names()
    missing = next((one for one in names if one not in set(every)), None)
    if missing is not None:
        raise HTTPException(404, unknown("scalar", missing, every))
    found = run.reader.scalars(names, span.first, span.last, points, match)
    shown, page = page_of(found.names, after, limit)
    return replace(found, **page, names=tuple(shown))
