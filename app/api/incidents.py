"""Incidents: what went wrong, as it was seen when it happened."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from starlette.exceptions import HTTPException

from hookcore.errors import ArgumentError
from hookcore.reading import answers

from .params import ReplyParam, RunParam, SpanParam, described, version_of
from .steady import SteadyRoute

router = APIRouter(route_class=SteadyRoute)


@router.get("/incidents", summary="Incidents", responses=described(answers.Incidents))
def incidents(
    run: RunParam,
    reply: ReplyParam,
    span: SpanParam,
    rule: Annotated[str | None, Query(max_length=100, description="only incidents of this rule")] = None,
) -> Response:
    """Return what went wrong, oldest first: the culprit, the first step, and what followed.

    Culprit and first step were decided when the data arrived. They don't depend on when you ask.
    """
    return reply.json([version_of(run)], lambda: run.reader.incidents(span.first, span.last, rule))


@router.get("/incidents/{incident}", summary="One incident", responses=described(answers.IncidentDetail))
def incident(
    run: RunParam,
    reply: ReplyParam,
    incident: Annotated[str, Path(max_length=200, description="its `id`", examples=["nonfinite-100"])],
) -> Response:
    """Return one incident with its evidence: exact values of the culprit and its neighbors around the onset."""

    def content() -> answers.IncidentDetail:
        try:
            return run.reader.incident(incident)
        except ArgumentError as error:
            raise HTTPException(404, str(error)) from None

    return reply.json([version_of(run)], content)
