"""A whole run at a glance."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from hookcore.reading import answers

from ..analysis.timeline import COLUMNS, timeline_of
from .params import MAX_STEP, ReplyParam, RunParam, SpanParam, described, version_of

router = APIRouter()


@router.get("/timeline", summary="A run at a glance", responses=described(answers.Timeline))
def timeline(
    run: RunParam,
    reply: ReplyParam,
    span: SpanParam,
    columns: Annotated[int, Query(ge=1, le=2000, description="maximum number of points of the line")] = COLUMNS,
) -> Response:
    """Return the loss over the steps (or what comes nearest), what happened, and which steps were captured.

    However long the run is, the answer has at most `columns` points, 200 marks, and twice as many captured steps as
    `columns`. With `from` and `to`, the answer is about a part of the run, which has more detail.
    """
    return reply.json([version_of(run)], lambda: timeline_of(run, span.first, span.last, columns))


@router.get("/nearest", summary="What was captured of a step", responses=described(answers.Nearest))
def nearest(
    run: RunParam,
    reply: ReplyParam,
    step: Annotated[int, Query(ge=0, le=MAX_STEP, description="a step, captured or not")],
) -> Response:
    """Return whether tensors were captured in a step, and the captured steps before and after it."""
    return reply.json([version_of(run)], lambda: run.reader.nearest(step))
