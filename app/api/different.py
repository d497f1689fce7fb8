"""Layers and logged values that differ in some steps."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from hookcore.errors import ArgumentError
from hookcore.reading import answers

from ..analysis.different import Side, what_differs
from ..formats import ARRAYS
from ..runs import Run
from .params import (
    MAX_STEP,
    RUN_PATTERN,
    Format,
    MatchParam,
    OfKind,
    ReplyParam,
    RunParam,
    RunsParam,
    Span,
    SpanParam,
    described,
    run_named,
    version_of,
)
from .steady import SteadyRoute

MAX_LAYERS: Final = 200

router = APIRouter(route_class=SteadyRoute)

OtherRun = Annotated[str | None, Query(pattern=RUN_PATTERN, description="another run to compare with")]
OtherStep = Annotated[
    int | None, Query(ge=0, le=MAX_STEP, description="the steps to compare with; default: all others")
]


@router.get("/differences", summary="What is different in some steps", responses=described(answers.Differences, ARRAYS))
def differences(
    reply: ReplyParam,
    runs: RunsParam,
    run: RunParam,
    span: SpanParam,
    match: MatchParam,
    kind: OfKind = None,
    other: OtherRun = None,
    other_from: OtherStep = None,
    other_to: OtherStep = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LAYERS, description="maximum number of layers and of logged values")] = 20,
    bins: Annotated[int, Query(ge=5, le=500, description="maximum number of bins of a histogram")] = 60,
    format: Format = None,
) -> Response:
    """Return the layers and logged values whose distributions differ most between the steps and all others.

    Give `other_from` and `other_to` to compare with these steps only, and `other` to compare with another run. Older
    steps are kept as sums: the answer says which steps it is about. `share` is half the sum of the differences of the
    two histograms, less what chance explains.
    """
    beside = run if other is None else run_named(runs, other)

    def read() -> answers.Differences:
        one, two = sides_of(run, beside, span, Span(other_from, other_to))
        return what_differs(one, two, run.store.matcher(match), kind, limit, bins)

    versions = [version_of(each) for each in {run.id: run, beside.id: beside}.values()]
    return reply.arrays(format, versions, read)


def sides_of(run: Run, beside: Run, span: Span, other: Span) -> tuple[Side, Side]:
    """Return some steps of a run, and others: of another run, or of the same one without the steps of the first."""
    if other.first is not None and other.last is not None and other.first > other.last:
        raise ArgumentError(f"other_from={other.first} is after other_to={other.last}: give the earlier step first")
    inside = run.store.sample(span.first, span.last)
    outside = beside.store.sample(other.first, other.last, inside if beside is run else None)
    return Side(run.store, inside, run.id), Side(beside.store, outside, beside.id)
