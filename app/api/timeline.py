"""A whole run at a glance, and what readers noted at its steps."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.exceptions import HTTPException

from hookcore.reading import answers

from ..analysis.timeline import COLUMNS, timeline_of
from ..formats import StrictJson
from ..runs import Run
from ..runs.annotating import annotate, remove_annotation
from .bodies import Annotation
from .params import MAX_STEP, ReplyParam, RunParam, RunsParam, SpanParam, answered, described, run_named, version_of
from .steady import SteadyRoute

router = APIRouter(route_class=SteadyRoute)


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


@router.get("/annotations", summary="Annotated steps", responses=described(answers.Annotations))
def list_annotations(run: RunParam, reply: ReplyParam) -> Response:
    """Return what readers noted at steps of a run, by step."""
    return reply.json([version_of(run)], lambda: _of(run))


@router.post("/annotations", summary="Annotate a step", responses=answered(answers.Annotations))
def add_annotation(runs: RunsParam, given: Annotation) -> Response:
    """Annotate a step; an earlier annotation of the step is replaced. Returns the annotations of the run.

    Annotations are saved with the run, and shown on the timeline and in the charts of its pages.
    """
    run = run_named(runs, given.run)
    annotate(run, given.step, given.text)
    return StrictJson(_of(run))


@router.delete("/annotations", summary="Remove an annotation", responses=answered(answers.Annotations))
def delete_annotation(
    run: RunParam, step: Annotated[int, Query(ge=0, le=2**53, description="the annotated step", examples=[100])]
) -> Response:
    """Remove the annotation of a step. Returns the remaining annotations."""
    if not remove_annotation(run, step):
        raise HTTPException(404, f"step {step} of this run has no annotation; GET /api/v1/annotations lists them")
    return StrictJson(_of(run))


def _of(run: Run) -> answers.Annotations:
    return answers.Annotations(run.id, tuple(answers.Annotation(*each) for each in run.edits.annotations.items()))
