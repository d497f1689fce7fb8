"""The model as boxes: what contains what, what feeds what, how large it is, and which parts repeat."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from hookcore.reading import answers

from ..formats import ARRAYS, Table
from .params import Format, ReplyParam, RunParam, described, version_of

router = APIRouter()


@router.get("/model", summary="The model as a picture", responses=described(answers.Model, ARRAYS))
def model(
    run: RunParam,
    reply: ReplyParam,
    step: Annotated[int | None, Query(ge=0, le=2**53, description="as it was known in this step; default: now")] = None,
    format: Format = None,
) -> Response:
    """Return the model as boxes in boxes with what flows between them: calls, or modules until the flow is known."""

    def content() -> answers.Model:
        return run.reader.model(step)

    return reply.arrays(format, [version_of(run)], content, lambda: Table(content().columns()))
