"""Saved views of the list of runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.exceptions import HTTPException

from hookcore import answers
from hookcore.store.checks import unknown

from ..formats import StrictJson
from ..runs import Runs
from ..runs.views import MAX_NAME
from .bodies import ViewToSave
from .given import GivenRuns, answered, described, problems

router = APIRouter(prefix="/api/v1", default_response_class=StrictJson)


def _views_of(runs: Runs) -> Response:
    return StrictJson(answers.Views(tuple(answers.View(*each) for each in runs.views.all().items())))


@router.get("/views", summary="Saved views of the list of runs", responses=described(answers.Views))
def list_views(runs: GivenRuns) -> Response:
    """Return the saved views: each is a name, and the query string of the Runs page."""
    return _views_of(runs)


@router.put("/views", summary="Save a view", responses=answered(answers.Views))
def save_view(runs: GivenRuns, view: ViewToSave) -> Response:
    """Save what the Runs page shows with a query string, instead of the view of the same name."""
    runs.views.save(view.name, view.query)
    runs.changes.tell()
    return _views_of(runs)


@router.delete("/views", summary="Delete a view", status_code=204, response_class=Response, responses=problems())
def delete_view(runs: GivenRuns, name: Annotated[str, Query(min_length=1, max_length=MAX_NAME)]) -> None:
    """Delete a saved view."""
    if not runs.views.delete(name):
        raise HTTPException(404, unknown("view", name, list(runs.views.all())))
    runs.changes.tell()
