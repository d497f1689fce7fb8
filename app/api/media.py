"""Images, texts, tables, and figures that a script logged: the list, and the content of one item."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response
from starlette.exceptions import HTTPException

from hookcore.reading import answers
from hookcore.records.vocabulary import FIGURE_TYPE, IMAGE_TYPE, TABLE_TYPE, TEXT_TYPE

from .params import After, Limit, RunParam, SpanParam, page_of
from .routing import ReplyParam, problems, router

# Nothing else is sent as it came: a trainer's word for it must not make a browser run it.
TYPES = {kind: kind for kind in (IMAGE_TYPE, TABLE_TYPE, FIGURE_TYPE)} | {TEXT_TYPE: "text/plain; charset=utf-8"}

_TABLE = {TABLE_TYPE: {"example": {"columns": ["loss"], "rows": [[0.5]], "total": 1}}}


@router.reads("/media", "Images, texts, tables, and figures")
def media(
    run: RunParam,
    span: SpanParam,
    name: Annotated[str | None, Query(max_length=1000, description="only those of this name")] = None,
    after: After = 0,
    limit: Limit = 1000,
) -> answers.MediaList:
    """Return the images, texts, tables, and figures that the script logged, oldest first, without their content."""
    shown, page = page_of(run.reader.media(name, span.first, span.last), after, limit)
    return answers.MediaList(**page, run=run.id, media=tuple(shown))


@router.get(
    "/media/{number}",
    summary="The content of one item",
    response_class=Response,
    responses={
        200: {"content": {kind: {} for kind in TYPES} | _TABLE},
        304: {"description": "the item is the one with the ETag in If-None-Match"},
        **problems(),
    },
)
def content(
    run: RunParam,
    reply: ReplyParam,
    number: Annotated[int, Path(ge=0, le=2**62, description="the number from the list")],
) -> Response:
    """Return the content: an image as PNG, a text, or a table or figure of Plotly as JSON."""
    found = run.reader.medium(number)
    if found is None:
        raise HTTPException(404, f"there is no item {number} of the run {run.id}; see the list of media")
    kind = TYPES.get(found.dtype, "application/octet-stream")
    return reply.content(found.values.tobytes(), kind)
