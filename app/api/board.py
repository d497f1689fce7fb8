"""The board: charts that readers pinned, which show the same of every run."""

from __future__ import annotations

from fastapi import APIRouter, Response

from hookcore.reading import answers

from ..formats import StrictJson
from ..runs import Runs
from .bodies import ChartToPin
from .params import NameParam, RunsParam, answered, described, forget, problems
from .saved import check_chart

router = APIRouter()


def charts_of(runs: Runs) -> tuple[answers.PinnedChart, ...]:
    parts = ((name, *said.partition("?")[::2]) for name, said in runs.board.all().items())
    return tuple(answers.PinnedChart(*each) for each in parts)


@router.get("/board", summary="Pinned charts", responses=described(answers.Board))
def board(runs: RunsParam) -> Response:
    """Return the charts that were pinned on any page."""
    return StrictJson(answers.Board(charts_of(runs)))


@router.put("/board", summary="Pin a chart", responses=answered(answers.Board))
def pin(runs: RunsParam, chart: ChartToPin) -> Response:
    """Pin a chart, instead of the one of the same name. A query that no run could answer is refused."""
    check_chart(chart.path, chart.query)
    runs.board.save(chart.name, f"{chart.path}?{chart.query}")
    return StrictJson(answers.Board(charts_of(runs)))


@router.delete("/board", summary="Unpin a chart", status_code=204, response_class=Response, responses=problems())
def unpin(runs: RunsParam, name: NameParam) -> None:
    """Take a chart off the board."""
    forget(runs.board, name)
