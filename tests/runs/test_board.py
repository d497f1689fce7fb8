"""The board: charts that are pinned once, and shown for every run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookcore_app.runs.shelf import BOARD_FILE, Views
from tests.api_world import World


@pytest.fixture
def world() -> World:
    return World()


def test_a_chart_is_pinned_replaced_shown_for_every_run_and_unpinned(world: World) -> None:
    chart = {"name": "<head>: norm", "path": "series", "query": "tap=layers.0+output&stat=norm"}
    assert world.client.put("/api/v1/board", json={**chart, "query": "tap=x&stat=norm"}).status_code == 200
    assert world.client.put("/api/v1/board", json=chart).json() == {"charts": [chart]}
    page = world.client.get(f"/runs/{world.run.id}/metrics/pinned").text
    assert "&lt;head&gt;: norm" in page
    assert 'data-query="tap=layers.0+output&amp;stat=norm"' in page
    (link,) = re.findall(r'href="(api/v1/series\?[^"]*)"', page)
    assert world.client.get("/" + link.replace("&amp;", "&")).json()["series"]
    assert world.client.delete("/api/v1/board", params={"name": "head"}).status_code == 404
    assert world.client.delete("/api/v1/board", params={"name": chart["name"]}).status_code == 204
    assert world.client.get("/api/v1/board").json() == {"charts": []}
    assert "Nothing is pinned" in world.client.get(f"/runs/{world.run.id}/metrics/pinned").text


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("tap=head+output&stat=nrm", "did you mean 'norm'?"),
        ("tap=head+output", "stat: Field required"),
        ("stat=norm", "use either tap=, or match= and kind="),
        ("match=re:(&stat=norm", "is not a regular expression"),
        ("kind=outptu&stat=norm", "kind: Input should be 'output'"),
        ("kind=output&stat=norm&limit=1000", "limit: Input should be less than or equal to 100"),
        ("kind=output&limit=100&stat=norm,rms", "200 series of 1000 points are too many"),
        ("tap=a&stat=norm&run=run-1", "unknown parameter 'run'"),
        ("tap=a&stat=norm&stat=rms", "stat= is given 2 times"),
    ],
)
def test_a_chart_that_no_run_can_show_is_not_pinned(world: World, query: str, says: str) -> None:
    answer = world.client.put("/api/v1/board", json={"name": "x", "path": "series", "query": query})
    assert answer.status_code == 400
    assert says in answer.json()["error"]
    assert world.client.get("/api/v1/board").json() == {"charts": []}


def test_a_chart_and_a_view_that_were_stored_unchecked_say_what_is_wrong_and_can_be_removed(world: World) -> None:
    world.runs.board.save("old", "series?tap=a&stat=nrm&format=csv")
    world.runs.views.save("old", "f=(")
    page = world.client.get(f"/runs/{world.run.id}/metrics/pinned").text
    assert "This chart can't be shown: unknown parameter &#39;format&#39;" in page
    assert 'aria-label="Unpin old"' in page
    page = world.client.get("/").text
    assert "a condition is missing at the end" in page
    assert 'aria-label="Delete the view old"' in page
    assert "?f=(" not in page
    for kept in ("board", "views"):
        assert world.client.delete(f"/api/v1/{kept}", params={"name": "old"}).status_code == 204


@pytest.mark.parametrize("wrong", [{"path": "runs"}, {"name": ""}, {"query": "a#b"}, {"more": 1}])
def test_only_charts_of_values_over_steps_are_pinned(world: World, wrong: dict[str, object]) -> None:
    chart = {"name": "loss", "path": "scalars", "query": "name=loss", **wrong}
    assert world.client.put("/api/v1/board", json=chart).status_code == 422
    assert world.client.get("/api/v1/board").json() == {"charts": []}


def test_the_board_and_the_views_survive_a_restart(tmp_path: Path) -> None:
    told: list[str] = []
    Views(tmp_path, BOARD_FILE, "chart", lambda: told.append("changed")).save("loss", "scalars?name=loss")
    assert told == ["changed"]
    Views(tmp_path).save("mine", "sort=loss")
    assert dict(Views(tmp_path, BOARD_FILE, "chart").all()) == {"loss": "scalars?name=loss"}
    assert dict(Views(tmp_path).all()) == {"mine": "sort=loss"}
