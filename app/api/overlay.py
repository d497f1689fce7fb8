"""Values over time of many runs, for one picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
from fastapi import Depends, Query

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.store import Series

from ..analysis.overlay import OverlayQuery, band_of, find_series, grouped
from ..formats import ARRAYS
from ..runs import Run
from ..runs.traits import Traits
from .params import MAX_RUN_ID, RUN_PATTERN, RunsParam, SpanParam, StatName, listed_run
from .routing import ReplyParam, router

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
