"""Several runs: what two share, where they first differ, and values of many over time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import Depends, Query, Response
from msgspec.structs import replace

from hookcore.config.patterns import literal
from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.records import Tap
from hookcore.store import STAT_NAMES, Series
from hookcore.store.checks import require

from ..analysis.comparison import ComparisonQuery, Differences, Pairs, compare, differences, renamer
from ..analysis.overlay import OverlayQuery, band_of, find_series, grouped
from ..analysis.verdict import Verdict, compare_runs
from ..formats import ARRAYS, Table
from ..runs import Run
from ..runs.query import Traits
from .params import (
    MAX_RUN_ID,
    RUN_PATTERN,
    After,
    MatchParam,
    OfKind,
    OfModule,
    RunsParam,
    SpanParam,
    StatName,
    check_cells,
    listed_run,
    page_of,
    run_named,
)
from .routing import Format, ReplyParam, described, router

# Two runs side by side: what they share, how much was compared, and where they first differ.

MAX_ALONE: Final = 1000
MAX_NUMBERS: Final = 500_000


def _two_runs(
    runs: RunsParam,
    reply: ReplyParam,
    pair: Annotated[
        str,
        Query(
            alias="runs",
            max_length=2 * MAX_RUN_ID + 1,
            description="the ids of two runs, separated by a comma",
            examples=["run-1,run-2"],
        ),
    ],
) -> tuple[Run, Run]:
    ids = pair.split(",")
    if len(ids) != 2 or not all(re.match(RUN_PATTERN, each) for each in ids):
        raise ArgumentError(f"runs={pair!r} does not name two runs: give two ids with a comma, such as runs=a,b")
    return reply.about(run_named(runs, ids[0])), reply.about(run_named(runs, ids[1]))


def _asked(
    span: SpanParam,
    match: MatchParam,
    module: OfModule = None,
    stat: StatName = "rms",
    kind: OfKind = None,
    tolerance: Annotated[
        float,
        Query(ge=0, le=2, description="largest difference that counts as equal, as a share of the larger magnitude"),
    ] = 0.0,
    rename: Annotated[
        str,
        Query(
            max_length=1000,
            description='"expression -> replacement" that maps the modules of the second run to those of the first',
            examples=["^backbone\\. -> encoder."],
        ),
    ] = "",
) -> ComparisonQuery:
    require("stat", stat, STAT_NAMES)
    renamer(rename)
    match = match if module is None else literal(module)
    return ComparisonQuery(stat, kind, match, span.first, span.last, tolerance, rename)


TwoRuns = Annotated[tuple[Run, Run], Depends(_two_runs)]
AskedParam = Annotated[ComparisonQuery, Depends(_asked)]


@router.get("/compare", summary="Two runs, layer by layer", responses=described(ARRAYS, answers.Comparison))
def compare_two_runs(
    reply: ReplyParam,
    pair: TwoRuns,
    asked: AskedParam,
    points: Annotated[int, Query(ge=1, le=10_000, description="maximum number of points per layer")] = 200,
    sort: Annotated[
        Literal["model", "share", "step"],
        Query(description="the model's order, the largest difference first, or the earliest difference first"),
    ] = "model",
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="maximum number of layers in this answer")] = 50,
    format: Format = None,
) -> Response:
    """Compare taps of the same module, kind, index, call, and phase, and values that both runs logged, step by step.

    `verdict` says how much was compared. Older steps that were merged are compared by their mean, minimum, and maximum,
    if both runs merged the same steps.
    """
    one, two = pair
    if limit * points > MAX_NUMBERS:
        raise ArgumentError(f"{limit} layers of {points} points are more than {MAX_NUMBERS} numbers: ask for fewer")

    def read() -> tuple[Verdict, list[int]]:
        verdict = compare_runs(one.store, two.store, asked)
        return verdict, verdict.order(sort)

    def shown(pairs: Pairs, order: Sequence[int]) -> list[answers.ComparedLayer]:
        return compare(one.store, two.store, pairs, asked, points, order)

    def content() -> answers.Comparison:
        verdict, order = read()
        places, page = page_of(order, after, limit)
        return answers.Comparison(
            **page,
            runs=(one.id, two.id),
            kind=asked.kind,
            stat=asked.stat,
            tolerance=asked.tolerance,
            verdict=_verdict_of(verdict),
            first=first_parting(verdict),
            parted=sum(layer.parts_at is not None for layer in verdict.layers),
            layers=tuple(shown(verdict.pairs, places)),
            logged=tuple(verdict.logged),
            only_in={run.id: _alone(taps) for run, taps in zip((one, two), verdict.pairs.alone, strict=True)},
        )

    def table() -> Table:
        verdict, order = read()
        return _table(shown(verdict.pairs, order[after : after + limit]))

    return reply.arrays(format, content, table=table)


def first_parting(verdict: Verdict) -> answers.Parting | None:
    """Return the earliest step in which a layer differs, and that layer."""
    layer = verdict.parting
    if layer is None or layer.parts_at is None:
        return None
    return answers.Parting(layer.parts_at, layer.tap)


def _verdict_of(verdict: Verdict) -> answers.Verdict:
    extent = verdict.extent
    message = " ".join(verdict.say())
    return answers.Verdict(verdict.outcome, message, extent.compared, extent.captured, extent.not_comparable)


def _alone(taps: dict[Tap, int]) -> tuple[answers.Tap, ...]:
    return tuple(answers.Tap.of(number, tap) for tap, number in islice(taps.items(), MAX_ALONE))


def _table(layers: Sequence[answers.ComparedLayer]) -> Table:
    sizes = [len(layer.difference) for layer in layers]
    columns: dict[str, Any] = {
        "tap": np.repeat(np.array([layer.numbers[0] for layer in layers], np.int64), sizes),
        "label": [layer.tap.label for layer, size in zip(layers, sizes, strict=True) for _ in range(size)],
    }
    for name, kind in (("first_step", np.int64), ("last_step", np.int64), ("difference", np.float64)):
        parts = [getattr(layer, name) for layer in layers]
        columns[name] = np.concatenate(parts) if parts else np.empty(0, kind)
    return Table(columns)


@router.get(
    "/compare/heatmap",
    summary="How far two runs are apart, layer by step",
    responses=described(ARRAYS, answers.ComparisonHeatmap),
)
def compare_heatmap(
    reply: ReplyParam,
    pair: TwoRuns,
    asked: AskedParam,
    columns: Annotated[int, Query(ge=1, le=5000, description="maximum number of columns (equal spans of steps)")] = 500,
    rows: Annotated[int, Query(ge=1, le=5000, description="maximum number of rows; neighbors share one")] = 600,
    format: Format = None,
) -> Response:
    """Return each cell's largest difference, as a share of the larger magnitude; columns x rows: at most 2,000,000."""
    one, two = pair
    check_cells(columns, rows)

    def read() -> tuple[answers.ComparisonHeatmap, Differences]:
        pairs = Pairs.of(one.store, two.store, asked)
        found = differences(one.store, two.store, pairs, asked, columns, rows)
        return _differences_of((one.id, two.id), asked, pairs, found), found

    def table() -> Table:
        answer, found = read()
        return Table(replace(answer, worst=found.share).columns(), found.share)  # infinities unchanged

    return reply.arrays(format, lambda: read()[0], table=table)


def _differences_of(
    runs: tuple[str, str], asked: ComparisonQuery, pairs: Pairs, found: Differences
) -> answers.ComparisonHeatmap:
    rows = tuple(
        answers.DifferenceRow.of(pairs.numbers[place][0], pairs.taps[place], group=group, numbers=pairs.numbers[place])
        for place, group in zip(found.starts.tolist(), found.groups.tolist(), strict=True)
    )
    cells: Any = found.worst, found.state
    return answers.ComparisonHeatmap(runs, asked.kind, asked.stat, rows, found.first_step, found.last_step, *cells)


MAX_RUNS: Final = 200  # of an answer; their ids fit into an address


def _runs_named(
    runs: RunsParam,
    reply: ReplyParam,
    named: Annotated[
        str,
        Query(
            alias="runs",
            max_length=MAX_RUNS * (MAX_RUN_ID + 1),
            description=f"the ids of at most {MAX_RUNS} runs, separated by commas",
            examples=["run-1,run-2"],
        ),
    ],
) -> list[Run]:
    ids = list(dict.fromkeys(named.split(",")))
    if len(ids) > MAX_RUNS or not all(re.match(RUN_PATTERN, each) for each in ids):
        raise ArgumentError(f"runs={named[:80]!r} is invalid: give the ids of 1 to {MAX_RUNS} runs, such as runs=a,b")
    return [reply.about(listed_run(runs, each)) for each in ids]


@router.reads("/overlay", "The same values of many runs", ARRAYS)
def overlay(
    runs: RunsParam,
    chosen: Annotated[list[Run], Depends(_runs_named)],
    span: SpanParam,
    scalar: Annotated[
        str,
        Query(
            max_length=1000,
            description="a scalar; `loss` is the loss of each run, whatever its name, and `gradient norm` the norm of "
            "all gradients of parameters",
        ),
    ] = "",
    tap: Annotated[str, Query(max_length=2100, description="the label of a tap, such as `layers.0 output`")] = "",
    stat: StatName = "rms",
    group_by: Annotated[
        str, Query(max_length=200, description="a value of the runs by which to group them, such as `lr` or `group`")
    ] = "",
    band: Annotated[bool, Query(description="the mean and the range of each group instead of each run")] = False,
    points: Annotated[int, Query(ge=1, le=2000, description="maximum points per line; extremes are kept")] = 500,
) -> answers.Overlay:
    """Return a line for each run, or with `band` for each group of runs. A run on disk is read for it.

    In fewer steps, the same number of points shows more of each.
    """
    wanted = OverlayQuery(scalar, tap, stat)
    found: list[tuple[Run, Series]] = []
    for run in chosen:
        series = find_series(runs.read(run).store, wanted, points, span.first, span.last)
        if series is not None and len(series.mean):
            found.append((run, series))
    groups = {run.id: Traits(run).text(group_by) for run, _ in found}
    lines = _bands(found, groups) if band else [_line_of(run, series, groups[run.id]) for run, series in found]
    known = {run.id for run, _ in found}
    what = wanted.scalar or f"{wanted.tap} {wanted.stat}"
    return answers.Overlay(what, group_by, tuple(lines), tuple(run.id for run in chosen if run.id not in known))


def _line_of(run: Run, series: Series, group: str) -> answers.OverlayLine:
    counts = np.ones(len(series.mean), np.int64)
    steps, values = (series.first_step, series.last_step), (series.mean, series.min, series.max)
    nonfinite = series.nonfinite.astype(np.int64)
    return answers.OverlayLine(run.id, run.name or run.id, group, series.name, *steps, *values, nonfinite, counts)


def _bands(found: Sequence[tuple[Run, Series]], groups: dict[str, str]) -> list[answers.OverlayLine]:
    lines = []
    for group in grouped(groups.values()):
        band = band_of([series for run, series in found if groups[run.id] == group])
        steps, values = (band.first, band.last), (band.mean, band.low, band.high)
        lines.append(answers.OverlayLine(None, group, group, "", *steps, *values, band.nonfinite, band.runs))
    return lines
