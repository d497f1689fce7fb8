"""What readers keep by name: views of the list of runs, and charts on the board."""

from __future__ import annotations

from fastapi import Response

from hookcore.reading import answers

from ..formats import StrictJson
from ..runs import Runs
from .bodies import ChartToPin, ViewToSave
from .params import NameParam, RunsParam, forget
from .routing import answered, described, problems, router
from .saved import check_chart, check_view


def _views_of(runs: Runs) -> Response:
    return StrictJson(answers.Views(tuple(answers.View(*each) for each in runs.views.all().items())))


@router.get("/views", summary="Saved views of the list of runs", responses=described(("json",), answers.Views))
def list_views(runs: RunsParam) -> Response:
    """Return the saved views: each is a name, and the query string of the Runs page."""
    return _views_of(runs)


@router.put("/views", summary="Save a view", responses=answered(answers.Views))
def save_view(runs: RunsParam, view: ViewToSave) -> Response:
    """Save what the Runs page shows with a query string, instead of the view of the same name.

    A query string that the page can't show is refused.
    """
    check_view(view.query)
    runs.views.save(view.name, view.query)
    return _views_of(runs)


@router.delete("/views", summary="Delete a view", status_code=204, response_class=Response, responses=problems())
def delete_view(runs: RunsParam, name: NameParam) -> None:
    """Delete a saved view."""
    forget(runs.views, name)


def charts_of(runs: Runs) -> tuple[answers.PinnedChart, ...]:
    parts = ((name, *said.partition("?")[::2]) for name, said in runs.board.all().items())
    return tuple(answers.PinnedChart(*each) for each in parts)


@router.get("/board", summary="Pinned charts", responses=described(("json",), answers.Board))
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
