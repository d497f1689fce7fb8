"""The board: charts that readers pinned, which show the same of every run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.exceptions import HTTPException

from hookcore import answers
from hookcore.store.checks import unknown

from ..formats import StrictJson
from ..runs import Runs
from ..runs.views import MAX_NAME
from .bodies import ChartToPin
from .given import GivenRuns, answered, described, problems

router = APIRouter(prefix="/api/v1", default_response_class=StrictJson)


def charts_of(runs: Runs) -> tuple[answers.PinnedChart, ...]:
    """Return the pinned charts."""
    parts = ((name, *said.partition("?")[::2]) for name, said in runs.board.all().items())
    return tuple(answers.PinnedChart(*each) for each in parts)


@router.get("/board", summary="Pinned charts", responses=described(answers.Board))
def board(runs: GivenRuns) -> Response:
    """Return the charts that were pinned on any page."""
    return StrictJson(answers.Board(charts_of(runs)))


@router.put("/board", summary="Pin a chart", responses=answered(answers.Board))
def pin(runs: GivenRuns, chart: ChartToPin) -> Response:
    """Pin a chart, instead of the one of the same name."""
    runs.board.save(chart.name, f"{chart.path}?{chart.query}")
    runs.changes.tell()
    return StrictJson(answers.Board(charts_of(runs)))


@router.delete("/board", summary="Unpin a chart", status_code=204, response_class=Response, responses=problems())
def unpin(runs: GivenRuns, name: Annotated[str, Query(min_length=1, max_length=MAX_NAME)]) -> None:
    """Take a chart off the board."""
    if not runs.board.delete(name):
        raise HTTPException(404, unknown("chart", name, list(runs.board.all())))
    runs.changes.tell()
