"""Incidents: what went wrong, as it was seen when it happened."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.exceptions import HTTPException

from hookcore.errors import ArgumentError
from hookcore.reading import answers

from .params import RunParam, SpanParam
from .routing import router


@router.reads("/incidents", "Incidents")
def incidents(
    run: RunParam,
    span: SpanParam,
    rule: Annotated[str | None, Query(max_length=100, description="only incidents of this rule")] = None,
) -> answers.Incidents:
    """Return what went wrong, oldest first: the culprit, the first step, and what followed.

    Culprit and first step were decided when the data arrived. They don't depend on when you ask.
    """
    return run.reader.incidents(span.first, span.last, rule)


@router.reads("/incidents/{incident}", "One incident")
def incident(
    run: RunParam, incident: Annotated[str, Path(max_length=200, description="its `id`", examples=["nonfinite-100"])]
) -> answers.IncidentDetail:
    """Return one incident with its evidence: exact values of the culprit and its neighbors around the onset."""
    try:
        return run.reader.incident(incident)
    except ArgumentError as error:
        raise HTTPException(404, str(error)) from None
