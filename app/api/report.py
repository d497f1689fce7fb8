"""A run as one HTML file."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from .params import MAX_STEP, RunParam, SpanParam
from .routing import problems, router

# The file is saved, not shown. If it is opened anyway, the page has no origin. It has its own policy too.
_POLICY = (
    "sandbox allow-scripts; default-src 'none'; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


@router.get(
    "/report",
    summary="A report to keep",
    response_class=Response,
    responses={
        200: {
            "content": {"text/html": {"schema": {"type": "string"}, "example": "<!doctype html>..."}},
            "description": "a file that needs no server",
        },
        **problems(),
    },
)
def report(
    run: RunParam,
    span: SpanParam,
    at: Annotated[
        int | None,
        Query(ge=0, le=MAX_STEP, description="the step that numbers are taken from; charts show all the steps"),
    ] = None,
) -> Response:
    """Return key figures, findings, charts, coverage, settings, and events in one offline file of at most 10 MB.

    With steps, numbers are of them, and findings are the incidents that touch them, as they were known then.
    """
    from ..pages.report import ReportSteps, report_of  # imports Plotly

    headers = {
        "Content-Disposition": f'attachment; filename="hookcore-{run.id}.html"',
        "Content-Security-Policy": _POLICY,
        "Cache-Control": "private, no-store",
    }
    return Response(
        report_of(run, ReportSteps(span.first, span.last, at)), media_type="text/html; charset=utf-8", headers=headers
    )
