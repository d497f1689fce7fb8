"""Layers and logged values that differ in some steps."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Query

from hookcore.errors import ArgumentError
from hookcore.reading import answers

from ..analysis.comparison import Side, what_differs
from ..formats import ARRAYS
from ..runs import Run
from .params import MAX_STEP, RUN_PATTERN, MatchParam, OfKind, RunParam, RunsParam, SpanParam, run_named
from .routing import ReplyParam, router

MAX_LAYERS: Final = 200

OtherStep = Annotated[
    int | None, Query(ge=0, le=MAX_STEP, description="the steps to compare with; default: all others")
]


def _other(
    runs: RunsParam,
    reply: ReplyParam,
    run: RunParam,
    other: Annotated[str | None, Query(pattern=RUN_PATTERN, description="another run to compare with")] = None,
) -> Run:
    return run if other is None else reply.about(run_named(runs, other))


@router.reads("/differences", "What is different in some steps", ARRAYS)
def differences(
    run: RunParam,
    beside: Annotated[Run, Depends(_other)],
    span: SpanParam,
    match: MatchParam,
    kind: OfKind = None,
    other_from: OtherStep = None,
    other_to: OtherStep = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LAYERS, description="maximum number of layers and of logged values")] = 20,
    bins: Annotated[int, Query(ge=5, le=500, description="maximum number of bins of a histogram")] = 60,
) -> answers.Differences:
    """Return the layers and logged values whose distributions differ most between the steps and all others.

    Give `other_from` and `other_to` to compare with these steps only, and `other` to compare with another run. Older
    steps are kept as sums: the answer says which steps it is about. `share` is half the sum of the differences of the
    two histograms, less what chance explains.
    """
    if other_from is not None and other_to is not None and other_from > other_to:
        raise ArgumentError(f"other_from={other_from} is after other_to={other_to}: give the earlier step first")
    inside = run.store.sample(span.first, span.last)
    outside = beside.store.sample(other_from, other_to, inside if beside is run else None)
    one, two = Side(run.store, inside, run.id), Side(beside.store, outside, beside.id)
    return what_differs(one, two, run.store.matcher(match), kind, limit, bins)
