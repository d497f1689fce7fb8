"""Two runs side by side: what they share, how much was compared, and where they first differ."""

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
from hookcore.store import STAT_NAMES
from hookcore.store.checks import require

from ..analysis.comparison import ComparisonQuery, Differences, Pairs, compare, differences
from ..analysis.renaming import renamer
from ..analysis.verdict import Verdict, compare_runs
from ..formats import ARRAYS, Table
from ..runs import Run
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
    page_of,
    run_named,
)
from .routing import Format, ReplyParam, described, router

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
