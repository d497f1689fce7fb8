"""A whole run at a glance, and what readers noted at its steps."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from starlette.exceptions import HTTPException

from hookcore.reading import answers

from ..analysis.timeline import COLUMNS, timeline_of
from ..formats import StrictJson
from ..runs.annotating import annotate, remove_annotation
from .bodies import Annotation
from .params import MAX_STEP, RunParam, RunsParam, SpanParam, run_named
from .routing import answered, router


@router.reads("/timeline", "A run at a glance")
def timeline(
    run: RunParam,
    span: SpanParam,
    columns: Annotated[int, Query(ge=1, le=2000, description="maximum number of points of the line")] = COLUMNS,
) -> answers.Timeline:
    """Return the loss over the steps (or what comes nearest), what happened, and which steps were captured.

    However long the run is, the answer has at most `columns` points, 200 marks, and twice as many captured steps as
    `columns`. With `from` and `to`, the answer is about a part of the run, which has more detail.
    """
    return timeline_of(run, span.first, span.last, columns)


@router.reads("/nearest", "What was captured of a step")
def nearest(
    run: RunParam, step: Annotated[int, Query(ge=0, le=MAX_STEP, description="a step, captured or not")]
) -> answers.Nearest:
    """Return whether tensors were captured in a step, and the captured steps before and after it."""
    return run.reader.nearest(step)


@router.reads("/annotations", "Annotated steps")
def list_annotations(run: RunParam) -> answers.Annotations:
    """Return what readers noted at steps of a run, by step."""
    return answers.Annotations(run.id, tuple(answers.Annotation(*each) for each in run.edits.annotations.items()))


@router.post("/annotations", summary="Annotate a step", responses=answered(answers.Annotations))
def add_annotation(runs: RunsParam, given: Annotation) -> Response:
    """Annotate a step; an earlier annotation of the step is replaced. Returns the annotations of the run.

    Annotations are saved with the run, and shown on the timeline and in the charts of its pages.
    """
    run = run_named(runs, given.run)
    annotate(run, given.step, given.text)
    return StrictJson(list_annotations(run))


@router.delete("/annotations", summary="Remove an annotation", responses=answered(answers.Annotations))
def delete_annotation(
    run: RunParam, step: Annotated[int, Query(ge=0, le=2**53, description="the annotated step", examples=[100])]
) -> Response:
    """Remove the annotation of a step. Returns the remaining annotations."""
    if not remove_annotation(run, step):
        raise HTTPException(404, f"step {step} of this run has no annotation; GET /api/v1/annotations lists them")
    return StrictJson(list_annotations(run))
